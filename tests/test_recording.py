"""What a monitor records: nothing of who wants no name told, and no more than it may."""

import gzip
from contextlib import closing
from dataclasses import replace

from auth_peers import identity
from signed_records import BEGAN, NAMES, lines_of, look_at, record, signed
from statuses import peer_status

from dalle_lib.monitor import recording
from dalle_lib.monitor.anonymous import anonymised, key_in, tagged_among, tags_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.recording import Recorder
from dalle_lib.swarm.process.evidence import END, witness
from dalle_lib.swarm.process.signed import SignedLook
from dalle_lib.swarm.process.status import SwarmStatus

IDS = {name: identity(name).peer_id for name in NAMES}
ADA, BOB, CLEO = IDS.values()


def looking(key: str, at: float, **counted_with: str) -> SignedLook:
    """Return a look at some peers, each of which has averaged with another one, or with nobody."""
    weights = {name: {IDS[other]: 20.0} if other else {} for name, other in counted_with.items()}
    records = {IDS[name]: signed(key, name, at, witnessed=witness(3, weights[name], IDS[name])) for name in weights}
    return replace(look_at(key, at, []), records=records)


def test_who_is_hidden_is_in_no_recording_nor_is_what_others_tell_of_them(mini, tmp_path):
    at = BEGAN + 60
    looks = [
        looking(mini.key, at, ada="", bob="ada", cleo="bob"),
        looking(mini.key, at + 5, bob="ada", cleo="bob"),  # ada has left, and still was in the last average
        looking(mini.key, at + 10, bob="cleo", cleo="bob"),
    ]
    database = MonitorDatabase(tmp_path / "monitor.sqlite")
    with closing(database):
        recorder = Recorder(tmp_path, mini, max_mb=1.0)
        for look, hidden in zip(looks, ({ADA}, set(), set()), strict=True):
            recorder.note(look, hidden, database)
        recorder.write(database)
    (file,) = (tmp_path / "recordings").iterdir()
    text = gzip.decompress(file.read_bytes()).decode()
    assert BOB in text
    assert ADA[-END:] not in text
    assert [len(line["seen"]) for line in lines_of(file) if "look" in line] == [1, 1, 2]


def test_after_a_restart_nobody_is_told_of_who_was_not_seen_with_a_name_since(mini, tmp_path):
    look = looking(mini.key, BEGAN + 60, bob="ada", cleo="bob")  # ada was hidden, and has left
    file = record(tmp_path / "monitor", mini, [look])
    assert ADA[-END:] not in gzip.decompress(file.read_bytes()).decode()
    assert [line["seen"] for line in lines_of(file) if "look" in line] == [[0]]


def test_who_was_named_before_still_is_but_not_after_being_hidden(mini, tmp_path):
    at = BEGAN + 60
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        recorder = Recorder(tmp_path, mini, max_mb=1.0)
        recorder.note(looking(mini.key, at, ada="", bob=""), set(), database)
        recorder.note(looking(mini.key, at + 5, bob="ada"), set(), database)
        recorder.note(looking(mini.key, at + 10, bob="ada"), {ADA}, database)
        recorder.note(looking(mini.key, at + 15, bob="ada"), set(), database)
        recorder.write(database)
    (file,) = (tmp_path / "recordings").iterdir()
    assert [len(line["seen"]) for line in lines_of(file) if "look" in line] == [2, 1, 0, 0]


def test_only_some_names_are_remembered_and_those_seen_last(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "MAX_NAMED", 2)
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        recorder = Recorder(tmp_path, mini, max_mb=1.0)
        recorder.note(looking(mini.key, BEGAN + 60, ada=""), set(), database)
        recorder.note(looking(mini.key, BEGAN + 65, bob="", cleo="bob"), set(), database)
        recorder.note(looking(mini.key, BEGAN + 70, bob="ada", cleo="bob"), set(), database)
        recorder.write(database)
    (file,) = (tmp_path / "recordings").iterdir()
    assert [len(line["seen"]) for line in lines_of(file) if "look" in line] == [1, 2, 1]


def test_who_was_hidden_within_a_day_is_known_by_its_tag_also_when_it_leaves(tmp_path):
    key = key_in(tmp_path)
    peers = [peer_status(ADA, "ada", anonymous=True), peer_status(BOB, "bob")]
    look = SwarmStatus(
        time=BEGAN + 60, epoch=1, total_epochs=9, samples_in_epoch=None, target_batch_size=8, peers=peers
    )
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        Observer(database).note(anonymised(look, key))
        assert tagged_among(IDS.values(), key, tags_in(database, BEGAN + 600)) == {ADA}
        assert tagged_among(IDS.values(), key, tags_in(database, BEGAN + 2 * 86_400)) == set()


def test_no_recording_grows_beyond_its_limit(mini, tmp_path):
    file = record(tmp_path / "monitor", mini, [look_at(mini.key, BEGAN + 60)])
    size = file.stat().st_size
    with closing(MonitorDatabase(tmp_path / "monitor" / "monitor.sqlite")) as database:
        recorder = Recorder(tmp_path / "monitor", mini, max_mb=(size + 100) / 1e6)
        assert not recorder.is_full
        recorder.note(look_at(mini.key, BEGAN + 80), set(), database)
        recorder.write(database)
        assert recorder.is_full
        assert Recorder(tmp_path / "monitor", mini, max_mb=size / 1e6).is_full
