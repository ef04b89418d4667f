"""A run whose network is cut goes on as one when it is healed: with the parameters of one side, and all know which.

The gradient of each peer is one coordinate (tests/one_hot_peer.py), so parameters show whose updates are in them.
"""

import time
from collections.abc import Iterator
from itertools import combinations, pairwise, product

import pytest
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card
from test_faults import in_step

from dalle_lib.rehearsal.links import Link, Plug, Relay
from dalle_lib.swarm.averaging.complaints import RUN

LINK = Link(up_mbps=400, down_mbps=400)
FAST_S, SLOW_S = 0.05, 0.4
"""Seconds between two steps: peers of the fast side make several epochs in one of the slow side."""
QUICK = {"records_s": 10.0, "looks_every_s": 3.0}
"""Settings with which peers forget each other, and look for first peers, sooner than in a run."""


class Sides:
    """The peers of a swarm whose network can be cut into sides, and healed."""

    def __init__(self, swarm: OneHotSwarm, relay: Relay) -> None:
        self.swarm, self.relay = swarm, relay
        self.plugs: list[Plug] = []

    def add(self, step_s: float) -> OneHotPeer:
        """Start the next peer."""
        self.plugs.append(self.relay.plug(LINK))
        return self.swarm.add(plug=self.plugs[-1], step_s=step_s, **QUICK)

    def train_apart(self, *sides: list[OneHotPeer]) -> None:
        """Let each side make two epochs by itself, and the last four more than the others; then heal the network.

        It is cut for longer than records live: who is behind and was never gone is no side, but slow.
        """
        self.swarm.go()
        self.swarm.wait_for_epoch(2)
        between = [ends for pair in combinations(sides, 2) for ends in product(*pair)]
        for peer, other in between:
            self.relay.cut(self.plugs[peer.index], self.plugs[other.index])
        began = max(map(now, self.swarm.peers)) + 1
        time.sleep(QUICK["records_s"] + 5)
        self.swarm.wait(lambda: all(now(peer) >= began + 2 for peer in self.swarm.peers))
        self.swarm.wait(lambda: min(map(now, sides[-1])) >= max(now(peer) for side in sides[:-1] for peer in side) + 4)
        for peer, other in between:
            self.relay.mend(self.plugs[peer.index], self.plugs[other.index])


@pytest.fixture
def sides(mini, swarm_folder, relay) -> Iterator[Sides]:
    with OneHotSwarm(one_hot_card(mini, state_every=3), swarm_folder) as swarm:
        yield Sides(swarm, relay)


def now(peer: OneHotPeer) -> int:
    return peer.events("update")[-1]["epoch"]


def went_back(peer: OneHotPeer) -> bool:
    epochs = [event["epoch"] for event in peer.events("update")]
    return any(later < earlier - 1 for earlier, later in pairwise(epochs))


def knew(peer: OneHotPeer) -> bool:
    """Return whether it has told that the run was split, while others trained apart from it."""
    return any(event["problem"].startswith("The run is split: ") for event in peer.events("problem"))


def knows_it_is_one(peer: OneHotPeer) -> bool:
    """Return whether the last that it has told of the split is that it is over."""
    told = [event["problem"] for event in peer.events("problem") if event["peer"] == RUN]
    return told != [] and told[-1].startswith("The run is one again: ")


def lost(peer: OneHotPeer) -> list[dict]:
    """Return what it has told of its part of the run, which did not go on."""
    return [event for event in peer.events("LeftOut") if "trained apart from the others since epoch" in event["reason"]]


def assert_one_run(swarm: OneHotSwarm, winners: list[OneHotPeer], losers: list[OneHotPeer]) -> None:
    """Fail unless the losers take over the winners' state and say what is lost, and all train on together."""
    healed = max(map(now, winners))
    swarm.wait(lambda: all(map(lost, losers)))
    swarm.wait(lambda: in_step(swarm.peers, range(healed + 1, 1 + min(map(now, swarm.peers)))))
    swarm.wait_together(swarm.peers, after=healed)
    for peer in winners:
        assert not lost(peer)
        assert not went_back(peer)
    for peer in losers:
        assert sum(event["samples"] for event in lost(peer)) > 0


@pytest.mark.chaos
@pytest.mark.long
def test_of_two_halves_the_one_with_more_samples_goes_on(sides):
    slow = [sides.add(SLOW_S), sides.add(SLOW_S)]
    fast = [sides.add(FAST_S), sides.add(FAST_S)]
    sides.train_apart(slow, fast)
    assert_one_run(sides.swarm, fast, slow)


@pytest.mark.chaos
@pytest.mark.long
def test_a_bootstrap_peer_that_was_left_alone_goes_back_to_the_others(sides):
    alone = [sides.add(FAST_S)]
    others = [sides.add(SLOW_S), sides.add(SLOW_S)]
    sides.train_apart(others, alone)
    assert_one_run(sides.swarm, others, alone)
    assert all(map(knew, others)), "it went on for an epoch of theirs at least"
    sides.swarm.wait(lambda: all(map(knows_it_is_one, others)))
    assert all(map(went_back, alone))


@pytest.mark.chaos
@pytest.mark.long
def test_of_three_islands_that_of_most_users_goes_on(sides):
    small = [sides.add(SLOW_S)]
    most = [sides.add(2 * FAST_S), sides.add(2 * FAST_S)]
    fast = [sides.add(FAST_S / 2)]
    sides.train_apart(small, most, fast)
    assert_one_run(sides.swarm, most, small + fast)
