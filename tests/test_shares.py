"""Who reduces how much: the same for all who compute it, by the word of vouched peers alone."""

import random
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import hivemind
import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, issued
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st

from dalle_lib.auth import Role, Roster
from dalle_lib.swarm.averaging.carried import STEPS, mark_of
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.shares import EQUAL_EVERY, NEAR, WHOLE, caps, filled_up, rate_of, shares_of
from dalle_lib.swarm.averaging.trust import Trust

PEERS = [PeerID(bytes([18, 32]) + bytes([number]) * 32) for number in range(16)]
SLOW, FAST = 80, 80 + 4 * STEPS  # about 1 and 16 MB/s


class Vouching(Trust):
    """The trust of a run whose vouched peers are given."""

    vouched: Collection[str]

    def is_vouched(self, peer_id: str) -> bool:
        return peer_id in self.vouched


def trust(vouched: Collection[int] = range(16)) -> Trust:
    made = Vouching(measures=True)
    object.__setattr__(made, "vouched", {str(PEERS[number]) for number in vouched})
    return made


def tells(levels: dict[int, int]) -> bytes:
    return b"".join(mark_of(PEERS[number]) + bytes([level]) for number, level in levels.items())


def group(levels: list[int], lies: dict[int, dict[int, int]] | None = None, epoch: int = 1) -> dict:
    """Return what a group of peers of these levels tells: the truth about all others, but for those that lie."""
    told = {}
    for number, peer in enumerate(PEERS[: len(levels)]):
        truth = {other: level for other, level in enumerate(levels) if other != number}
        told[peer] = Introduction(epoch=epoch, carried=tells((lies or {}).get(number, truth)))
    return told


def parts(levels: list[int], vouched: Collection[int] = range(16), **options) -> list[float]:
    shares = shares_of(group(levels, **options), trust(vouched))
    return [share / sum(shares) for share in shares]


def test_who_is_slow_reduces_nothing_where_vouched_peers_can():
    assert parts([SLOW, SLOW, FAST, FAST]) == [0, 0, 0.5, 0.5]
    assert parts([SLOW] * 6 + [FAST] * 2, vouched=(6, 7)) == [0] * 6 + [0.5] * 2


def test_a_home_peer_reduces_nothing_beside_two_reducers_of_an_organiser_and_clients():
    """Nobody else measures it, and it alone measures them, apart from each other."""
    gigabit, home = 138, 82
    told = group([gigabit, gigabit, home, *[home] * 8])
    for peer in PEERS[3:11]:
        told[peer] = Introduction(epoch=1, is_reducer=False)
    assert [share / WHOLE for share in shares_of(told, trust(vouched=(0, 1)))] == [0.5, 0.5] + [0] * 9


def test_equal_links_reduce_alike_and_somewhat_faster_ones_somewhat_more():
    assert parts([SLOW] * 4) == pytest.approx([0.25] * 4, abs=1e-4)
    assert parts([SLOW, SLOW, SLOW + NEAR, SLOW - NEAR]) == parts([SLOW] * 4)
    slower, *_, faster = shares = parts([SLOW, SLOW, SLOW, SLOW + NEAR + 1])
    assert 0.1 < slower < 0.25 < faster <= 0.5
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("answer_size", [1, 2])
def test_shares_leave_the_fullest_link_as_little_to_do_as_any_others_could(answer_size):
    """The reference: the same in fractions, where the moment at which all is shared out follows from who gets any."""
    for seed in range(200):
        chosen = random.Random(seed)
        levels = [chosen.randint(0, 80) for _ in range(chosen.randint(3, 12))]
        rates = [Fraction(rate_of(level)) for level in levels]
        per_share = answer_size * (len(rates) - 1) - 1
        for count in range(len(rates), 0, -1):
            best = sorted(rates, reverse=True)[:count]
            moment = Fraction(per_share + count) / sum(best)
            if moment * best[-1] >= 1:
                break
        expected = [max(Fraction(0), moment * rate - 1) / per_share for rate in rates]
        found = filled_up(levels, [WHOLE] * len(levels), len(levels), answer_size)
        assert sum(found) == WHOLE
        assert [share / WHOLE for share in found] == pytest.approx(list(map(float, expected)), abs=len(levels) / WHOLE)


def group_that_says_anything(count: int, chosen: random.Random) -> dict:
    lies = {number: {other: chosen.randint(0, 255) for other in range(count)} for number in range(count)}
    return group([SLOW] * count, lies)


@given(st.integers(3, 16), st.randoms(use_true_random=False))
def test_whatever_is_told_no_stranger_reduces_more_than_if_all_reduced_alike(count, chosen):
    vouched = tuple(chosen.sample(range(count), chosen.randint(0, count)))
    run, reducers = trust(vouched), PEERS[:count]
    shares = shares_of(group_that_says_anything(count, chosen), run)
    assert all(type(share) is int and share >= 0 for share in shares)
    alike = sum(shares) / count
    assert all(share <= alike + 1 for number, share in enumerate(shares) if number not in vouched)
    assert sum(shares[number] for number in vouched) >= len(vouched) * alike - count
    if vouched and max(shares) > 1:
        assert sum(shares) == WHOLE
        assert all(share <= cap for share, cap in zip(shares, caps(reducers, run), strict=True))


@given(st.integers(3, 12), st.randoms(use_true_random=False))
def test_what_strangers_say_moves_nothing(count, chosen):
    vouched = tuple(chosen.sample(range(count), chosen.randint(1, count - 1)))
    levels = [chosen.randint(0, 255) for _ in range(count)]
    lies = {
        number: {other: chosen.randint(0, 255) for other in range(count)}
        for number in range(count)
        if number not in vouched
    }
    assert parts(levels, vouched, lies=lies) == parts(levels, vouched)


def test_two_colluding_members_take_nothing_away_from_an_organisers_reducers():
    lies = {2: {0: 0, 1: 0, 3: 255}, 3: {0: 0, 1: 0, 2: 255}}
    for level in SLOW, FAST + 40:  # what the two really upload
        told = group([FAST, FAST, level, level, *[SLOW] * 10], lies)
        for peer in PEERS[4:14]:
            told[peer] = Introduction(epoch=1, is_reducer=False)
        shares = [share / WHOLE for share in shares_of(told, trust(vouched=(0, 1)))]
        assert sum(shares[:2]) == pytest.approx(1.0 if level == SLOW else 0.5, abs=1e-4)


def test_the_order_in_which_others_measured_does_not_matter():
    levels = [SLOW, SLOW + 3, FAST, FAST - 7, SLOW + 9]
    told = group(levels)
    for peer, of in told.items():
        entries = [of.carried[place : place + 9] for place in range(0, len(of.carried), 9)]
        told[peer] = replace(of, carried=b"".join(reversed(entries)))
    assert shares_of(told, trust()) == shares_of(group(levels), trust())


def test_who_was_measured_by_nobody_is_taken_for_a_typical_one():
    silent = {number: {} for number in range(4)}
    assert parts([SLOW] * 4, lies=silent) == [0.25] * 4
    one = silent | {0: {1: FAST, 2: SLOW, 3: SLOW}}
    assert parts([SLOW] * 4, vouched=(0,), lies=one) == pytest.approx([0.25] * 4, abs=1e-4)


def test_a_peer_that_tells_of_itself_moves_nothing():
    levels = [SLOW, SLOW, FAST, FAST, SLOW]
    boast = {number: level for number, level in enumerate(levels) if number} | {0: 255}
    assert parts(levels, lies={0: boast}) == parts(levels)


@pytest.mark.parametrize("level", [0, 255])
def test_one_vouched_peer_of_several_that_is_wrong_decides_nothing(level):
    levels = [FAST, FAST, FAST, SLOW, SLOW, SLOW]
    wrong = {0: dict.fromkeys(range(6), level)}
    assert parts(levels, vouched=(0, 1, 2, 3), lies=wrong) == parts(levels, vouched=(0, 1, 2, 3))


def test_a_stranger_that_is_really_fast_gets_an_equal_share_and_vouched_ones_half_of_all():
    levels = [FAST] * 2 + [0] * 14
    assert parts(levels, vouched=(14, 15))[:2] == pytest.approx([1 / 16] * 2, abs=1e-3)
    assert parts(levels, vouched=(0, 1)) == [0.5, 0.5] + [0] * 14


def test_all_reduce_alike_now_and_then_where_the_card_asks_for_it_and_in_pairs():
    levels = [SLOW, SLOW, FAST, FAST]
    assert parts(levels, epoch=EQUAL_EVERY * 3) == [0.25] * 4
    assert shares_of(group(levels), Trust()) == [1] * 4
    assert parts([SLOW, FAST]) == [0.5, 0.5]


def test_who_may_not_reduce_gets_nothing_and_is_believed_as_a_witness():
    told = group([SLOW, SLOW, FAST, FAST, FAST])
    told[PEERS[2]] = replace(told[PEERS[2]], is_reducer=False)
    assert [share / WHOLE for share in shares_of(told, trust())] == [0, 0, 0, 0.5, 0.5]
    for peer in PEERS[1:5]:
        told[peer] = replace(told[peer], is_reducer=False)
    assert [share > 0 for share in shares_of(told, trust())] == [True, False, False, False, False]


def test_a_level_is_an_eighth_of_an_octave():
    assert [rate_of(level) for level in (0, 8, 80)] == [1024, 2048, 2**20]
    assert all(abs(rate_of(level) / 1024 / 2 ** (level / 8) - 1) < 0.001 for level in range(256))


def test_who_shows_two_access_tokens_has_the_same_shares_for_all():
    """A peer may have two, and show others one, then the other: rosters keep the one that expires last."""
    eve, organiser = identity("eve"), identity("organiser")
    shown = issued(eve, "eve"), issued(eve, "mallory", role=Role.VOUCHED, valid_for=timedelta(hours=2))
    peers = [PeerID.from_base58(peer.peer_id) for peer in (eve, organiser)] + PEERS[:4]
    tokens = {str(peers[0]): shown[0].to_bytes(), str(peers[1]): issued(organiser, "org", role=Role.VOUCHED).to_bytes()}
    measured = b"".join(mark_of(peer) + bytes([level]) for peer, level in zip(peers, [FAST, SLOW] * 3, strict=True))
    told = {peer: Introduction(epoch=1, token=tokens.get(str(peer), b""), carried=measured) for peer in peers}
    found = []
    for known in shown:
        roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, hivemind.DHT(start=False))
        roster.learn(eve.peer_id, known)
        run = Trust(measures=True, roster=roster).of_group({str(peer): of.token for peer, of in told.items()})
        assert [run.user_of(str(peer)) for peer in peers[:3]] == ["eve", "org", str(peers[2])]
        found.append(shares_of(told, run))
    assert found[0] == found[1]
    assert found[0][0] <= found[0][1], "it is vouched for by what it did not show"


def test_strangers_reduce_nothing_in_rounds_that_measure_nor_all_where_others_spare_their_uploads():
    told = group([FAST, FAST, SLOW, SLOW], epoch=EQUAL_EVERY)
    assert [share / 2 for share in shares_of(told, trust(vouched=(0, 1)))] == [0.5, 0.5, 0, 0]
    told = {peer: Introduction(epoch=1, is_sparing=number < 5) for number, peer in enumerate(PEERS[:6])}
    assert shares_of(told, Trust()) == [1] * 6
    assert shares_of(told, trust(vouched=(5,))) == [0] * 5 + [1]
    told = {peer: Introduction(epoch=1, is_sparing=number < 4) for number, peer in enumerate(PEERS[:6])}
    assert shares_of(told, trust(vouched=(5,))) == [0] * 5 + [1], "a stranger gets half of all"
    assert shares_of(told, Trust()) == [1] * 6
