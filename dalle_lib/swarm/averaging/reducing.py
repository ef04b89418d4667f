"""The reducer's side of a round: one part of all senders comes in, the average of it goes back.

hivemind 1.1.12 adds up whatever it is sent, with whatever weight: one NaN, one negative weight or weights that are all
zero spoil the average of all peers, and a part of one element is spread over a whole one.
"""

import asyncio
from collections.abc import Collection, Sequence

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.partition import BannedException
from torch import Tensor

from dalle_lib.aggregation import RULES, capped, capped_by_user, part_problem, weight_problem, without_far
from dalle_lib.swarm.averaging.trust import Trust

MAX_WEIGHT = 1.0
"""Cap on a peer's weight with rules that outvote liars, in multiples of the median's: at 4, two liars of seven would
hold the majority. Samples of faster peers beyond it do not count."""
OWN_GRADIENT = 0.5
"""What parameters claim that lack no update, but have this peer's own gradient in one, where the average, or a part of
it, did not come. Those that are as the others' claim 1, those that lack an update 0."""


class Reducer:
    """Collects the parts of all senders, and gives each sender their average; replaces hivemind's TensorPartReducer.

    A part is averaged when every sender that still takes part has sent it. A sender whose part cannot be used is
    refused together with its later parts, and the others go on without it.
    """

    def __init__(
        self,
        part_shapes: Sequence[torch.Size],
        senders: Sequence[str],
        own: int | None,
        trust: Trust,
        counts: Sequence[bool],
    ) -> None:
        """Expect parts of these shapes from these peers, by id; `own` is the index of this peer if it sends, too.

        `counts` says of each sender whether it counts, or is a newcomer.
        """
        self.part_shapes, self.num_parts, self.trust = part_shapes, len(part_shapes), trust
        self.users = [trust.user_of(sender) for sender in senders]
        self.vouched = {trust.user_of(sender) for sender in senders if trust.is_vouched(sender)}
        self.senders, self.own, self.counts = senders, own, torch.tensor(counts)
        self.weights = torch.zeros(self.num_parts, len(senders))
        """Weight of each sender in each average, of shape (parts, senders); as claimed until the part is averaged."""
        self.far: set[int] = set()
        """Indices of senders with a part that got weight zero, because it is far longer than the others'."""
        self.beyond: dict[int, float] = {}
        """Weights that senders claim beyond the limit of a round, by index."""
        self.finished = asyncio.Event()
        self._failed: set[int] = set()
        self._parts: list[dict[int, Tensor | None]] = [{} for _ in part_shapes]
        self._results = [asyncio.get_running_loop().create_future() for _ in part_shapes]
        self._begun: set[int] = set()
        if not part_shapes:
            self.finished.set()

    async def accumulate_part(self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float) -> Tensor:
        """Return the average of a part once all senders have sent theirs.

        Raises AllreduceException if the sender's part cannot be used, BannedException if it was refused before. This
        peer's own part is never refused: it counts with weight zero.
        """
        if part_index >= self.num_parts:
            raise AllreduceException(f"it sent part {part_index}, but there are {self.num_parts}")
        if sender_index in self._failed or self.finished.is_set():
            raise BannedException(f"{self.senders[sender_index]} is no longer part of this round")
        if part_index in self._begun or sender_index in self._parts[part_index]:
            raise AllreduceException(f"it sent part {part_index} twice")
        problem = part_problem(tensor_part, self.part_shapes[part_index]) or weight_problem(weight)
        if problem is not None and sender_index != self.own:
            raise AllreduceException(problem)
        if weight > self.trust.max_weight:
            self.beyond[sender_index] = weight
        self.weights[part_index, sender_index] = 0.0 if problem else weight
        self._parts[part_index][sender_index] = None if problem else tensor_part
        self._average_if_complete(part_index)
        return await asyncio.shield(self._results[part_index])

    def on_sender_failed(self, sender_index: int) -> None:
        """Go on without a sender; the parts that it has sent still count."""
        self._failed.add(sender_index)
        for part_index in range(self.num_parts):
            self._average_if_complete(part_index)

    def finalize(self) -> None:
        """Give up parts that are not averaged yet."""
        self.finished.set()
        for result in self._results:
            result.cancel()

    def _average_if_complete(self, part_index: int) -> None:
        expected = set(range(len(self.senders))) - self._failed
        parts = self._parts[part_index]
        if part_index not in self._begun and parts and parts.keys() >= expected:
            self._begun.add(part_index)
            asyncio.create_task(self._average(part_index))  # noqa: RUF006  (kept by KeepsTasks)

    async def _average(self, part_index: int) -> None:
        """Combine a part in another thread, and set its result, or the exception that came of it."""
        parts, result = self._parts[part_index], self._results[part_index]
        senders = [sender for sender in sorted(parts) if parts[sender] is not None]
        claimed, users = self.weights[part_index, senders], [self.users[i] for i in senders]
        in_order = [parts[i] for i in senders]
        try:
            average, weights = await asyncio.get_running_loop().run_in_executor(
                None, combine, in_order, claimed, users, self.trust, self.counts[senders], self.vouched
            )
            self.weights[part_index, senders] = weights
            fair = fair_weights(claimed, users, self.trust, self.counts[senders], self.vouched)
            self.far |= {sender for sender, a, b in zip(senders, fair, weights, strict=True) if a > 0 == b}
        except Exception as error:
            average = error
        parts.clear()
        if not result.done():
            result.set_exception(average) if isinstance(average, Exception) else result.set_result(average)
        if all(result.done() for result in self._results):
            self.finished.set()


def fair_weights(
    weights: Tensor, users: Sequence[str], trust: Trust, counts: Tensor, vouched: Collection[str] = ()
) -> Tensor:
    """Return the weights that senders get, of shape (senders,), from those they claim and the limits of the run.

    Newcomers, for whom `counts` of the same shape is false, get none. If all others claim zero, none is better than
    another, and they count alike; so do newcomers if there is nobody else. With `trust.most_decide` see `of_most`.
    """
    weights = weights.clamp(max=trust.max_weight) * counts
    if trust.most_decide:
        weights = of_most(weights, users, trust, counts, vouched)
    elif not weights.any():
        weights = (counts if counts.any() else ~counts).float()
    if trust.rule != "mean":
        weights = capped(weights, MAX_WEIGHT)
    return capped_by_user(weights, users, trust.max_share_per_user)


def of_most(
    claimed: Tensor, users: Sequence[str], trust: Trust, counts: Tensor, vouched: Collection[str] = ()
) -> Tensor:
    """Return the weights of parameters, of shape (senders,): alike for those that lack the least, if they may decide.

    That is at least half of the users, more where a user's share is capped, or else the `vouched` among them alone: so
    nobody has more than that share. Without members there is no such cap, and one stranger of two might as well come as
    three. Where too few lack no update, those who have a gradient of their own in its place count as well, and where
    they are too few, too, all do.
    """
    present = {user for user, is_one in zip(users, counts, strict=True) if is_one}
    enough = len(present) + 1 if trust.max_share_per_user < 1 else len(present)
    for least in 1.0, OWN_GRADIENT:
        claims = claimed >= least
        claiming = {user for user, is_one in zip(users, claims, strict=True) if is_one}
        if claiming and 2 * len(claiming) >= enough:
            return claims.float()
        known = claims * torch.tensor([user in vouched for user in users])
        if known.any():
            return known.float()
    return (counts if counts.any() else ~counts).float()


def combine(
    parts: Sequence[Tensor],
    claimed: Tensor,
    users: Sequence[str],
    trust: Trust,
    counts: Tensor,
    vouched: Collection[str] = (),
) -> tuple[Tensor, Tensor]:
    """Return the average of parts of one shape by the run's rule, and the weight that each part had in it.

    `claimed` are the senders' own weights, and `counts` whether they count, of shape (senders,); `users` names the user
    of each sender.
    """
    stacked = torch.stack([part.float().flatten() for part in parts])
    weights = fair_weights(claimed, users, trust, counts, vouched)
    if trust.rule != "mean":
        weights = without_far(stacked, weights)
    return RULES[trust.rule](stacked, weights).view(parts[0].shape), weights
