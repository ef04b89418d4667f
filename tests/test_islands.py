"""Whose parameters go on after a split: the same for all, by users first. Records are made up here, and so is time."""

import pytest
from bare_optimizer import waiting
from hypothesis import given
from hypothesis import strategies as st
from test_progress import PEERS, progress, record, tracker

from dalle_lib.swarm.averaging.complaints import RUN
from dalle_lib.swarm.averaging.earned import Claim
from dalle_lib.swarm.averaging.islands import Island, Parted, goes_on
from dalle_lib.swarm.averaging.run_optimizer import RUN_SPLIT

__all__ = ["tracker"]
SHORTEST_S, LONG_AGO = 10.0, 10**6


def claim(peer: str, epoch: int, user: str | None = None) -> Claim:
    return Claim(peer, user or peer, epoch, samples=0, per_s=1.0, time=0.0)


def island(epoch: int, *peers: str, beside: set[str]) -> Island:
    return Island(epoch, frozenset(peers), frozenset(peers), frozenset(beside))


def side(name: str, users: int, epoch: int) -> list[Claim]:
    return [claim(f"{name}{number}", epoch) for number in range(users)]


def winner(*sides: list[Claim]) -> str:
    """Return the name of the side that goes on, as its users are called."""
    return min(goes_on([claim for each in sides for claim in each]).users)[0]


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([("a", 3, 10), ("b", 2, 14)], "a"),  # fewer could claim anything
        ([("a", 3, 14), ("b", 2, 10)], "a"),
        ([("a", 2, 10), ("b", 2, 14)], "b"),  # halves: more samples
        ([("a", 2, 10), ("b", 3, 20), ("c", 2, 30)], "b"),
        ([("a", 2, 10), ("b", 2, 20), ("c", 2, 30)], "c"),
        ([("a", 2, 10), ("b", 2, 20), ("c", 1, 10**9)], "b"),
        ([("a", 1, 10), ("b", 1, 20), ("c", 1, 10**9)], "b"),  # a liar beside two that are alone
        ([("a", 1, 10), ("b", 1, 20), ("c", 1, 30), ("d", 1, 10**9)], "c"),
        ([("a", 1, 10), ("b", 1, 20)], "b"),
        ([("a", 4, 3)], "a"),
    ],
)
def test_the_side_of_most_users_goes_on_and_of_equal_ones_that_with_more_samples(sides, expected):
    assert winner(*(side(*each) for each in sides)) == expected


def test_peers_that_end_an_epoch_at_moments_of_their_own_are_one_side():
    assert winner([*side("a", 2, 10), claim("a2", 11)], side("b", 2, 20)) == "a"
    assert goes_on([claim("a0", 10), claim("a1", 11), claim("b", 20)]) == island(11, "a0", "a1", beside={"b"})


claims = st.lists(
    st.builds(claim, st.text("pqrs", min_size=3, max_size=3), st.integers(0, 12), st.sampled_from("abcdef")),
    min_size=1,
    max_size=20,
    unique_by=lambda made: made.peer,
)


@given(claims, st.randoms(use_true_random=False))
def test_all_who_hear_the_same_find_the_same_whatever_they_hear_first(heard, random):
    expected = goes_on(heard)
    random.shuffle(heard)
    assert goes_on(heard) == expected


@given(
    honest=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 60)), min_size=1, max_size=4),
    lies=st.lists(st.integers(0, 10**9), min_size=1, max_size=12),
)
def test_one_user_never_wins_against_more_whatever_its_peers_claim(honest, lies):
    """It has a vote, and so can side with others against as many as these are with it."""
    heard = [each for number, (users, epoch) in enumerate(honest) for each in side("wxyz"[number], users, epoch)]
    heard += [claim(f"liar{number}", epoch, "liar") for number, epoch in enumerate(lies)]
    largest = max(users for users, _ in honest)
    found = goes_on(heard)
    assert len(found.users - {"liar"}) >= largest - 1
    assert len(found.users) >= largest


@given(
    users=st.integers(1, 6),
    fewer=st.integers(1, 5),
    epochs=st.tuples(st.integers(2, 50), st.integers(2, 50)).filter(lambda both: abs(both[0] - both[1]) > 1),
)
def test_fewer_users_never_win_and_a_majority_always_does(users, fewer, epochs):
    if fewer < users:
        assert winner(side("a", users, epochs[0]), side("b", fewer, epochs[1])) == "a"
    else:
        assert winner(side("a", users, epochs[0]), side("b", users, epochs[1])) == "ab"[epochs[1] > epochs[0]]


def looks(own_epoch: int, *others: list[Claim], parted: Parted | None = None) -> Parted:
    """Return what a peer knows of others after looks that find these claims, one after the other."""
    parted = parted or Parted(SHORTEST_S)
    for at, found in enumerate(others):
        parted.look(claim("own", own_epoch), found, LONG_AGO, float(at))
    return parted


def test_a_peer_whose_side_does_not_go_on_knows_it_after_two_looks_at_others_that_go_on():
    assert looks(20, side("b", 2, 10), side("b", 2, 11)).others is None, "one look may be wrong"
    parted = looks(20, side("b", 2, 10), side("b", 2, 11), side("b", 2, 11))
    assert parted.others == island(11, "b0", "b1", beside={"own"})
    assert parted.apart == {"b0", "b1"}
    assert not parted.left_aside, "they are the measure now"
    assert looks(11, side("b", 2, 11), parted=parted).others is None, "now it is of that side"


def test_the_dead_have_no_say_whoever_they_were():
    before = side("b", 4, 10)
    assert looks(13, *[before] * 5).others is None
    assert not looks(13, *[before] * 5).apart
    lived = [*before[:3], claim("b3", 11)]
    assert looks(13, before, lived, lived).apart == {"b3"}, "only who goes on"


def test_who_is_late_or_early_by_an_epoch_is_not_apart():
    for epoch in 9, 10, 11:
        parted = looks(10, *[side("b", 3, epoch)] * 3)
        assert (parted.others, parted.apart) == (None, frozenset())


def test_the_side_that_goes_on_stays_where_it_is():
    behind = [side("b", 2, 10), side("b", 2, 11), side("b", 2, 11)]
    together = [[*side("a", 2, 20), *each] for each in behind]
    assert looks(20, *together).others is None
    assert looks(20, *together).apart == looks(20, *together).left_aside == {"b0", "b1"}


@pytest.mark.usefixtures("no_event_loop")
def test_a_peer_tells_that_the_run_is_split_and_that_it_is_one_again_when_those_who_were_apart_are_in_step():
    peer, parted = waiting(eta_s=300.0), Parted(SHORTEST_S)
    peer.tracker.parted = parted

    def told(own_epoch: int | None, *others: list[Claim]) -> list[str]:
        for found in others:
            parted.look(own_epoch and claim("own", own_epoch), found, LONG_AGO, 0.0)
        return list(peer._split())

    near, gone, apart, back = side("b", 2, 10), [], side("b", 2, 18), side("b", 2, 20)
    assert told(10, near) == told(12, gone) == []
    (split,) = told(13, apart, side("b", 2, 19))
    assert split == (RUN, RUN_SPLIT.format("2 peers train"))
    assert told(14, side("b", 2, 19)) == [], "it is told once"
    assert told(14, gone) == told(None, back) == [], "nobody knows yet"
    assert told(20, back) == [(RUN, "The run is one again: 2 peers that trained apart train with yours")]
    assert told(21, back) == []
    told(23, gone)
    (split,) = told(24, [claim("b0", 30)], [claim("b0", 31)])
    assert split == (RUN, RUN_SPLIT.format("1 peer trains"))
    assert told(31, [claim("b0", 31)]) == [(RUN, "The run is one again: 1 peer that trained apart trains with yours")]


def test_a_newcomer_has_no_side():
    parted = looks(20, side("b", 2, 10), side("b", 2, 11), side("b", 2, 11))
    parted.look(None, side("b", 2, 11), LONG_AGO, 9.0)
    assert (parted.others, parted.apart) == (None, frozenset())


def test_a_side_is_believed_as_far_as_the_time_since_it_was_in_step_allows():
    parted = Parted(SHORTEST_S)
    parted.look(claim("own", 5), side("b", 2, 5), 6, 0.0)
    for epoch in 30, 31, 32:
        parted.look(claim("own", 20), side("b", 2, epoch), 21, 250.0)
    assert not parted.apart, "25 epochs at most"
    for epoch in 28, 29, 29:
        parted.look(claim("own", 20), side("b", 2, epoch), 21, 300.0)
    assert parted.others is not None
    for epoch in 28, 29, 29:
        parted.look(claim("own", 20), [*side("b", 2, 20), *side("c", 3, epoch)], 21, 300.0)
    assert not parted.apart, "nobody has ever met these"


def test_since_when_a_side_was_apart_is_the_last_epoch_in_step_with_one_of_it():
    parted = looks(5, [claim("b0", 5), claim("b1", 4)])
    for own in 6, 7, 8, 9:  # the records of those that are cut off live on
        parted.look(claim("own", own), [claim("b0", 5), claim("b1", 4)], LONG_AGO, 1.0)
    parted.look(claim("own", 12), [claim("b0", 7), claim("c", 8), claim("d", 20)], LONG_AGO, 2.0)
    assert parted.together_until(7, "b1") == 4
    assert parted.together_until(8, "c") == parted.together_until(8, None) == 5, "as one of its side says"
    assert parted.together_until(20, "d") is None


def test_who_merely_lags_is_not_apart_however_many_lag():
    parted = Parted(1.0)
    slow = [claim("a", 10), claim("b", 10), claim("c", 10)]
    for own in range(10, 20):
        parted.look(claim("own", own), slow, LONG_AGO, float(own))
        slow = [claim(each.peer, 10 + (own - 10) // 3) for each in slow]
        assert not parted.apart
    parted.look(claim("own", 20), [], LONG_AGO, 20.0)
    for epoch in 14, 15, 15:
        parted.look(claim("own", 20), [claim(each.peer, epoch) for each in slow], LONG_AGO, 21.0)
    assert parted.apart == parted.parted_from == {"a", "b", "c"}
    assert parted.others.epoch == 15


def test_a_newcomer_that_is_behind_is_not_parted_from_anybody():
    parted = looks(0, *[[claim("a", epoch), claim("b", epoch)] for epoch in (5, 6, 6)])
    assert (parted.apart, parted.parted_from) == ({"a", "b"}, frozenset())
    assert not looks(0, [claim("a", 5)], [claim("a", 6)]).left_aside, "it would take itself to be alone"


def test_who_trains_apart_counts_for_nothing_unless_it_is_to_go_on(tracker):
    here = [record(10, peer) for peer in (0, 1, 2)]
    for epoch in 5, 6, 6:
        found = progress(tracker, [*here, record(epoch, peer=3)])
    assert tracker.parted.apart == {PEERS[3].peer_id}
    assert (found.num_peers, tracker.parted.others) == (3, None)
    progress(tracker, [here[0], record(6, peer=3)])  # the network is cut, and the records of the others are gone
    for epoch in 5, 6, 6:
        found = progress(tracker, [here[0], *(record(epoch, peer) for peer in (1, 2, 3))])
    assert (found.num_peers, tracker.parted.others.epoch) == (4, 6)
