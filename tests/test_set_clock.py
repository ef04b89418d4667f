"""A peer whose clock is set an hour ahead during a run, and right again: it and the others train together again."""

import signal
from pathlib import Path

import pytest
from one_hot import OneHotSwarm, one_hot_card
from test_faults import assert_no_update_is_diluted

CLOCKED = Path(__file__).parent / "clocked_peer.py"


@pytest.mark.chaos
def test_a_clock_that_jumps_ahead_and_back_dilutes_no_update_and_its_peer_is_back_by_itself(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add(script=CLOCKED)]
        swarm.go()
        swarm.wait_together(peers, after=0)
        peers[2].process.send_signal(signal.SIGUSR1)
        ahead_in = peers[0].epoch
        swarm.wait_for_epoch(ahead_in + 5, peers[:2])
        assert len(swarm.together(peers[:2], after=ahead_in)) >= 3, swarm.told()
        times = [event["time"] for event in peers[2].events("update")]
        assert times[-1] > times[0] + 3000, "its clock was not set"
        peers[2].process.send_signal(signal.SIGUSR2)
        together = swarm.wait_together(peers, after=peers[0].epoch)
        swarm.wait_for_epoch(together + 2)
        for peer in peers:
            assert_no_update_is_diluted(peer)
