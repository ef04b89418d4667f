"""A run whose network is cut goes on as one when it is healed: with the parameters of one side, and all know which.

The gradient of each peer is one coordinate (tests/one_hot_peer.py), so parameters show whose updates are in them.
"""

from itertools import pairwise

import pytest
from cut_network import cut, heal
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card
from test_faults import in_step

FAST_S, SLOW_S = 0.05, 0.4
"""Seconds between two steps: peers of the fast side make several epochs in one of the slow side."""


def now(peer: OneHotPeer) -> int:
    return peer.events("update")[-1]["epoch"]


def went_back(peer: OneHotPeer) -> bool:
    epochs = [event["epoch"] for event in peer.events("update")]
    return any(later < earlier - 1 for earlier, later in pairwise(epochs))


def knew(peer: OneHotPeer) -> bool:
    """Return whether it has told that the run was split, while others trained apart from it."""
    return any("train apart from this one" in event["problem"] for event in peer.events("problem"))


def lost(peer: OneHotPeer) -> list[dict]:
    """Return what it has told of its part of the run, which did not go on."""
    return [event for event in peer.events("LeftOut") if "trained apart from the others since epoch" in event["reason"]]


def train_apart(swarm: OneHotSwarm, *sides: list[OneHotPeer]) -> int:
    """Let each side make two epochs by itself, and the last four more than the others; return the first of these."""
    swarm.go()
    swarm.wait_for_epoch(2)
    cut(swarm, *sides)
    began = max(map(now, swarm.peers)) + 1
    swarm.wait(lambda: all(now(peer) >= began + 2 for peer in swarm.peers))
    swarm.wait(lambda: min(map(now, sides[-1])) >= max(now(peer) for side in sides[:-1] for peer in side) + 4)
    heal(swarm)
    return began


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
def test_of_two_halves_the_one_with_more_samples_goes_on(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=3), swarm_folder) as swarm:
        slow = [swarm.add(cut=True, step_s=SLOW_S), swarm.add(cut=True, step_s=SLOW_S)]
        fast = [swarm.add(cut=True, step_s=FAST_S), swarm.add(cut=True, step_s=FAST_S)]
        train_apart(swarm, slow, fast)
        assert_one_run(swarm, fast, slow)


@pytest.mark.chaos
def test_a_bootstrap_peer_that_was_left_alone_goes_back_to_the_others(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=3), swarm_folder) as swarm:
        alone = [swarm.add(cut=True, step_s=FAST_S)]
        others = [swarm.add(cut=True, step_s=SLOW_S), swarm.add(cut=True, step_s=SLOW_S)]
        train_apart(swarm, others, alone)
        assert_one_run(swarm, others, alone)
        assert all(map(knew, others)), "it went on for an epoch of theirs at least"
        assert all(map(went_back, alone))


@pytest.mark.chaos
def test_of_three_islands_that_of_most_users_goes_on(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=3), swarm_folder) as swarm:
        small = [swarm.add(cut=True, step_s=SLOW_S)]
        most = [swarm.add(cut=True, step_s=2 * FAST_S), swarm.add(cut=True, step_s=2 * FAST_S)]
        fast = [swarm.add(cut=True, step_s=FAST_S / 2)]
        train_apart(swarm, small, most, fast)
        assert_one_run(swarm, most, small + fast)
