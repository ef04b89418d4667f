"""Peers whose network is lost, half lost or slow, over the relay of `rehearsal/links.py`.

The gradient of each peer is one coordinate (tests/one_hot_peer.py), so parameters show the weight of each gradient.
"""

import pytest
from one_hot import OneHotSwarm, one_hot_card
from test_faults import are_equal, assert_no_update_is_diluted, assert_whole

from dalle_lib.rehearsal.links import Link

FAST = Link(up_mbps=400, down_mbps=400)
FAR = Link(up_mbps=100, down_mbps=100, delay_s=0.1)
"""Between two such links, an answer comes 400 ms after the question."""
LOSSY = Link(up_mbps=100, down_mbps=100, loss=0.05)
QUICK = {"records_s": 10.0, "looks_every_s": 5.0}
"""Settings with which peers forget each other, and look for first peers, sooner than in a run."""


@pytest.mark.chaos
def test_a_peer_whose_network_is_lost_for_a_while_is_back_by_itself(mini, swarm_folder, relay):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        plugs = [relay.plug(FAST) for _ in range(3)]
        # What the third computes alone is worth less than what the others compute together.
        peers = [swarm.add(plug=plug, step_s=s, **QUICK) for plug, s in zip(plugs, (0.1, 0.1, 0.3), strict=True)]
        swarm.go()
        swarm.wait_together(peers, after=0)
        relay.cut(plugs[2])
        lost_in, own = peers[0].epoch, peers[2].peer_id
        swarm.wait(lambda: any(list(event["counted"]) == [own] for event in peers[2].events("Round")))
        swarm.wait(lambda: peers[0].epoch > max(lost_in, peers[2].epoch) + 3)
        assert swarm.together(peers[:2], after=lost_in), swarm.told()
        relay.hang_up(plugs[2])  # as when a router has a new address
        relay.mend(plugs[2])
        together = swarm.wait_together(peers, after=peers[0].epoch) + 1
        swarm.wait_for_epoch(together + 2)
        assert_whole(peers[:2], range(1, together + 1))
        assert_no_update_is_diluted(peers[2])
        assert peers[2].events("LeftOut"), "it does not tell that it has lost what it computed alone"
        # A busy peer may miss the next averaging of parameters; the one after it makes the peers equal.
        swarm.wait(lambda: are_equal(peers, min(peer.epoch for peer in peers) - 1))


@pytest.mark.chaos
@pytest.mark.long
def test_two_peers_that_do_not_hear_each_other_seldom_keep_the_others_apart(mini, swarm_folder, relay):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        plugs = [relay.plug(FAST) for _ in range(4)]
        # For as long as these two do not lead each other, they would come to the others' rounds in turns.
        peers = [swarm.add(plug=plug, avoids_s=20.0, **QUICK) for plug in plugs]
        swarm.go()
        swarm.wait_together(peers, after=0)
        relay.cut(plugs[2], plugs[3])
        cut_in, others = peers[0].epoch, peers[:2]
        swarm.wait_for_epoch(cut_in + 6, others)
        assert len(swarm.together(others, after=cut_in)) >= 4, swarm.told()
        relay.mend(plugs[2], plugs[3])
        swarm.wait_together(peers, after=peers[0].epoch)
        for peer in peers:
            assert_no_update_is_diluted(peer)


@pytest.mark.chaos
@pytest.mark.parametrize("link", [FAR, LOSSY], ids=["far", "lossy"])
def test_rounds_over_bad_links_are_whole(mini, swarm_folder, relay, link):
    epochs = 8
    with OneHotSwarm(one_hot_card(mini, state_every=5, matchmaking_s=3.0), swarm_folder) as swarm:
        peers = [swarm.add(plug=relay.plug(link)) for _ in range(3)]
        swarm.go()
        swarm.wait_for_epoch(epochs)
        assert len(swarm.together(peers, after=-1)) >= 0.8 * epochs, swarm.told()
        assert_whole(peers, range(1, epochs + 1))
        assert not any(event["error"] for peer in peers for event in peer.events("Round")), swarm.told()
