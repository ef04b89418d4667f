"""In each epoch a third of a run's peers is killed, and as many start: updates stay whole, and newcomers count soon.

The gradient of each peer is one coordinate (tests/one_hot_peer.py), which is that of a dead one where it takes its
place. So parameters show the weight of each gradient.
"""

import math
import statistics
import time

import pytest
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card
from test_faults import are_equal, assert_no_update_is_diluted, assert_whole

PEERS, REPLACED, EPOCHS = 9, 3, 4
"""Peers at a time, those that are replaced in each epoch, and epochs in which that happens."""


class Churn:
    """The peers of a swarm in the course of time: who lives, and when others were killed."""

    def __init__(self, swarm: OneHotSwarm) -> None:
        self.swarm, self.killed_at = swarm, dict[int, float]()
        self.living = [self._start(place, 0) for place in range(PEERS)]
        swarm.go()

    def _start(self, place: int, found_by: int) -> OneHotPeer:
        return self.swarm.add(found_by, index=place, step_s=0.4)

    def replace(self) -> None:
        """Kill those that have lived longest; as many start in their places, and are there when this returns."""
        gone, self.living = self.living[:REPLACED], self.living[REPLACED:]
        for peer in gone:
            peer.kill()
            self.killed_at[peer.index] = time.time()
        # The oldest that lives is there for all of them.
        new = [self._start(peer.index % PEERS, self.living[0].index) for peer in gone]
        self.living += new
        self.swarm.wait(lambda: all(peer.events("joined") for peer in new))

    def is_between_rounds(self, after: int) -> bool:
        """Return whether the round of parameters that follows the update of an epoch after this one is over."""
        epoch = max(peer.epoch for peer in self.living)
        rounds = [max((event["epoch"] for event in peer.events("ParameterRound")), default=-1) for peer in self.living]
        return epoch > after and sum(number >= epoch - 1 for number in rounds) > PEERS / 2

    def began(self) -> dict[int, float]:
        """Return when the first peer was in each epoch."""
        times: dict[int, float] = {}
        for peer in self.swarm.peers:
            for event in peer.events("update"):
                times[event["epoch"]] = min(event["time"], times.get(event["epoch"], math.inf))
        return times

    def lived_through(self, begin: float, end: float) -> list[OneHotPeer]:
        """Return the peers that were there for all of this time."""
        return [
            peer
            for peer in self.swarm.peers
            if peer.events("joined") and joined_at(peer) < begin and self.killed_at.get(peer.index, math.inf) > end
        ]


def joined_at(peer: OneHotPeer) -> float:
    return peer.events("joined")[0]["time"]


def group(peer: OneHotPeer, epoch: int) -> set[str]:
    """Return the peers whose gradients counted in an epoch, as this one reports it."""
    return {id for id, samples in peer.rounds().get(epoch, {"counted": {}})["counted"].items() if samples > 0}


@pytest.mark.chaos
def test_updates_stay_whole_and_newcomers_count_where_a_third_of_the_peers_is_replaced_in_each_epoch(
    mini, swarm_folder
):
    target = PEERS * 4 * 25  # ten seconds of nine peers that make a step of four samples in 0.4 s
    card = one_hot_card(mini, state_every=1, target_batch_size=target, matchmaking_s=4.0, timeout_s=15.0)
    with OneHotSwarm(card, swarm_folder) as swarm:
        churn = Churn(swarm)
        last = 0
        for _ in range(EPOCHS):
            swarm.wait(lambda epoch=last: churn.is_between_rounds(after=epoch))
            last = max(peer.epoch for peer in churn.living)
            churn.replace()
        end = max(peer.epoch for peer in churn.living) + 3
        swarm.wait_for_epoch(end, churn.living)

        began, peers = churn.began(), swarm.peers
        for peer in peers:
            assert_no_update_is_diluted(peer)
        assert_whole(churn.living, range(0))
        shares = []
        for epoch in range(1, end):
            there = churn.lived_through(began[epoch], began[epoch + 1])
            shares.append(max(len(group(peer, epoch)) for peer in there) / len(there))
        assert statistics.median(shares) >= 0.8, f"{shares}\n{swarm.told()}"
        for new in peers[PEERS:]:
            joined_in = max(epoch for epoch, at in began.items() if at <= joined_at(new))
            counted_in = [epoch for epoch in range(end) if any(new.peer_id in group(peer, epoch) for peer in peers)]
            assert min(counted_in, default=math.inf) <= joined_in + 2, f"{new.folder.name}\n{swarm.told()}"
        # A busy peer may miss the next averaging of parameters; the one after it makes the peers equal.
        swarm.wait(lambda: are_equal(churn.living, min(peer.epoch for peer in churn.living) - 1))
