"""What is read of the events that a peer writes."""

import errno
import os

import pytest
from full_disk import full_disk

from dalle_lib.swarm.process.events import EventLog, EventReader, PatientLog, read_events, read_starts


def test_a_line_being_written_is_not_read(tmp_path):
    EventLog(tmp_path).write("started")
    with open(tmp_path / "events.jsonl", "a") as handle:
        handle.write('{"event": "epo')
    assert [event["event"] for event in read_events(tmp_path)] == ["started"]


def test_who_follows_a_peer_parses_each_event_once_and_starts_anew_with_another_file(tmp_path):
    log, reader, file = EventLog(tmp_path), EventReader(tmp_path), tmp_path / "events.jsonl"
    assert reader.starts() == [[]]
    log.write("started")
    assert [[event["event"] for event in start] for start in reader.starts()] == [["started"]]
    file.write_bytes(b"?" * file.stat().st_size)  # it would not be JSON if it were read again
    log.write("joined")
    log.write("started")
    with open(file, "a") as handle:
        handle.write('{"event": "epo')
    assert [[event["event"] for event in start] for start in reader.starts()] == [["started", "joined"], ["started"]]
    file.write_text('{"time": 1, "event": "started"}\n')
    assert reader.starts() == [[{"time": 1, "event": "started"}]]


def test_events_of_a_peer_wait_for_room_on_a_full_disk(tmp_path):
    log = PatientLog(tmp_path)
    log.write("started")
    with full_disk():
        for number in 1, 2:
            log.write("epoch", epoch=number)
    assert [event["event"] for event in read_events(tmp_path)] == ["started"]
    log.write("epoch", epoch=3)
    assert [event.get("epoch") for event in read_events(tmp_path)] == [None, 1, 2, 3]
    (tmp_path / "events.jsonl").unlink()
    tmp_path.rmdir()
    with pytest.raises(FileNotFoundError):
        log.write("epoch", epoch=4)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_events_wait_for_a_disk_that_can_only_be_read_or_fails(tmp_path, monkeypatch, number):
    log = PatientLog(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
        log.write("epoch", epoch=1)
        assert log.keeps_from_writing.errno == number
    log.write("epoch", epoch=2)
    assert log.keeps_from_writing is None
    assert [event["epoch"] for event in read_events(tmp_path)] == [1, 2]


BROKEN = {
    "torn": b'{"time": 1, "event": "epo',
    "empty": b"",
    "nul": b"\0" * 4096,
    "not text": b"\xff\xfe\x80",
    "deep": b"[" * 200_000,
    "two in one": b'{"time": 1, "event": "epo{"time": 2, "event": "started"}',
    "no object": b"[1, 2]",
    "no kind": b'{"time": 1}',
    "a number for a kind": b'{"time": 1, "event": 2}',
    "no time": b'{"event": "started"}',
    "a text for a time": b'{"time": "now", "event": "started"}',
    "no number": b'{"time": NaN, "event": "started"}',
    "no time of a clock": b'{"time": 1e300, "event": "started"}',
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_skipped_and_the_next_event_begins_a_line_of_its_own(tmp_path, line):
    log, reader, file = EventLog(tmp_path), EventReader(tmp_path), tmp_path / "events.jsonl"
    log.write("started")
    with open(file, "ab") as handle:
        handle.write(line)  # a power cut or a full disk ends it here
    assert [event["event"] for event in reader.starts()[-1]] == ["started"]
    log.write("joined")
    log.write("epoch", epoch=3)
    for starts in reader.starts(), read_starts(tmp_path):
        assert [[event["event"] for event in start] for start in starts] == [["started", "joined", "epoch"]]
    assert file.read_bytes().endswith(b"\n")
    assert b"\n\n" not in file.read_bytes(), "a whole line is followed by no empty one"


def test_of_a_file_without_end_its_end_is_read_and_no_line_is_held_whole(tmp_path):
    log, reader, file = EventLog(tmp_path), EventReader(tmp_path), tmp_path / "events.jsonl"
    log.write("started")
    os.truncate(file, 2**34)  # 16 GiB that take no room on the disk
    log.write("joined")
    assert [event["event"] for event in reader.starts()[-1]] == ["joined"]
    log.write("epoch", epoch=3)
    assert [event["event"] for event in reader.starts()[-1]] == ["joined", "epoch"]


def test_only_events_since_the_last_start_are_read(tmp_path):
    log = EventLog(tmp_path)
    for event in "started", "epoch", "ended", "started", "joined":
        log.write(event)
    assert [event["event"] for event in read_events(tmp_path)] == ["started", "joined"]
