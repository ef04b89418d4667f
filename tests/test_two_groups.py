"""A round that was split into two groups is found by both, and nobody else is taken for a group."""

import queue
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager, waiting

from dalle_lib.swarm.averaging.complaints import RUN
from dalle_lib.swarm.averaging.rounds import Group
from dalle_lib.swarm.averaging.two_groups import EVERY, TWO_GROUPS, TwoGroups

OWN, TWO, OTHERS = "own", "two", ("three", "four", "five")


def all_in(epoch: int, *peers: str) -> dict[str, int]:
    return dict.fromkeys(peers, epoch)


def test_both_groups_of_a_split_round_find_it_in_the_next():
    for own_group, other_group in [((OWN, TWO), OTHERS), (OTHERS, (OWN, TWO))]:
        seen, me = TwoGroups(), own_group[0]
        others = {*own_group, *other_group} - {me}
        assert seen.apart(6, {me, *others}, all_in(6, *others)) == 0
        assert seen.apart(7, own_group, all_in(7, *others)) == 0, "they may only be late"
        assert seen.apart(8, {me, *others}, all_in(8, *others)) == len(other_group)
        assert seen.apart(9, {me, *others}, all_in(9, *others)) == 0


def test_a_group_finds_the_other_one_that_was_done_before_it_began():
    """As where those who come late for a round make one of their own."""
    seen = TwoGroups()
    assert seen.apart(7, (OWN, TWO), all_in(7, TWO) | all_in(8, *OTHERS)) == 0
    assert seen.apart(8, (OWN, TWO, *OTHERS), all_in(8, TWO, *OTHERS)) == len(OTHERS)


def test_who_missed_a_round_or_was_an_epoch_ahead_finds_no_split_in_its_return():
    for before, joined in [(6, 8), (8, 7)]:  # it was late, and joined a later round; it was ahead, and goes back
        seen = TwoGroups()
        assert seen.apart(before, (OWN, TWO), all_in(7, TWO, *OTHERS)) == 0
        assert seen.apart(joined, (OWN, TWO, *OTHERS), all_in(joined, TWO, *OTHERS)) == 0
        assert seen.apart(joined + 1, (OWN, TWO, *OTHERS), all_in(joined + 1, TWO, *OTHERS)) == 0


def test_late_peers_and_newcomers_are_no_other_group():
    seen = TwoGroups()
    assert seen.apart(7, (OWN, TWO), all_in(7, TWO, *OTHERS)) == 0
    assert seen.apart(8, (OWN, TWO), all_in(8, TWO) | all_in(7, *OTHERS)) == 0, "late: still in the epoch before"
    seen = TwoGroups()
    assert seen.apart(7, (OWN, TWO), all_in(7, TWO)) == 0
    assert seen.apart(8, (OWN, TWO), all_in(8, TWO, *OTHERS)) == 0, "new: were not there"
    seen = TwoGroups()
    assert seen.apart(7, (OWN, TWO), all_in(7, TWO, "three")) == 0
    assert seen.apart(8, (OWN, TWO), all_in(8, TWO, "three")) == 0, "one that averaged with nobody says so itself"


def test_a_peer_whose_own_round_failed_or_that_was_away_blames_nobody():
    seen = TwoGroups()
    assert seen.apart(7, (OWN,), all_in(7, TWO, *OTHERS)) == 0
    assert seen.apart(8, (OWN, TWO), all_in(8, TWO, *OTHERS)) == 0
    seen = TwoGroups()
    assert seen.apart(7, (OWN, TWO), all_in(7, TWO, *OTHERS)) == 0
    assert seen.apart(9, (OWN, TWO), all_in(9, TWO, *OTHERS)) == 0


def test_splits_that_two_claim_for_ever_cost_a_round_of_parameters_now_and_then():
    seen = TwoGroups()
    assert [seen.is_urgent(epoch) for epoch in range(5, 5 + 2 * EVERY)] == [True, *[False] * (EVERY - 1)] * 2
    assert seen.is_urgent(2), "it has gone back to the epoch of another part of the run"


@pytest.mark.usefixtures("no_event_loop")
@pytest.mark.parametrize(("epoch", "of_group"), [(7, 7), (6, 7), (8, 7)])
def test_who_was_in_a_split_round_says_so_and_averages_parameters_after_the_next_also_where_it_joined_late(
    epoch, of_group
):
    peer, told, everybody = waiting(eta_s=300.0), [], dict.fromkeys((OWN, TWO, *OTHERS), 1.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.grad_averager = SimpleNamespace(complaints=SimpleNamespace(tell=lambda *of: told.append(of)))
    peer.tracker.newcomers, peer.dht = 0, SimpleNamespace(peer_id=OWN)
    due = []
    for at, round_of, group in [(epoch, of_group, (OWN, TWO)), (of_group + 1, of_group + 1, tuple(everybody))]:
        peer._gradient_epoch, peer.tracker.voters = at, all_in(round_of, TWO, *OTHERS)
        peer._outcome = lambda _, of=group, epoch=round_of: (Group(dict.fromkeys(of, 1.0), epoch), None)
        peer.is_behind, peer.parameter_rounds.due_after = False, None
        control = Averager().schedule_step(timeout=30.0)
        control.weight = 1.0
        peer._average_gradients_and_load_into_optimizer(control)
        due.append(peer.parameter_rounds.due_after)
    assert told == [(RUN, TWO_GROUPS.format(of_group, len(OTHERS)))]
    assert due == [None if epoch == of_group else of_group, of_group + 1]
