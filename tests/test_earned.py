"""Which epochs and samples of others a peer believes: records are made up here, and so is the time."""

import math

import pytest

from dalle_lib.swarm.averaging.earned import SLACK, Claim, EarnedEpochs, EarnedSamples, seconds_until

TOTAL, SHORTEST_S, TARGET = 1000, 10.0, 100.0


def claims(*epochs: int | tuple[str, int], **changes) -> list[Claim]:
    """Return a claim for each epoch; each is of a user of its own, unless a user is named with it."""
    told = [epoch if isinstance(epoch, tuple) else (f"user{i}", epoch) for i, epoch in enumerate(epochs)]
    made = {"samples": 0, "per_s": 1e-9, "time": 0.0} | changes  # who computes nothing has no vote
    return [Claim(peer=f"peer{i}", user=user, epoch=epoch, **made) for i, (user, epoch) in enumerate(told)]


def part_of_the_run(epoch: int) -> EarnedEpochs:
    """Return what a peer believes that entered this epoch at time 0, together with another."""
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    believes.enter(epoch, epoch, 0.0)
    assert believes.believed(epoch, "me", claims(epoch), 0.0) == epoch
    return believes


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([TOTAL], 10),  # a liar of two
        ([11], 10),  # nor is the next epoch one vote's to begin
        ([10, TOTAL], 10),
        ([10, 10, TOTAL], 10),
        ([11, 11, TOTAL], 11),  # the moment of an update, in the eyes of the last
        ([10, 11, TOTAL], 10),
        ([10, 11], 10),
        ([11, 11], 11),
        ([10, 10, 10, 10, *[("eve", TOTAL)] * 4], 10),  # one user with all peers that it may have
        ([11, 11, 11, 11, *[("eve", 10)] * 4], 11),
        ([11, 11, 7, 7, 7, 7], 11),  # most have died: their records are of epochs long past
        ([9, 9, 9, 11, 11], 10),
        ([7, 7, 7], 10),
        ([], 10),
    ],
)
def test_an_epoch_is_believed_when_most_users_report_it(others, expected):
    assert part_of_the_run(10).believed(10, "me", claims(*others), 3 * SHORTEST_S) == expected


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([11], 11),  # of two users the one that is behind may have missed a round
        ([10, 11], 10),
        ([11, 11], 11),
        ([10, 11, 11], 11),
        ([10, *[("eve", 11)] * 4], 10),
        ([9, 9], 9),
    ],
)
def test_a_round_is_of_no_later_epoch_than_half_of_the_users_report(others, expected):
    believes = part_of_the_run(10)
    believes.believed(10, "me", claims(*others), 3 * SHORTEST_S)
    assert believes.reported == expected


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([9], 10),  # of two users the later one says the epoch
        ([9, 9], 9),
        ([9, 10], 10),
        ([9, 9, 10], 10),
        ([9, 9, 9, 10], 9),
        ([*[("eve", 9)] * 4, 10], 10),
        ([11, 11], 10),
        ([], 10),
    ],
)
def test_a_round_is_of_no_earlier_epoch_than_most_users_report(others, expected):
    believes = part_of_the_run(10)
    believes.believed(10, "me", claims(*others), 3 * SHORTEST_S)
    assert believes.least == expected


def test_a_newcomer_may_be_in_a_round_of_any_epoch_of_the_run():
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    believes.believed(0, "me", claims(7, 7, 8), 0.0)
    assert believes.reported == believes.latest == 7 + SLACK


def test_epochs_pass_no_faster_than_they_can():
    believes = part_of_the_run(10)
    assert believes.believed(10, "me", claims(11, 11, 11), 0.9 * SHORTEST_S) == 10
    assert believes.believed(10, "me", claims(11, 11, 11), 1.1 * SHORTEST_S) == 11
    assert believes.believed(10, "me", claims(TOTAL, TOTAL, TOTAL), 2.1 * SHORTEST_S) == 12
    assert believes.believed(10, "me", claims(15, 15, 15), 60 * SHORTEST_S) == 15, "a peer that slept catches up"


def test_who_takes_an_epoch_again_believes_no_more_of_the_next_ones_for_it():
    believes = part_of_the_run(10)
    believes.enter(9, 10, 5 * SHORTEST_S)
    assert believes.believed(9, "me", claims(TOTAL, TOTAL, TOTAL), 6.1 * SHORTEST_S) == 10


def test_a_peer_whose_clock_was_set_back_follows_the_others_and_counts_their_samples():
    believes, counts, ahead = EarnedEpochs(TOTAL, SHORTEST_S), EarnedSamples(TARGET, 0.5, SHORTEST_S), 3600.0
    believes.enter(10, 10, ahead)
    assert believes.believed(10, "me", claims(10), ahead) == 10
    counts.look(10, "me", claims(10, samples=10, per_s=1.0, time=ahead), ahead)
    assert believes.believed(10, "me", claims(11, 11), 0.0) == 10, "an epoch takes its time"
    assert believes.believed(10, "me", claims(11, 11), 1.1 * SHORTEST_S) == 11
    counts.look(10, "me", claims(10, samples=11, per_s=1.0, time=0.0), 0.0)
    ((samples, _),) = counts.look(10, "me", claims(10, samples=13, per_s=1.0, time=2.0), 2.0)
    assert samples == pytest.approx(13)


def test_a_peer_of_two_that_was_away_asks_for_the_others_state_but_counts_no_epoch_for_it():
    believes = part_of_the_run(10)
    assert believes.believed(10, "me", claims(30), 25 * SHORTEST_S) == 10
    assert (believes.ahead, believes.latest) == (30, 30 + SLACK)
    assert believes.believed(10, "me", claims(TOTAL), 26 * SHORTEST_S) == 10
    assert (believes.ahead, believes.latest) == (10, 10 + SLACK), "no such time has passed"


@pytest.mark.parametrize(
    ("others", "expected"),
    [([12], 12), ([12, 12], 12), ([12, TOTAL], 12), ([12, 12, TOTAL], 12), ([0, 0], 0), ([7, 7, 7, 12], 7)],
)
def test_a_newcomer_looks_for_a_state_of_the_epoch_that_most_report(others, expected):
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    assert believes.believed(0, "me", claims(*others), 1.0) == expected
    assert (believes.ahead, believes.latest) == (expected, expected + SLACK)


def test_a_newcomer_has_a_vote_once_it_has_taken_part():
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    assert believes.believed(0, "me", claims(TOTAL), 0.0) == TOTAL
    believes.enter(1, TOTAL, 1.0)  # nobody gave it a state, and it has made a step of its own
    assert believes.believed(1, "me", claims(TOTAL), 1.0) == TOTAL
    believes.enter(30, 30, 2.0)  # it has taken over a state
    assert believes.believed(30, "me", claims(TOTAL), 1e6) == 30
    assert believes.believed(30, "me", claims(30, TOTAL), 1e6) == 30


def test_a_peer_that_began_alone_is_not_carried_off_by_the_first_that_comes():
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    believes.believed(0, "me", [], 0.0)
    believes.enter(1, 0, 5.0)
    assert believes.believed(1, "me", claims(TOTAL), 6.0) == 1
    assert believes.ahead == 1


def test_a_whole_run_that_starts_again_goes_on_from_where_most_were():
    believes = EarnedEpochs(TOTAL, SHORTEST_S)
    assert believes.believed(30, "me", [], 0.0) == 30
    assert believes.believed(30, "me", claims(31), 1.0) == 31
    assert believes.believed(30, "me", claims(31, 30), 2.0) == 30
    assert believes.believed(30, "me", claims(31, 30, TOTAL), 3.0) == 31


def samples(share: float = 1.0) -> EarnedSamples:
    return EarnedSamples(TARGET, share, SHORTEST_S)


def test_a_records_date_brings_no_samples():
    believes = samples(share=0.34)
    honest = claims(5, 5, samples=10, per_s=0.1, time=100.0)
    liar = Claim("liar", "eve", 5, samples=0, per_s=1e12, time=40.0)
    found = believes.look(5, "me", [*honest, liar], 100.0)
    assert found[:2] == [(10.0, 0.1)] * 2
    assert found[2] == (0.0, 0.34 * TARGET / SHORTEST_S), "the liar claims to have computed for 60 s"
    ((_, _, (later, _)),) = [believes.look(5, "me", [*honest, liar], 101.0)]
    assert later == pytest.approx(0.34 * TARGET / SHORTEST_S)
    for date in 1e12, -1e12, math.nan, math.inf, -math.inf:
        again = Claim("liar", "eve", 5, samples=1, per_s=1e12, time=date)
        assert believes.look(5, "me", [again], 101.5)[0][0] <= 0.34 * TARGET


def test_a_peers_samples_grow_no_faster_than_they_can_and_with_an_honest_speed():
    believes = samples()
    believes.look(5, "me", claims(5, samples=10, per_s=2.0, time=100.0), 100.5)
    assert believes.look(5, "me", claims(5, samples=10, per_s=2.0, time=100.0), 102.0) == [(13.0, 2.0)]
    assert believes.look(5, "me", claims(5, samples=16, per_s=2.0, time=103.0), 104.0) == [(18.0, 2.0)]
    assert believes.look(5, "me", claims(5, samples=10**12, per_s=2.0, time=105.0), 105.0) == [(28.0, 2.0)]
    assert believes.look(6, "me", claims(6, samples=10**12, per_s=2.0, time=106.0), 106.0) == [(10.0, 2.0)]


def test_who_hides_for_a_look_has_no_samples_at_once_when_it_is_seen_again():
    believes = samples()
    (honest,) = claims(5, samples=10, per_s=1.0, time=0.0)
    believes.look(5, "me", [honest], 0.0)
    for epoch, now in (6, 20.0), (7, 23.0), (8, 26.0):
        liar = Claim("liar", "eve", epoch, samples=int(TARGET), per_s=1.0, time=0.0)
        hidden = Claim("liar", "eve", epoch, samples=0, per_s=0.0, time=0.0)
        believes.look(epoch, "me", [honest, hidden], now)
        _, (found, _) = believes.look(epoch, "me", [honest, liar], now + 1.0)
        assert found == pytest.approx(TARGET / SHORTEST_S), "the epoch began a second ago"
        believes.look(epoch, "me", [honest], now + 2.0)
    assert believes.look(8, "me", [honest, liar], 26.0 + SHORTEST_S)[1][0] == TARGET, "as in any other epoch"


def test_a_users_peers_share_the_limit_of_the_user():
    told = claims(*[("eve", 5)] * 4, ("ada", 5), samples=90, per_s=50.0)
    assert samples(share=0.4).look(5, "me", told, 0.0) == [(40.0, 4.0), (40.0, 4.0)]


def test_two_users_whose_shares_make_no_whole_are_not_cut():
    assert samples(share=0.5).look(5, "me", claims(5, samples=80), 0.0) == [(80.0, 1e-9)]
    assert samples(share=0.5).look(5, "me", claims(5, 5, samples=80), 0.0) == [(50.0, 1e-9)] * 2


def test_who_waits_to_count_is_no_user_of_whose_samples_an_epoch_must_have_some():
    waiting = claims(*[("new", 2)] * 3, ("newer", 2), samples=80, per_s=0.0)
    assert samples(share=0.5).look(5, "me", [*claims(5, samples=80), *waiting], 0.0) == [(80.0, 1e-9)]
    believes = samples(share=0.5)
    assert believes.look(5, None, claims(5, 5, samples=80), 0.0) == [(80.0, 1e-9)] * 2, "of a newcomer itself"
    assert believes.max_samples == TARGET


def test_who_waits_to_count_has_no_vote_of_its_own():
    believes = part_of_the_run(10)
    assert believes.believed(10, "me", claims(11), 3 * SHORTEST_S) == 10
    assert believes.believed(10, None, claims(11), 3 * SHORTEST_S) == 11


def test_the_last_of_two_ends_its_epoch_with_the_samples_of_the_one_that_went_ahead():
    believes = samples()
    believes.look(5, "me", claims(5, samples=40, per_s=2.0, time=100.0), 100.0)
    assert believes.look(5, "me", claims(6, samples=0, per_s=2.0, time=105.0), 110.0) == [(60.0, 2.0)]
    assert believes.look(5, "me", claims(6, samples=3, per_s=2.0, time=111.0), 120.0) == [(80.0, 2.0)]
    assert believes.look(6, "me", claims(6, samples=3, per_s=2.0, time=111.0), 120.5)[0][0] <= 5.0
    assert believes.look(7, "me", claims(6, samples=3, per_s=2.0, time=111.0), 121.0) == [(0.0, 2.0)]


def test_the_end_of_an_epoch_is_when_own_samples_fill_what_others_may_not():
    assert seconds_until(100, 40, 2.0, [], math.inf) == 30.0
    assert seconds_until(100, 40, 2.0, [(20, 2.0)], 100) == 10.0
    # Others come to 34 after 7 s, and then this peer's own samples alone remain.
    assert seconds_until(100, 0, 1.0, [(20, 2.0)], 34) == pytest.approx(66.0)
    assert seconds_until(100, 0, 1.0, [(0, 1e12)], 34) == pytest.approx(66.0)
    assert seconds_until(100, 0, 1.0, [(90, 0.0)], 34) == 66.0
    assert seconds_until(100, 60, 1.0, [(50, 0.0)], 100) == 0.0


def test_who_has_left_all_others_behind_believes_no_end_of_the_run():
    believes = part_of_the_run(50)
    assert believes.believed(60, "me", claims(50, 50, 50), 1.0) == 60
    assert believes.latest == 60 + SLACK
