"""A round that was split into two groups is found by both, and nobody else is taken for a group."""

from dalle_lib.swarm.averaging.splits import EVERY, Splits

OWN, TWO, OTHERS = "own", "two", ("three", "four", "five")


def all_in(epoch: int, *peers: str) -> dict[str, int]:
    return dict.fromkeys(peers, epoch)


def test_both_groups_of_a_split_round_find_it_in_the_next():
    for own_group, other_group in [((OWN, TWO), OTHERS), (OTHERS, (OWN, TWO))]:
        splits, me = Splits(), own_group[0]
        others = {*own_group, *other_group} - {me}
        assert splits.apart(6, {me, *others}, all_in(6, *others)) == 0
        assert splits.apart(7, own_group, all_in(7, *others)) == 0, "they may only be late"
        assert splits.apart(8, {me, *others}, all_in(8, *others)) == len(other_group)
        assert splits.apart(9, {me, *others}, all_in(9, *others)) == 0


def test_late_peers_and_newcomers_are_no_other_group():
    splits = Splits()
    assert splits.apart(7, (OWN, TWO), all_in(7, TWO, *OTHERS)) == 0
    assert splits.apart(8, (OWN, TWO), all_in(8, TWO) | all_in(7, *OTHERS)) == 0, "late: still in the epoch before"
    splits = Splits()
    assert splits.apart(7, (OWN, TWO), all_in(7, TWO)) == 0
    assert splits.apart(8, (OWN, TWO), all_in(8, TWO, *OTHERS)) == 0, "new: were not there"
    splits = Splits()
    assert splits.apart(7, (OWN, TWO), all_in(7, TWO, "three")) == 0
    assert splits.apart(8, (OWN, TWO), all_in(8, TWO, "three")) == 0, "one that averaged with nobody says so itself"


def test_a_peer_whose_own_round_failed_or_that_was_away_blames_nobody():
    splits = Splits()
    assert splits.apart(7, (OWN,), all_in(7, TWO, *OTHERS)) == 0
    assert splits.apart(8, (OWN, TWO), all_in(8, TWO, *OTHERS)) == 0
    splits = Splits()
    assert splits.apart(7, (OWN, TWO), all_in(7, TWO, *OTHERS)) == 0
    assert splits.apart(9, (OWN, TWO), all_in(9, TWO, *OTHERS)) == 0


def test_splits_that_two_claim_for_ever_cost_a_round_of_parameters_now_and_then():
    splits = Splits()
    assert [splits.is_urgent(epoch) for epoch in range(5, 5 + 2 * EVERY)] == [True, *[False] * (EVERY - 1)] * 2
