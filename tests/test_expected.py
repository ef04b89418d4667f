"""Whom a group waits for, and how long."""

import math
import multiprocessing
import os
import signal

import pytest
from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging import expected
from dalle_lib.swarm.averaging.expected import Expected, GroupPatience, Told

OWN, ADA, BOB, EVE = (PeerID(bytes([18, 32]) + bytes([number]) * 32) for number in range(4))
NOW = 1000.0
PATIENCE = GroupPatience(least_s=3.0, longest_s=10.0)
JUST = Told(NOW - 0.1)
GONE = Told(NOW - 10.1)


def begins(group, known, looking=(), waited_s: float = 0.0, is_due: bool = True) -> bool:
    return PATIENCE.begins({OWN, *group}, known, looking, is_due=is_due, now=NOW, waited_s=waited_s)


def test_a_group_begins_at_once_when_all_are_there_and_not_before():
    known = {ADA: JUST, BOB: JUST}
    assert begins([ADA, BOB], known, looking=[OWN, ADA])
    assert begins([ADA, BOB, EVE], known), "one more than is expected"
    assert not begins([ADA], known)
    assert not begins([ADA, BOB], known, looking=[OWN, EVE]), "one looks for a group, of whom no record is known"
    assert not begins([ADA], {ADA: JUST, BOB: GONE}), "it waits a little for those who may be gone, too"


def test_a_group_does_not_begin_long_before_its_round():
    """Whoever goes in between would hold up the round."""
    assert not begins([ADA, BOB], {ADA: JUST, BOB: JUST}, is_due=False)
    assert begins([ADA, BOB], {ADA: JUST, BOB: JUST}, waited_s=3.1, is_due=False)


def test_nobody_is_left_out_because_nothing_is_known_yet():
    assert not begins([ADA], None)
    assert begins([ADA], None, waited_s=3.1)
    assert not begins([ADA], None, looking=[BOB], waited_s=3.1)


def test_it_waits_longer_for_those_alone_who_are_ready():
    assert not begins([ADA], {ADA: JUST, BOB: JUST}, waited_s=9.9)
    assert begins([ADA], {ADA: JUST, BOB: GONE}, waited_s=3.1)
    assert not begins([ADA], {ADA: JUST, BOB: GONE}, looking=[BOB], waited_s=3.1)


def test_all_processes_know_who_is_expected_in_which_round():
    known = Expected()
    assert known.of(0) is None, "nobody has looked"
    others = {ADA: Told(NOW), BOB: Told(-math.inf, counts=False)}
    teller = multiprocessing.get_context("fork").Process(
        target=known.tell, args=(7, {peer.to_bytes(): told for peer, told in others.items()})
    )
    teller.start()
    teller.join()
    assert known.of(7) == known.of(6) == others, "parameters after epoch 6 are averaged in epoch 7"
    assert known.of(8) is None, "those are the records of the epoch before"
    assert known.of(5) is None
    known.tell(8, {})
    assert known.of(8) == {}


@pytest.mark.parametrize("more", [0, 1])
def test_of_more_peers_than_there_is_room_for_nobody_is_expected(more, monkeypatch):
    monkeypatch.setattr(expected, "MAX_EXPECTED", 3)
    known, ids = Expected(), [PeerID(number.to_bytes(64)) for number in range(3 + more)]
    known.tell(1, {peer.to_bytes(): Told(NOW) for peer in ids})
    assert known.of(1) == (None if more else dict.fromkeys(ids, Told(NOW)))


def hold_for_good(known: Expected) -> None:
    known._memory.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_with_the_table_in_hand_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(expected, "LOCK_S", 0.1)
    known = Expected()
    known.tell(7, {ADA.to_bytes(): Told(NOW)})
    killed = multiprocessing.get_context("fork").Process(target=hold_for_good, args=(known,))
    killed.start()
    killed.join()
    assert known.of(7) is None
    known.tell(8, {})


@pytest.mark.parametrize(
    ("longest_s", "why"), [(1.0, "is below matchmaking_s=3"), (11.0, "above half of timeout_s=20")]
)
def test_a_card_refuses_a_time_that_no_round_waits_or_that_leaves_none(mini, longest_s, why):
    with pytest.raises(ValueError, match=f"longest_matchmaking_s={longest_s:g} .*{why}"):
        mini.with_changes(averaging={**mini.averaging.model_dump(), "longest_matchmaking_s": longest_s})
