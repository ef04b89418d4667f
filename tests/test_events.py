"""What is read of the events that a peer writes."""

from dalle_lib.swarm.process.events import EventLog, EventReader, read_events


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
    file.write_text('{"event": "started"}\n')
    assert reader.starts() == [[{"event": "started"}]]


def test_only_events_since_the_last_start_are_read(tmp_path):
    log = EventLog(tmp_path)
    for event in "started", "epoch", "ended", "started", "joined":
        log.write(event)
    assert [event["event"] for event in read_events(tmp_path)] == ["started", "joined"]
