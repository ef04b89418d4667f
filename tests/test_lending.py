"""What holds a peer: its volunteer's wish, a schedule by the clock on the wall, the battery, other programs."""

import json
import os
import subprocess
import sys
import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dalle_lib.files import BrokenFile
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer import holding
from dalle_lib.swarm.peer.computing.room import limit_gpu
from dalle_lib.swarm.peer.holding import BUSY_SHARE, QUIET_S, Busy, Holder, OthersLoad, hold_now, is_of_peer
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.lending import (
    WISH,
    Hold,
    LendingSettings,
    Span,
    Wish,
    ask,
    forget_finish,
    hold_in_words,
    is_open,
    opens_at,
    take_back,
    wish_of,
)

BERLIN = ZoneInfo("Europe/Berlin")
DAY_MIN = 1440


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


@given(st.integers(0, DAY_MIN - 1), st.integers(1, DAY_MIN - 1))
def test_each_minute_of_a_day_is_in_a_span_or_in_that_of_the_rest(start, length):
    end = (start + length) % DAY_MIN
    span, rest = Span(start, end), Span(end, start)
    inside = [minute for minute in range(DAY_MIN) if span.holds(minute)]
    assert sorted(inside) == sorted((start + number) % DAY_MIN for number in range(length))
    assert all(span.holds(minute) != rest.holds(minute) for minute in range(DAY_MIN))
    written = f"{start // 60:02}:{start % 60:02}-{end // 60}:{end % 60:02}"
    assert Span.of(written) == span


def test_several_spans_are_joined_and_midnight_may_be_24_oclock():
    spans = LendingSettings(between=("12:00-13:30", "22:00-24:00")).spans
    hours = [is_open(spans, at(f"2026-11-26 {hour:02}:15"), BERLIN) for hour in range(24)]
    assert [hour for hour, opened in enumerate(hours) if opened] == [12, 13, 22, 23]


@pytest.mark.parametrize(
    "wrong", ["22-7", "25:00-07:00", "22:60-07:00", "07:00-07:00", "00:00-24:00", "24:00-07:00", ""]
)
def test_what_is_no_span_is_refused(wrong):
    with pytest.raises(ValueError, match="expected two different times of the day to compute between, such as 22:00"):
        PeerSettings(run="emoji-mini", between=(wrong,))


@pytest.mark.parametrize(
    ("text", "now", "opens"),
    [
        ("22:00-07:00", "2026-11-26 07:00", "2026-11-26 22:00"),
        ("06:00-07:00", "2026-11-26 07:00", "2026-11-27 06:00"),
        # On 2026-03-29 the clock goes from 2:00 to 3:00, and on 2026-10-25 from 3:00 back to 2:00.
        ("02:30-06:00", "2026-03-29 01:59", "2026-03-29 03:00"),
        ("02:10-02:40", "2026-03-29 00:00", "2026-03-30 02:10"),
        ("02:30-02:45", "2026-10-25 02:00", "2026-10-25 02:30"),
    ],
)
def test_it_is_known_when_a_schedule_opens_also_when_the_clock_changes(text, now, opens):
    spans = (Span.of(text),)
    assert not is_open(spans, at(now), BERLIN)
    found = opens_at(spans, at(now), BERLIN)
    assert datetime.fromtimestamp(found, BERLIN) == datetime.fromisoformat(opens).replace(tzinfo=BERLIN)
    assert is_open(spans, found, BERLIN)
    assert not is_open(spans, found - 60, BERLIN)


def test_an_hour_that_comes_twice_is_open_twice():
    spans = (Span.of("02:30-02:45"),)
    twice = [at("2026-10-25 02:35", fold=fold) for fold in (0, 1)]
    assert twice[1] - twice[0] == 3600
    assert all(is_open(spans, when, BERLIN) for when in twice)
    assert opens_at(spans, twice[0] + 900, BERLIN) == at("2026-10-25 02:30", fold=1)


def test_what_holds_a_peer_and_until_when_in_this_order():
    settings = LendingSettings(between=("22:00-07:00",), not_on_battery=True, only_when_idle=True)
    noon, night, pause = at("2026-11-26 12:00"), at("2026-11-26 23:00"), Wish(wish="pause", time=1.0)

    def held(now, wish=None, **others):
        return hold_now(settings, wish, now, zone=BERLIN, **others)

    assert held(noon, pause) == Hold("you")
    assert held(noon, on_battery=True) == Hold("schedule", at("2026-11-26 22:00"))
    assert held(night, on_battery=True, is_busy=True) == Hold("battery")
    assert held(night, is_busy=True) == Hold("busy")
    assert held(night) is None
    assert held(night, Wish(wish="finish", time=1.0)) is None
    assert hold_now(LendingSettings(), None, noon, on_battery=True, is_busy=True) is None


def test_each_hold_has_plain_words():
    night, noon = at("2026-11-26 22:00"), at("2026-11-26 12:00")
    assert hold_in_words(Hold("schedule", night), noon, BERLIN) == "paused until 22:00: your schedule"
    assert (
        hold_in_words(Hold("schedule", night), noon - 86400, BERLIN) == "paused until 22:00 (Thursday): your schedule"
    )
    assert [hold_in_words(Hold(reason)) for reason in ("you", "battery", "busy")] == [
        "paused by you",
        "paused: on battery, until it is plugged in",
        "paused: other programs use this machine, until they leave it alone",
    ]


def test_other_programs_hold_a_peer_at_once_and_for_a_minute_after():
    busy = Busy()
    assert not busy.is_busy(0.0)
    busy.note(BUSY_SHARE + 0.01, 5.0)
    assert busy.is_busy(5.0)
    busy.note(BUSY_SHARE - 0.01, 10.0)
    assert busy.is_busy(5.0 + QUIET_S - 1)
    assert not busy.is_busy(5.0 + QUIET_S)


@pytest.mark.parametrize(("own_s", "is_busy"), [(0.0, True), (9.0, False)])
def test_the_time_of_this_machines_peers_is_not_that_of_others(monkeypatch, own_s, is_busy):
    class Times(tuple):
        idle = property(lambda self: self[1])

    clock, spent, cores = iter([10.0, 20.0]), iter([100.0, 100.0 + own_s]), iter([(50.0, 500.0), (60.0, 510.0)])
    own = psutil.Process()
    monkeypatch.setattr(holding.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(holding.psutil, "cpu_times", lambda: Times(next(cores)))
    monkeypatch.setattr(holding.psutil, "process_iter", lambda: [own])
    monkeypatch.setattr(holding, "is_of_peer", lambda process: True)
    monkeypatch.setattr(own, "cpu_times", lambda: type("Times", (), {"user": next(spent), "system": 0.0}))
    load = OthersLoad()
    assert not load.is_busy()
    assert load.is_busy() == is_busy


def test_this_machine_can_be_measured_and_a_test_is_no_peer():
    load = OthersLoad()
    assert load.is_busy() is False
    assert not is_of_peer(psutil.Process())
    assert holding.on_battery() in (True, False)


def test_changes_are_told_once_and_a_pause_is_followed(tmp_path, monkeypatch):
    plugged = [False]
    holder = Holder(
        LendingSettings(not_on_battery=True), tmp_path, EventLog(tmp_path), is_on_battery=lambda: not plugged[0]
    )
    assert holder.look(3) == holder.look(3) == Hold("battery")
    ask(tmp_path, "pause")
    assert holder.look(3) == Hold("you")
    plugged[0] = True
    assert holder.look(3) == Hold("you")
    take_back(tmp_path)
    assert holder.look(4) is holder.look(4) is None
    told = [(event["event"], event.get("reason"), event["epoch"]) for event in read_events(tmp_path)]
    assert told == [("held", "battery", 3), ("held", "you", 3), ("going_on", None, 4)]


def test_a_peer_that_rests_between_batches_hears_what_is_asked_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(holding, "LOOK_EVERY_S", 0.05)
    holder, stop = Holder(LendingSettings(), tmp_path, EventLog(tmp_path)), threading.Event()
    threading.Timer(0.2, ask, [tmp_path, "pause"]).start()
    holder.rest(1e300, 3, stop)
    assert holder.hold == Hold("you")
    assert [event["event"] for event in read_events(tmp_path)] == ["held"]
    holder = Holder(LendingSettings(), tmp_path / "other", EventLog(tmp_path))
    threading.Timer(0.2, stop.set).start()
    holder.rest(1e300, 3, stop)
    assert holder.hold is None
    holder.rest(0.01, 3, threading.Event())


def test_a_peer_that_is_to_finish_leaves_after_its_epoch_or_when_it_is_held_and_has_nothing_left(tmp_path):
    holder = Holder(LendingSettings(), tmp_path, EventLog(tmp_path))
    holder.look(3)
    assert not holder.is_finished(3, False)
    ask(tmp_path, "finish")
    holder.look(3)
    assert not holder.is_finished(3, True)
    holder.look(4)
    assert holder.is_finished(4, False)
    take_back(tmp_path)
    holder.look(4)
    assert not holder.is_finished(9, False)
    held = Holder(LendingSettings(not_on_battery=True), tmp_path, EventLog(tmp_path), is_on_battery=lambda: True)
    ask(tmp_path, "finish")
    held.look(4)
    assert not held.is_finished(4, False)
    assert held.is_finished(4, True)


def test_a_peer_that_is_paused_and_then_to_finish_computes_no_more(tmp_path):
    holder = Holder(LendingSettings(), tmp_path, EventLog(tmp_path))
    for wish in "pause", "finish", "finish":
        ask(tmp_path, wish)
        assert holder.look(3) == Hold("you")
    assert holder.is_finished(3, True)
    take_back(tmp_path)
    assert holder.look(3) is None
    assert not holder.is_finished(3, True)


def test_a_pause_lasts_over_starts_and_finish_does_not(tmp_path):
    for wish, left in ("pause", "pause"), ("finish", None):
        ask(tmp_path, wish)
        assert wish_of(tmp_path).wish == wish
        forget_finish(tmp_path)
        assert (None if (kept := wish_of(tmp_path)) is None else kept.wish) == left


def test_a_broken_wish_asks_nothing_of_a_peer(tmp_path):
    for broken in ("{", json.dumps({"wish": "dance", "time": 1.0}), json.dumps({"wish": "pause"})):
        (tmp_path / WISH).write_text(broken)
        with pytest.raises(BrokenFile, match="`dalle-lib resume` removes it"):
            wish_of(tmp_path)
        assert Holder(LendingSettings(), tmp_path, EventLog(tmp_path)).look(3) is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"niceness": 20}, "niceness must be a whole number from 0 to 19"),
        ({"gpu_share": 0.0}, "gpu_share must be above 0"),
    ],
)
def test_wrong_shares_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        PeerSettings(run="emoji-mini", **wrong)


def test_settings_come_back_from_their_file(tmp_path):
    settings = PeerSettings(run="emoji-mini", between=("22:00-07:00", "12:00-13:00"), niceness=15, only_when_idle=True)
    settings.save(tmp_path / "settings.json")
    assert PeerSettings.load(tmp_path / "settings.json") == settings


STANDS_BACK = """
import os, psutil, torch
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.workplace import stand_back
torch.set_num_threads(1)  # as a peer's process does before it forks others
matrix = torch.ones(512, 512)
matrix @ matrix
before = {thread.id for thread in psutil.Process().threads()} - {os.getpid()}
stand_back(PeerSettings(run="r", niceness=7, threads=2))
matrix @ matrix
computing = {thread.id for thread in psutil.Process().threads()} - before
print(torch.get_num_threads(), *sorted(os.getpriority(os.PRIO_PROCESS, thread) for thread in computing))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all threads of a process have its priority")
def test_all_threads_that_compute_stand_back():
    done = subprocess.run([sys.executable, "-c", STANDS_BACK], capture_output=True, text=True, timeout=300)
    began_at = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split() == ["2", *[str(min(19, began_at + 7))] * 2], done.stderr


def test_a_share_limits_the_memory_of_a_gpu_alone(monkeypatch):
    limited = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limited.append(given))
    limit_gpu(torch.device("cpu"), 0.5)
    limit_gpu(torch.device("cuda:1"), 1.0)
    limit_gpu(torch.device("cuda:1"), 0.5)
    limit_gpu(torch.device("cuda"), 0.5)
    assert limited == [(0.5, 1), (0.5, 0)]
