"""What a peer's parameters claim in an average of parameters; how reducers weigh it is in test_reducing.py."""

import queue
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager, waiting

from dalle_lib.swarm.averaging.reducing import OWN_GRADIENT
from dalle_lib.swarm.averaging.rounds import Group

pytestmark = pytest.mark.usefixtures("no_event_loop")


@pytest.mark.parametrize(
    ("of_group", "is_whole", "samples", "claim"),
    [(5, True, 8, 1.0), (5, False, 8, OWN_GRADIENT), (5, False, 0, 0.0), (4, True, 8, 0.0), (6, False, 8, 0.0)],
)
def test_parameters_claim_less_with_an_own_gradient_in_an_update_and_nothing_without_it(
    of_group, is_whole, samples, claim
):
    peer, control = waiting(eta_s=300.0), Averager().schedule_step(timeout=30.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.tracker.newcomers, peer.is_counted, control.weight = 0, True, samples
    peer.state_averager = SimpleNamespace(pending_updates=set(), lacks_update=False)
    for epoch, of_round, has_all, claimed in ((5, of_group, is_whole, claim), (6, 6, False, min(claim, OWN_GRADIENT))):
        peer._gradient_epoch = epoch
        peer._outcome = lambda _, of=of_round, has_all=has_all: (
            Group({"own": 1.0, "b": 1.0}, of, False, has_all),
            None,
        )
        peer._average_gradients_and_load_into_optimizer(control)
        peer.parameter_rounds.plan(of_round, is_urgent=True)
        peer.parameter_rounds.pending, control.weight = None, 8
        peer._begin_averaging_parameters()
        assert peer.parameter_rounds.pending.weight == claimed
        assert peer.parameter_rounds.averager.introduction.is_behind == (claimed < 1.0)
        peer.parameter_rounds.pending.cancel()


@pytest.mark.parametrize(
    ("own_weight", "there", "is_behind"), [(0.0, 9, False), (1.0, 2, False), (1.0, 3, False), (1.0, 4, True)]
)
def test_an_average_of_a_few_that_all_lack_an_update_brings_none_of_them_what_it_lacks(own_weight, there, is_behind):
    peer = waiting(eta_s=300.0)
    peer.dht, peer.rounds, peer.is_counted = SimpleNamespace(peer_id="own"), queue.SimpleQueue(), True
    peer.tracker.global_progress.num_peers = there
    peer._misses, peer._lacks, peer.is_behind = True, 5, True
    peer.parameter_rounds.plan(5, is_urgent=True)
    peer.parameter_rounds.begin(peer._claim, b"")
    peer.parameter_rounds.pending.set_result(Group({"own": own_weight, "other": 1.0}, 5))
    peer._collect_parameters()
    assert (peer.is_behind, peer._claim) == (is_behind, float(not is_behind))
