"""Strangers choose how often they are complained of; what reaches a peer's files and terminal stays bounded."""

import multiprocessing
import time

from dalle_lib.swarm.averaging.complaints import BURST, BURST_OF_ONE, MAX_PEERS, MAX_TEXT, PER_S, Complaints, Pace


def test_a_flood_of_complaints_is_counted_and_the_next_one_says_how_many():
    now = 0.0
    pace = Pace(clock=lambda: now)
    told = [pace.paced("refused") for _ in range(BURST + 900)]
    assert told == ["refused"] * BURST + [None] * 900
    now = 1.5 / PER_S
    assert pace.paced("refused") == "refused (and 900 more problems, which are not told)"
    assert pace.paced("refused") is None
    now = 1e6
    assert pace.paced("refused") == "refused (and 1 more problems, which are not told)"
    assert [pace.paced("refused") for _ in range(BURST)].count(None) == 1


def test_a_complaint_is_one_line_of_bounded_length_that_a_terminal_shows_as_it_is():
    told = Pace().paced("its answer:\n\x1b[2J" + "x" * 10**7)
    assert told.startswith("its answer: \\x1b[2Jxxx")
    assert len(told) == MAX_TEXT + 3


def read_until(complaints: Complaints, last: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what is read until `last` is: a thread of the queue hands it over, a while later if cores are busy."""
    told, deadline = [], time.monotonic() + 60
    while last not in told and time.monotonic() < deadline:
        told += complaints.read()
        time.sleep(0.01)
    return told


def test_one_process_tells_and_another_one_reads():
    complaints = Complaints()
    teller = multiprocessing.get_context("fork").Process(target=complaints.tell, args=("eve", "lies"))
    teller.start()
    teller.join()
    assert complaints.read() == [("eve", "lies")]
    assert complaints.read() == []


def test_one_that_floods_a_peer_with_requests_keeps_nobody_else_from_being_named():
    complaints = Complaints()
    for number in range(10 * BURST):
        complaints.tell("eve", f"refused {number}", is_request=True)
    complaints.tell("bob", "refused", is_request=True)
    complaints.tell("eve", "lies")
    told = read_until(complaints, ("eve", "lies"))
    assert [peer for peer, _ in told] == ["eve"] * BURST_OF_ONE + ["bob", "eve"]
    assert told[-1] == ("eve", "lies")


def test_requests_of_any_number_of_peers_hide_no_deed():
    complaints = Complaints()
    for number in range(2 * BURST):
        complaints.tell(f"eve{number}", "refused", is_request=True)
    complaints.tell("eve0", "lies")
    assert read_until(complaints, ("eve0", "lies"))[-1] == ("eve0", "lies")


def test_the_paces_of_many_peers_take_bounded_memory():
    complaints = Complaints()
    for number in range(2 * MAX_PEERS):
        complaints.tell(f"eve{number}", "refused")
    assert len(complaints._paces) == MAX_PEERS
