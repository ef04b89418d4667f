"""What peers send and receive in a month is counted over restarts, kills and full disks, and held to its limit."""

import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
from calendar import timegm

import pytest
from full_disk import full_disk

from dalle_lib.files import BrokenFile
from dalle_lib.hub_http import downloaded
from dalle_lib.run import initial_model
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.traffic import MonthlyTraffic, needed_mbps, require_traffic
from dalle_lib.swarm.process import month
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.month import Months, Traffic, next_month, used_in_words

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def months(tmp_path):
    return Months(tmp_path / "traffic")


@pytest.fixture
def at_home(monkeypatch):
    """Set the time zone of this machine."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


def utc(*date: int) -> float:
    return timegm((*date, *[0] * (6 - len(date)), 0, 0, 0))


@pytest.fixture(autouse=True)
def nothing_downloaded(monkeypatch):
    """What earlier tests of this process have downloaded is none of a peer's traffic."""
    monkeypatch.setattr(downloaded, "bytes", 0)


def peers_traffic(folder, months, **settings) -> MonthlyTraffic:
    return MonthlyTraffic(PeerSettings(run="emoji-mini", **settings), EventLog(folder), months)


@pytest.mark.parametrize(
    ("zone", "month", "begins"),
    [
        ("UTC", "2026-11", utc(2026, 12, 1)),
        ("Asia/Tokyo", "2026-12", utc(2026, 12, 31, 15)),
        ("America/New_York", "2026-11", utc(2026, 12, 1, 5)),
        ("Pacific/Kiritimati", "2026-12", utc(2026, 12, 31, 10)),
    ],
)
def test_a_month_is_that_of_the_machines_time_zone(months, at_home, zone, month, begins):
    at = utc(2026, 11, 30, 23, 30)
    at_home(zone)
    assert months.file(at).name == f"{month}.json"
    assert next_month(at) == begins


def test_a_month_ends_at_midnight_also_where_the_clock_is_changed_in_it(months, at_home):
    at_home("Europe/Berlin")
    assert next_month(utc(2026, 3, 10)) == utc(2026, 3, 31, 22)
    assert next_month(utc(2026, 10, 10)) == utc(2026, 10, 31, 23)
    months.add(Traffic(sent=5), utc(2026, 3, 31, 21, 59))
    assert months.used(utc(2026, 3, 31, 22, 1)) == Traffic()
    assert months.used(utc(2026, 3, 1)) == Traffic(sent=5)


def test_all_peers_of_a_machine_add_to_one_count(months):
    def add_some() -> None:
        for _ in range(25):
            Months(months.folder).add(Traffic(sent=3, received=4), 1e9)

    adding = [FORK.Process(target=add_some) for _ in range(3)]
    for process in adding:
        process.start()
    for process in adding:
        process.join(60)
    assert months.used(1e9) == Traffic(sent=225, received=300)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_peer_that_is_killed_while_it_writes_leaves_what_was_counted(months, moment):
    def add_and_be_killed() -> None:
        setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        months.add(Traffic(sent=10**9))

    months.add(Traffic(sent=7, received=2))
    killed = FORK.Process(target=add_and_be_killed)
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert months.used() == Traffic(sent=7, received=2)
    assert months.add(Traffic(received=1)) == Traffic(sent=7, received=3), "the killed one's lock is open"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sent": -1}', '{"sent": 1.5}', '{"sent": true}', '{"came": 1}'])
def test_a_broken_count_is_no_zero(mini, months, tmp_path, monkeypatch, content):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    months = Months()
    file = months.file(time.time())
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(BrokenFile, match=r"cannot be read.*write it there.*or remove the file"):
        require_traffic(mini, PeerSettings(run="emoji-mini", monthly_gb=1.0))
    require_traffic(mini, PeerSettings(run="emoji-mini"))
    traffic = peers_traffic(tmp_path, months)
    traffic.upload.claim(1000)
    traffic.save()
    traffic.save()
    (told,) = read_events(tmp_path)
    assert "this month's traffic cannot be counted" in told["problem"]
    assert file.read_text() == content
    assert str(file) in used_in_words()


def test_a_peer_with_a_limit_does_not_start_where_nothing_can_be_counted(mini):
    with (
        full_disk(),
        pytest.raises(ValueError, match=r"count this month's traffic in .*traffic, but .* XDG_STATE_HOME"),
    ):
        require_traffic(mini, PeerSettings(run="emoji-mini", monthly_gb=1.0))
    require_traffic(mini, PeerSettings(run="emoji-mini", monthly_gb=1.0))


def test_a_peer_that_was_stopped_while_it_writes_holds_nobody_up(months, tmp_path, monkeypatch):
    traffic = peers_traffic(tmp_path, months, monthly_gb=0.001)
    months.add(Traffic(sent=100_000))
    monkeypatch.setattr(month, "LOCK_S", 0.1)
    with open(months.folder / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        traffic.upload.claim(1_000_000)
        saving = threading.Thread(target=traffic.save, daemon=True)
        saving.start()
        saving.join(60)
        assert not saving.is_alive()
        assert traffic.is_used
        assert not traffic.is_saved
    traffic.save()
    assert months.used().sent >= 1_100_000


def test_what_a_full_disk_does_not_take_is_counted_later_and_held_to_the_limit_at_once(months, tmp_path):
    traffic = peers_traffic(tmp_path, months, monthly_gb=0.001)
    traffic.upload.claim(400_000)
    traffic.save()
    with full_disk():
        traffic.upload.receive(900_000)
        traffic.save()
        assert traffic.is_used
        assert not traffic.is_saved, "its supervisor would not know that it is to rest"
    assert months.used().received == 0
    traffic.save()
    assert traffic.is_saved
    assert months.used().received >= 900_000
    assert months.used().gigabytes == pytest.approx(0.0013, rel=0.01)


def test_a_peer_counts_what_it_sends_and_what_comes_from_anywhere_over_its_starts(months, tmp_path):
    for start in range(1, 3):
        downloaded.bytes = 0
        traffic = peers_traffic(tmp_path, months, monthly_gb=10.0)
        traffic.begin()
        traffic.upload.claim(10_000)
        downloaded.add(5_000)
        traffic.end()
        assert months.used().sent == pytest.approx(start * 10_000, rel=0.01)
        assert months.used().received >= start * 5_000


def test_only_a_peer_with_a_limit_counts_what_stays_on_this_machine(months, tmp_path):
    for settings in {"host": "127.0.0.1"}, {"host": "127.0.0.1", "monthly_gb": 5.0}, {}:
        traffic = peers_traffic(tmp_path, months, **settings)
        traffic.upload.claim(10_000)
        before = months.used().sent
        traffic.save()
        assert (months.used().sent > before) == (settings != {"host": "127.0.0.1"})


def test_a_peer_rests_from_the_limit_on_until_the_month_is_over(months, tmp_path, monkeypatch):
    traffic, now = peers_traffic(tmp_path, months, monthly_gb=0.002), utc(2026, 11, 20, 12)
    monkeypatch.setattr(time, "time", lambda: now)
    traffic.upload.claim(1_000_000)
    traffic.save()
    assert not traffic.is_used
    months.add(Traffic(received=1_500_000))  # by another peer of this machine
    traffic.save()
    assert traffic.is_used
    now = utc(2026, 12, 2)
    assert not traffic.is_used
    traffic.upload.claim(100)
    traffic.save()
    assert 100 <= months.used().sent <= 101


def test_a_limit_at_which_no_round_could_end_is_refused(mini):
    needed = needed_mbps(mini)
    four_bits = mini.with_changes(averaging=mini.averaging.model_copy(update={"upload_bits": 4}))
    assert needed_mbps(four_bits) == pytest.approx(needed), "parameters travel in 8 bits"
    parameters = sum(parameter.numel() for parameter in initial_model(mini).parameters())
    values_per_s = parameters / (mini.averaging.timeout_s / 2)
    assert 8e-6 * values_per_s < needed < 16.5e-6 * values_per_s, "each travels in a byte or two"
    told = r"expected --max-upload-mbps of at least [\d.]+ in run 'emoji-mini', but got .* MB .* wait [\d.]+ s"
    for mbps in 0.9 * needed, needed / 100:
        with pytest.raises(ValueError, match=told):
            require_traffic(mini, PeerSettings(run="emoji-mini", max_upload_mbps=mbps))
    require_traffic(mini, PeerSettings(run="emoji-mini", max_upload_mbps=1.05 * needed))


def test_the_line_of_a_month_says_how_much_and_of_how_much(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert used_in_words() == ""
    Months().add(Traffic(sent=4_100_000_000, received=8_200_000_000))
    told = used_in_words(50.0)
    assert "12.3 GB of the 50 GB that --monthly-gb allows (4.1 GB sent, 8.2 GB received)" in told
    assert json.loads(Months().file(time.time()).read_text()) == {"sent": 4_100_000_000, "received": 8_200_000_000}
