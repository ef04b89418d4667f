"""Eight peers over links of a relay, one of which uploads at a twentieth of the others' rate, costs that one alone."""

import pytest
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card

from dalle_lib.rehearsal.links import Link, Relay

UP_MBPS, DOWN_MBPS = 20.0, 40.0
FAST, SLOW = Link(up_mbps=UP_MBPS, down_mbps=DOWN_MBPS), Link(up_mbps=UP_MBPS / 20, down_mbps=DOWN_MBPS)
PEERS, EPOCHS = 8, 8
SIZE = 200_000
"""Values of each of three tensors: a slow link takes 4 s for its own, and 8 s if it reduces, too."""
STEPS = {"step_s": 0.5, "batch_size": 4, "size": SIZE}
CARD = {"target_batch_size": PEERS * 4 * 20, "matchmaking_s": 3.0, "timeout_s": 24.0, "part_bytes": 2**13}
BLAME = (
    *("came too slowly", "went on without the rest", "sent none of its tensors", "did not reduce its parts"),
    *("did not do its part", "rounds that it led failed"),
)


def blamed(by: OneHotPeer) -> set[str]:
    """Return the ids of those that a peer names because they kept a round waiting, or led one that failed."""
    problems = [event for event in by.events("problem") if any(what in event["problem"] for what in BLAME)]
    return {event["peer"] for event in problems}


@pytest.mark.chaos
@pytest.mark.long
def test_one_slow_peer_of_eight_costs_nobody_a_round_and_is_the_only_one_that_is_named(mini, swarm_folder):
    card = one_hot_card(mini, **CARD, state_every=5, least_wait_s=1.0)
    with Relay() as relay, OneHotSwarm(card, swarm_folder) as swarm:
        *others, slow = [swarm.add(plug=relay.plug(link), **STEPS) for link in (*[FAST] * (PEERS - 1), SLOW)]
        swarm.go()
        swarm.wait_for_epoch(EPOCHS, others)
        rounds = [event for peer in others for epoch, event in peer.rounds().items() if epoch < EPOCHS]
        whole = [event for event in rounds if event["error"] is None]
        assert len(whole) >= 0.85 * len(rounds), swarm.told()  # in the first one the slow one still reduces
        assert set().union(*map(blamed, others)) == {slow.peer_id}, swarm.told()
        assert blamed(slow) == {slow.peer_id}, swarm.told()
