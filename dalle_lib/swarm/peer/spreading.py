"""A trainer's part in seeing drift: it tells a sketch of its parameters, and takes a state again if they are off."""

from collections.abc import Iterable, Mapping

import numpy as np

from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.islands import Island
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.sketch import sketch
from dalle_lib.swarm.process.drift import Sketch, Spread, explained, near
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.status import PeerStatus

AGAIN_EPOCHS = 10
"""Epochs after which a peer that was off may take a state again: each costs a donor its upload."""
OFF = "the parameters of this peer were off by {:.1%}, and averaging explains {:.1%}"
OTHERS_GO_ON = "the parameters of this peer's part of the run are not those of most users, and others go on"


class Spreading:
    """Compares a trainer's parameters with those of the others, by sketches of the same number of updates.

    Parameters that lack an update, or wait to be averaged with the others', are not compared: the peer knows that they
    are others, and tells no sketch of them.
    """

    def __init__(self, card: RunCard, optimizer: CollaborativeOptimizer, own_id: str, events: EventLog) -> None:
        self.text = ""
        """The sketch that the others are told, or "" while there is none to tell."""
        self._limit, self._optimizer, self._own_id, self._events = explained(card), optimizer, own_id, events
        self._epoch = -1
        """Updates in the parameters of which `text` is; -1 for none."""
        self._others: dict[str, tuple[str, str]] = {}
        """The others' sketches, "" for none, and users, by their ids; the reporting thread replaces it."""
        self._judged = self._others, self.text
        """What was compared last: what is known of the others, and this peer's sketch."""
        self._again_from = 0

    def see(self, peers: Iterable[PeerStatus]) -> None:
        """Note what the peers at work tell now, if only that they have none to tell: most users are most of all these.

        In a run with members, that is only believed of theirs.
        """
        trust, others = self._optimizer.trust, {}
        for peer in peers:
            is_known = trust.roster is None or trust.roster.known(peer.peer_id) is not None
            if not peer.is_held and is_known and peer.peer_id != self._own_id:
                others[peer.peer_id] = peer.sketch, trust.user_of(peer.peer_id)
        self._others = others

    def make(self) -> bool:
        """Make the sketch anew after an update, and return whether there is another one to tell.

        For the thread that trains. While an update, or a group's round of parameters, changes them, the last one stays.
        """
        before, averager = self.text, self._optimizer.state_averager
        if self._optimizer.is_behind or not self._optimizer.is_counted:
            self.text, self._epoch = "", -1
        elif self._is_due and averager.lock_averaged_tensors.acquire(False):
            try:
                values = sketch(p for group in averager.optimizer.param_groups for p in group["params"])
            finally:
                averager.lock_averaged_tensors.release()
            self._epoch = averager.epoch_of_parameters
            self.text = str(Sketch(self._epoch, values)) if np.isfinite(values).all() else ""
        return self.text != before

    @property
    def _is_due(self) -> bool:
        averager = self._optimizer.state_averager
        return averager.epoch_of_parameters != self._epoch and all(each.done() for each in averager.pending_updates)

    def mend(self) -> None:
        """Take over the state of another peer if this one's parameters are further from most users' than is explained.

        For the thread that trains, between two batches.
        """
        now = self._others, self.text
        if now == self._judged or not self.text:
            return
        self._judged = now
        everybody = {self._own_id: (self.text, self._optimizer.trust.user_of(self._own_id))} | now[0]
        told, users = ({peer: each[place] for peer, each in everybody.items()} for place in (0, 1))
        if self._again_from - AGAIN_EPOCHS <= self._epoch < self._again_from:  # it may have gone back since
            return
        spread = Spread.of(told, users)
        if (off := spread.off(self._limit).get(self._own_id)) is None:
            return
        self._again_from = self._epoch + AGAIN_EPOCHS
        if len({users[peer] for peer in near(told, self._own_id, self._limit)}) > 1:
            self._optimizer.replace_parameters(OTHERS_GO_ON, self._part_of_most(spread, users))
        else:  # that two users' parameters are damaged alike is not to be expected
            self._events.write("drifted", epoch=self._epoch, off=off, explained=self._limit, usual=spread.most)
            self._optimizer.replace_parameters(OFF.format(off, self._limit))
        self._epoch = -1

    def _part_of_most(self, spread: Spread, users: Mapping[str, str]) -> Island:
        """Return the part of the run with most users' parameters. Those that tell no such sketch are beside it."""
        peers = frozenset(peer for peer, apart in spread.apart.items() if apart <= self._limit)
        its_users = frozenset(users[peer] for peer in peers)
        return Island(self._epoch, its_users, peers, beside=frozenset(users.values()) - its_users)
