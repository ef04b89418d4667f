"""Whether the peers of an epoch made its update in one group, as one of them sees in the others' records afterwards."""

from collections.abc import Collection, Mapping

MIN_OTHERS = 2
"""Peers in another group, at least: one that averaged with nobody says itself that it lacks an update."""
EVERY = 3
"""Epochs in one of which parameters are averaged at once because a round was split: members that claim to be in the
next epoch and take part in no round must not make the others send theirs in each."""
TWO_GROUPS = (
    "The gradients of epoch {} were averaged in two groups, {} peers in the other one; parameters are averaged soon"
)


class TwoGroups:
    """Finds rounds that were split.

    Whoever was in an epoch when this peer's group averaged its gradients, or had ended it, was not in that group, and
    is in the next epoch when this peer averages there, has made another update. So both groups find that out, an epoch
    later, also if one was done before the other began. Newcomers were in no epoch before, and a peer that came too late
    for a round is still in the old one.
    """

    def __init__(self) -> None:
        self._epoch, self._others = -1, frozenset()
        self._healed = -EVERY

    def apart(self, epoch: int, group: Collection[str], voters: Mapping[str, int]) -> int:
        """Take in this peer's round of an epoch, and return how many peers made the update before it in another group.

        `epoch` is that of the round, which is not this peer's own where it came too late, or was an epoch ahead.
        `voters` are the epochs that others report, by their ids. It returns 0 where the round was not split.
        """
        is_next, others = epoch == self._epoch + 1, self._others
        is_group = len(group) > 1
        self._epoch = epoch
        self._others = frozenset(peer for peer, at in voters.items() if at >= epoch and peer not in group and is_group)
        apart = sum(voters.get(peer, -1) >= epoch for peer in others) if is_next else 0
        return apart if apart >= MIN_OTHERS else 0

    def is_urgent(self, epoch: int) -> bool:
        """Return whether parameters are to be averaged at once, as a split was found in this epoch's round."""
        if self._healed <= epoch < self._healed + EVERY:  # a peer may have gone back to an earlier epoch since
            return False
        self._healed = epoch
        return True
