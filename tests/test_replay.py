"""A recording played again is what a monitor saw, and nothing in it is believed that no peer has signed."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from auth_peers import AUTHORITY, identity, issued
from signed_records import BEGAN, EVERY_S, NAMES, lines_of, look_at, of_bytes, record, signed, told_at, with_lines

from dalle_lib import replay
from dalle_lib.cli.replay import Replay as Command
from dalle_lib.files import BrokenFile
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import history_of, status_of
from dalle_lib.replay import Replay
from dalle_lib.run import RunCard
from dalle_lib.run.newest import PLAYED
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

LOOKS = 30
TIMES = [BEGAN + EVERY_S * number for number in range(1, LOOKS + 1)]


def here_at(at: float) -> list[str]:
    """cleo comes late, and bob goes."""
    return [n for n in NAMES if not (n == "cleo" and at < BEGAN + 200) and not (n == "bob" and at > BEGAN + 400)]


@pytest.fixture(scope="module")
def recorded(mini, tmp_path_factory) -> Path:
    looks = [look_at(mini.key, at, here_at(at)) for at in TIMES]
    return record(tmp_path_factory.mktemp("recorded") / "monitor", mini, looks)


def status_in(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text())


def played(source: Path, folder: Path, **how) -> tuple[replay.Played, dict]:
    return Replay(source, folder).play(**how), status_in(folder)


def seen_live(card: RunCard, folder: Path, times: list[float]) -> tuple[dict, dict]:
    """Return what a monitor tells that was told the same by the peers themselves."""
    fields = PeerStatus.__dataclass_fields__
    with closing(MonitorDatabase(folder / "live.sqlite")) as database:
        observer = Observer(database, card.averaging.matchmaking_s)
        for at in times:
            told = [told_at(name, at) for name in here_at(at)]
            peers = [PeerStatus(**{name: each[name] for name in fields}) for each in told]
            epoch = max(peer.epoch for peer in peers)
            status = SwarmStatus(
                time=at, epoch=epoch, total_epochs=card.optimizer.total_epochs, samples_in_epoch=None,
                target_batch_size=card.averaging.target_batch_size, peers=peers,
            )  # fmt: skip
            observer.take_in(status, bytes(32), True)
        return status_of(card, database, times[-1]), history_of(card, database, folder)


def test_a_replay_tells_what_a_monitor_told(mini, recorded, tmp_path):
    told, status = played(recorded, tmp_path / "replay")
    assert (told.looks, told.refused, told.cut) == (LOOKS, {}, "")
    live, history = seen_live(mini, tmp_path, TIMES)
    assert status.pop(PLAYED) > TIMES[-1]
    assert status == json.loads(json.dumps(live | {"alarms": status["alarms"]}))
    assert json.loads((tmp_path / "replay" / "history.json").read_text()) == json.loads(json.dumps(history))
    assert {peer["name"]: peer["state"] for peer in status["peers"]} == {
        "ada": "training",
        "cleo": "training",
        "bob": "gone",
    }


def test_a_replay_tells_how_it_was_at_any_moment(mini, recorded, tmp_path):
    told, status = played(recorded, tmp_path / "replay", minutes=5)
    times = [at for at in TIMES if at <= TIMES[0] + 300]
    assert told.looks == len(times)
    assert status["epoch"] == seen_live(mini, tmp_path, times)[0]["epoch"] == 5
    assert {peer["name"] for peer in status["peers"]} == set(NAMES)


def changed(records: list, place: int, **parts) -> list:
    return [record._replace(**parts) if number == place else record for number, record in enumerate(records)]


def a_bit_of(value: bytes, what: bytes) -> bytes:
    assert what in value
    return value.replace(what, bytes([what[0] ^ 1]) + what[1:])


ADA, BOB = (identity(name).peer_id for name in ("ada", "bob"))
LATER = BEGAN + 2000
HOSTILE = {
    "changed": (lambda key, at: (r := signed(key, "ada", at))._replace(value=a_bit_of(r.value, b"Tesla")), "signed"),
    "a later end": (lambda key, at: (r := signed(key, "ada", at))._replace(expires=r.expires + 1), "signed"),
    "another's mark": (lambda key, at: signed(key, "ada", at)._replace(subkey=signed(key, "bob", at).subkey), "signed"),
    "not signed": (lambda key, at: (r := signed(key, "ada", at))._replace(value=r.value.split(b"[sig")[0]), "signed"),
    "another run's": (lambda key, at: signed(f"x{key}", "ada", at), "another run"),
    "another run's under this key": (
        lambda key, at: signed(f"x{key}", "ada", at)._replace(key=signed(key, "ada", at).key), "signed"
    ),
    "no mark": (lambda key, at: signed(key, "ada", at)._replace(subkey=b"\xa1x"), "of no peer"),
    "of another peer": (lambda key, at: signed(key, "ada", at, peer_id=identity("bob").peer_id), "another peer"),
    "old": (lambda key, at: signed(key, "ada", at - 1000), "another time"),
    "of the future": (lambda key, at: signed(key, "ada", at + 1000), "another time"),
    "what no peer tells": (lambda key, at: signed(key, "ada", at, loss="x"), "nothing that a peer"),
    "no tuple": (lambda key, at: of_bytes(key, "ada", at, bytes([0xC7, 1, 0x40, 1])), "nothing that a peer"),
    "no dictionary": (lambda key, at: of_bytes(key, "ada", at, bytes([0xC7, 1, 0x50, 1])), "nothing that a peer"),
    "long": (lambda key, at: signed(key, "ada", at, hardware="x" * 3000), "of no peer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_its_peer_has_not_signed_for_this_run_and_time_is_refused_by_name_and_counted(mini, tmp_path, kind):
    make, why = HOSTILE[kind]
    honest = look_at(mini.key, LATER)
    bad = look_at(mini.key, LATER + EVERY_S, samples=10**6)
    bad = replace(bad, records=bad.records | {ADA: make(mini.key, LATER + EVERY_S)})
    told, status = played(record(tmp_path / "monitor", mini, [honest, bad]), tmp_path / "replay")
    assert sum(told.refused.values()) == 1
    (refusal,) = told.refused
    assert why in refusal
    named = {"no mark": "nobody", "another's mark": BOB}
    assert refusal.startswith(f"{named.get(kind, ADA)}: ")
    assert told.records >= 5
    with closing(MonitorDatabase(tmp_path / "replay" / "monitor.sqlite")) as database:
        seen = {row["name"]: row["last_seen"] for row in database.rows("SELECT name, last_seen FROM starts")}
    assert seen == {"ada": LATER, "bob": LATER + EVERY_S, "cleo": LATER + EVERY_S}
    assert status["totals"]["peers"] == 3


def test_of_two_records_of_one_peer_the_newer_counts(mini, tmp_path):
    file = record(tmp_path / "monitor", mini, [look_at(mini.key, BEGAN + 60), look_at(mini.key, BEGAN + 80)])
    _, replayed_once = played(file, tmp_path / "once")
    lines = lines_of(file)
    (first, second) = [line for line in lines if "look" in line]
    first["seen"], second["seen"] = [0, 0, 1, 2], [5, 4, 3, 2, 1, 0]
    told, status = played(with_lines(tmp_path / "twice.jsonl.gz", lines), tmp_path / "replay")
    assert (told.records, told.refused) == (6, {})
    assert sorted(peer["name"] for peer in status["peers"]) == sorted(NAMES)
    assert status["totals"]["samples"] == replayed_once["totals"]["samples"]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_recording_that_is_cut_off_plays_up_to_there(mini, recorded, tmp_path, share):
    data = recorded.read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(data[: int(share * len(data))])
    told, status = played(cut, tmp_path / "replay")
    assert 0 < told.looks < LOOKS
    assert "cut off or damaged" in told.cut
    live, _ = seen_live(mini, tmp_path, TIMES[: told.looks])
    assert (status["epoch"], status["totals"]) == (live["epoch"], live["totals"])


CHECKPOINT = {"epoch": 1, "made": LATER, "sha256": "a" * 64, "bytes": 5, "figures": None}
TOLD = {"held_out_loss": 1.0, "half_width": 1.0}
FOREIGN = {
    "no loss": {"checkpoint": CHECKPOINT | {"figures": '{"rows": 1}'}},
    "no number": {"checkpoint": CHECKPOINT | {"figures": json.dumps(TOLD | {"held_out_loss": {"a": 1}})}},
    "beyond numbers": {"checkpoint": CHECKPOINT | {"figures": json.dumps(TOLD | {"held_out_loss": 10**400})}},
    "infinite with its interval": {"checkpoint": CHECKPOINT | {"figures": json.dumps(dict.fromkeys(TOLD, 1e308))}},
    "drawn": {"checkpoint": CHECKPOINT | {"figures": json.dumps(TOLD | {"drawn": 5})}},
    "a column of its own": {"checkpoint": {k: v for k, v in CHECKPOINT.items() if k != "figures"} | {"x) --": 1}},
    "a peer that moves the cursor": {"token": "x", "peer": "\x1b[2J"},
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN)
def test_a_line_that_no_recorder_writes_is_told_and_never_reaches_the_data_base(recorded, tmp_path, line):
    file = with_lines(tmp_path / "foreign.jsonl.gz", [*lines_of(recorded), line])
    with pytest.raises(BrokenFile, match="cannot be read as a recording"):
        played(file, tmp_path / "replay")


def test_records_without_a_look_do_not_fill_the_memory(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "MAX_SEEN", 2)
    first, *lines = lines_of(recorded)
    crowd = [next(line for line in lines if "signed" in line)] * 9
    with pytest.raises(BrokenFile, match="between two looks"):
        played(with_lines(tmp_path / "crowd.jsonl.gz", [first, *crowd, *lines]), tmp_path / "replay")


def test_a_recording_in_the_folder_of_its_replay_is_not_removed(recorded, tmp_path):
    played(recorded, tmp_path / "replay")
    inside = tmp_path / "replay" / "run.jsonl.gz"
    inside.write_bytes(recorded.read_bytes())
    for source in inside, inside.parent:
        with pytest.raises(ValueError, match="holds it and is emptied"):
            played(source, inside.parent)
    assert inside.exists()


def test_a_recording_goes_on_in_a_file_of_its_own_after_a_restart(mini, tmp_path, monkeypatch):
    looks = [look_at(mini.key, at, here_at(at)) for at in TIMES]
    names = iter(["20261126-100000", "20261126-110000", "20261126-120000"])
    monkeypatch.setattr("dalle_lib.monitor.recording.time.strftime", lambda *_: next(names))
    first = record(tmp_path / "monitor", mini, looks[:10])
    second = record(tmp_path / "monitor", mini, looks[10:])
    assert first != second
    told, status = played(first.parent, tmp_path / "replay")
    assert (told.looks, told.refused) == (LOOKS, {})
    assert status["epoch"] == seen_live(mini, tmp_path, TIMES)[0]["epoch"]
    other = mini.with_changes(name="other")
    with_lines(second, [lines_of(record(tmp_path / "other", other, []))[0], *lines_of(second)[1:]])
    with pytest.raises(BrokenFile, match="another run"):
        played(first.parent, tmp_path / "replay")


MEMBERS = {"authority": AUTHORITY.public_key, "server": "https://run.example"}


def test_users_of_members_are_those_of_their_access_tokens_and_nobody_else_is_told_of(mini, tmp_path):
    card = mini.with_changes(members=MEMBERS)
    valid = timedelta(days=3650)
    tokens = {
        ADA: issued(identity("ada"), user="lovelace", run=card.name, valid_for=valid),
        BOB: issued(identity("cleo"), user="mallory", run=card.name, valid_for=valid),  # not bob's
    }
    look = replace(look_at(card.key, BEGAN + 60), tokens={peer: token.to_bytes() for peer, token in tokens.items()})
    told, status = played(record(tmp_path / "monitor", card, [look]), tmp_path / "replay")
    assert [(peer["name"], peer["user"]) for peer in status["peers"]] == [("ada", "lovelace")]
    assert told.refused == {f"{BOB}: its access token is not valid": 1}


def test_a_replay_in_time_waits_and_writes_what_was_known_until_then(mini, recorded, tmp_path, monkeypatch):
    slept, told, folder = [], [], tmp_path / "replay"
    monkeypatch.setattr(replay, "PUBLISH_S", 0.0)
    monkeypatch.setattr(replay.time, "sleep", lambda seconds: slept.append(seconds))
    played(recorded, folder, speed=60, say=lambda line: told.append(status_in(folder)["looked"]))
    assert slept == pytest.approx([EVERY_S / 60] * (LOOKS - 1))
    assert told == [60 * (at // 60) for at in TIMES]


def test_the_command_tells_what_was_refused_and_writes_the_dashboard(mini, tmp_path, capsys):
    look = look_at(mini.key, BEGAN + 60)
    bad = look.records[ADA]
    look = replace(look, records=look.records | {ADA: bad._replace(value=a_bit_of(bad.value, b"Tesla"))})
    file = record(tmp_path / "monitor", mini, [look])
    Command(recording=file, folder=tmp_path / "replay").run()
    told = capsys.readouterr().out
    assert f"Refused (1): {ADA}: it is not what its peer has signed." in told
    assert "1 looks, 2 records" in told
    page = tmp_path / "replay" / "dashboard" / "index.html"
    assert str(page) in told
    shown = (page.parent / "data.js").read_text()
    assert BOB in shown
    assert ADA not in shown
    Command(recording=file, folder=tmp_path / "replay", json=True).run()
    assert json.loads(capsys.readouterr().out)["refused"] == {f"{ADA}: it is not what its peer has signed": 1}
    for wrong in {"speed": 0.0}, {"minutes": -1.0}, {"speed": float("nan")}:
        with pytest.raises(ValueError, match="above 0"):
            Command(recording=file, folder=tmp_path / "replay", **wrong).run()
    with pytest.raises(FileNotFoundError):
        Command(recording=tmp_path / "none.jsonl.gz", folder=tmp_path / "replay").run()


def test_the_recording_in_the_package_is_of_a_real_run_and_every_signature_in_it_is_right(tmp_path):
    assert replay.RECORDING.stat().st_size <= 300_000
    told = Replay(replay.RECORDING, tmp_path / "replay").play()
    assert (told.refused, told.cut) == ({}, "")
    assert told.ended - told.began > 600
    status, history = status_in(tmp_path / "replay"), json.loads((tmp_path / "replay" / "history.json").read_text())
    assert {peer["name"]: peer["state"] for peer in status["peers"]}.keys() == {"ada", "bob", "cleo", "dev", "eve"}
    assert len(history["epochs"]["epoch"]) >= 10
    assert any(share for share in history["epochs"]["counted_share"])
    assert len(history["evaluations"]["epoch"]) >= 3
    assert all((tmp_path / "replay" / name).exists() for name in history["pictures"]["first"])
    assert status["users"][0][1] == "ada"


def test_one_bit_of_the_recording_in_the_package_makes_one_record_less(tmp_path):
    lines = lines_of(replay.RECORDING)
    place = next(number for number, line in enumerate(lines) if "signed" in line)
    key, mark, value, expires = lines[place]["signed"]
    lines[place]["signed"] = [key, mark, value.replace("Xeon", "Xeom"), expires]
    assert lines[place]["signed"][2] != value
    whole = Replay(replay.RECORDING, tmp_path / "replay").play(minutes=2).records
    told = Replay(with_lines(tmp_path / "bit.jsonl.gz", lines), tmp_path / "replay").play(minutes=2)
    assert (told.records, sum(told.refused.values())) == (whole - 1, 1)
