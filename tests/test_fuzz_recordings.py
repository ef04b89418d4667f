"""Hostile recordings are refused in a line, and what nobody has signed is never told of."""

import base64
import gzip
import json
import random
import shutil
import tempfile
import zlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from auth_peers import identity, issued
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, as_json, mutated, with_a_change
from signed_records import BEGAN, EPOCH_S, EVERY_S, NAMES, lines_of, look_at, record, with_lines

from dalle_lib import replay
from dalle_lib.auth.server.settings import ServerSettings
from dalle_lib.auth.upkeep import RENEW_BEFORE_S
from dalle_lib.cli.replay import Replay as Command
from dalle_lib.files import BrokenFile
from dalle_lib.monitor.recorded import MAX_LINE_BYTES, MAX_SEEN, MOST, Kept, KeptFile, Look, Token
from dalle_lib.monitor.recording import REPLAYED
from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.replay import Replay
from dalle_lib.run import RunCard

CARD = RunCard.load("emoji-mini")
_TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = Path(_TEMPORARY.name)
CHECKPOINT = {"epoch": 2, "made": BEGAN + 90, "sha256": "ab" * 32, "bytes": 1000, "figures": '{"held_out_loss": 4.5}'}
few = settings(max_examples=settings.default.max_examples // 2)
"""Each example is a replay."""


@cache
def real() -> bytes:
    """Return a recording of a few looks, with a checkpoint, prompts and a picture."""
    looks = [look_at(CARD.key, BEGAN + EVERY_S * number) for number in range(3, 7)]
    lines = lines_of(record(FOLDER / "monitor", CARD, looks))
    figures = {"held_out_loss": 4.5, "half_width": 0.1, "rows": 64, "drawn": {"rank": 0.3, "exact": 0.1}}
    lines += [
        {"checkpoint": CHECKPOINT | {"figures": json.dumps(figures)}},
        {"file": "page/prompts.json", "data": "e30="},
        {"file": "pictures/epoch-0000002.webp", "data": "UklGRg=="},
    ]
    return with_lines(FOLDER / "real.jsonl.gz", lines).read_bytes()


def played(data: bytes):
    """Return what `Replay.play` does of these bytes, and check what it has written."""
    file, folder = FOLDER / "hostile.jsonl.gz", FOLDER / "replay"
    file.write_bytes(data)
    outside = set(FOLDER.iterdir()) | {folder}
    told = answer_of(lambda: Replay(file, folder).play())
    assert set(FOLDER.iterdir()) <= outside
    if told is not REFUSED:
        status = json.loads((folder / "status.json").read_text())
        json.loads((folder / "history.json").read_text())
        assert {peer["name"] for peer in status["peers"]} <= set(NAMES)
        assert status["totals"]["samples"] <= 3 * 3 * 7 * EVERY_S
        assert status["epoch"] <= 7 * EVERY_S / EPOCH_S
    return told


@few
@given(mutated(real()))
def test_files_whose_bytes_are_changed(data):
    played(data)


@few
@given(mutated(zlib.decompress(real(), 31)))
def test_files_whose_text_is_changed(text):
    played(gzip.compress(text))


@few
@given(st.data())
def test_files_in_which_something_is_what_it_should_not_be(data):
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] = data.draw(with_a_change(lines[place]))
    played(gzip.compress(b"".join(as_json(line) + b"\n" for line in lines)))


def head() -> bytes:
    return gzip.decompress(real()).splitlines(True)[0]


LOOK = b'{"look": 1.5, "seen": [], "not_shown": 0}\n'
HOSTILE = {
    "nothing": (bytes, "not that of a recording"),
    "no gzip": (lambda: b"status.json", "[Nn]ot a gzipped file"),
    "a bomb": (lambda: gzip.compress(bytes(10**8)), "more than [0-9,]+ bytes"),
    "a bomb of lines": (lambda: gzip.compress(head() + LOOK * 10**6), "far more text"),
    "a bomb in its second line": (lambda: gzip.compress(head() + b" " * 10**8), "more than [0-9,]+ bytes"),
    "deep": (lambda: gzip.compress(head() + b"[" * 10**6 + b"\n"), "recursion"),
    "a long number": (lambda: gzip.compress(head() + b"1" * 10**5 + b"\n"), "cannot be read as a recording"),
    "of another version": (
        lambda: gzip.compress(head().replace(b'"recording": 1', b'"recording": 2')), "expected version 1"
    ),
    "of another protocol": (lambda: gzip.compress(head().replace(b'protocol\\": 4', b'protocol\\": 5')), "protocol"),
    "without a look": (lambda: gzip.compress(head()), "no look"),
    "none but the card": (lambda: gzip.compress(head().replace(b"card", b"cord")), "first line"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_the_error_says_why(kind):
    make, why = HOSTILE[kind]
    (FOLDER / "one.jsonl.gz").write_bytes(make())
    with pytest.raises(ValueError, match=why):
        Replay(FOLDER / "one.jsonl.gz", FOLDER / "one").play()


def as_64(data: bytes) -> str:
    return base64.b64encode(data).decode()


LINES = {
    "a file elsewhere": {"file": "../evil.webp", "data": ""},
    "a file of the monitor": {"file": "status.json", "data": ""},
    "a folder up": {"file": "pictures/../../evil.webp", "data": ""},
    "a page": {"file": "pictures/epoch-0000001.html", "data": ""},
    "no base 64": {"file": "pictures/epoch-0000001.webp", "data": "é"},
    "a column more": {"checkpoint": CHECKPOINT | {"epoch) VALUES (1); --": 1}},
    "not a number": {"checkpoint": CHECKPOINT | {"figures": '{"held_out_loss": NaN}'}},
    "deep figures": {"checkpoint": CHECKPOINT | {"figures": "[" * 3000}},
    "an epoch beyond": {"checkpoint": CHECKPOINT | {"epoch": 2**70}},
    "a time that never is": {"look": float("nan"), "seen": [], "not_shown": 0},
    "records that are not there": {"look": BEGAN + 900, "seen": [10**9] * 6000, "not_shown": 0},
    "something else": {"run": "rm"},
    "prompts in a list": {"file": "page/prompts.json", "data": "W10="},
    "prompts of another form": {"file": "page/prompts.json", "data": as_64(b'{"seen": [["a"]]}')},
    "prompts in other letters": {"file": "page/prompts.json", "data": as_64('{"seen": []}'.encode("utf-16"))},
    "deep prompts": {"file": "page/prompts.json", "data": as_64(b"[" * 3000)},
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_no_recorder_writes_ends_a_replay(kind):
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    file = with_lines(FOLDER / "line.jsonl.gz", [*lines, LINES[kind]])
    with pytest.raises(BrokenFile, match=r"cannot be read as a recording .*Get it anew"):
        Replay(file, FOLDER / "line").play()
    assert not (FOLDER / "evil.webp").exists()


MORE = {
    Look: [{"look": BEGAN + 900 + second, "seen": [], "not_shown": 0} for second in range(3)],
    Token: [{"token": "", "peer": "1a"}] * 7,
    Kept: [{"checkpoint": CHECKPOINT | {"figures": None}}] * 6,
    KeptFile: [{"file": f"pictures/epoch-{number:07}.webp", "data": ""} for number in range(5)],
}


@pytest.mark.parametrize("kind", MOST)
def test_more_lines_of_a_kind_than_any_run_has_are_refused_over_all_files(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(MOST, kind, (6, MOST[kind][1]))
    source = tmp_path / "recordings"
    source.mkdir()
    (source / "1.jsonl.gz").write_bytes(real())
    with_lines(source / "2.jsonl.gz", [json.loads(head()), *MORE[kind][:-1]])
    Replay(source, tmp_path / "replay").play()
    with_lines(source / "2.jsonl.gz", [json.loads(head()), *MORE[kind]])
    with pytest.raises(
        BrokenFile, match=rf"2.jsonl.gz cannot be read as a recording \(more than 6 {MOST[kind][1]}, as in no run\)"
    ):
        Replay(source, tmp_path / "replay").play()
    assert kind is not KeptFile or not (tmp_path / "replay" / MORE[kind][-1]["file"]).exists()


def test_the_longest_run_has_less_than_half_of_the_looks_and_access_tokens():
    looks = 75 * 24 * 3600 / MonitorSettings().look_s
    assert 2 * looks < MOST[Look][0]
    a_peer = 75 * 24 * 3600 / (ServerSettings.model_fields["access_s"].default - RENEW_BEFORE_S)
    assert 400 * 2 * a_peer < MOST[Token][0]


def test_refusals_of_many_names_are_told_together(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "MAX_REFUSED", 2)
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    lines += [{"token": "", "peer": peer} for peer in ("1a", "1b", "1c", "1d", "1a")]
    told = Replay(with_lines(tmp_path / "many.jsonl.gz", lines), tmp_path / "replay").play()
    why = "its access token is none"
    assert told.refused == {f"1a: {why}": 2, f"1b: {why}": 1, "others": 2}


def test_access_tokens_without_a_look_or_of_too_many_peers_are_refused(tmp_path, monkeypatch):
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    crowd = with_lines(tmp_path / "crowd.jsonl.gz", [*lines, *[{"token": "", "peer": "1a"}] * (2 * MAX_SEEN + 1)])
    with pytest.raises(BrokenFile, match="access tokens lie between two looks"):
        Replay(crowd, tmp_path / "replay").play()
    monkeypatch.setattr(replay, "MAX_TOKENS", 2)
    token = issued(identity("ada")).to_bytes().decode("latin-1")
    tokens = [{"token": token, "peer": peer} for peer in ("1a", "1b", "1a", "1c")]
    Replay(with_lines(tmp_path / "two.jsonl.gz", [*lines, *tokens[:-1]]), tmp_path / "replay").play()
    with pytest.raises(BrokenFile, match="more than 2 peers have access tokens"):
        Replay(with_lines(tmp_path / "three.jsonl.gz", [*lines, *tokens]), tmp_path / "replay").play()


def test_a_long_replay_tells_how_far_it_is_and_json_stays_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replay, "TELL_S", 0.0)
    file = tmp_path / "\x1b[2J.jsonl.gz"
    file.write_bytes(real()[:-20])
    Command(recording=file, folder=tmp_path / "replay", json=True).run()
    told = capsys.readouterr()
    played = json.loads(told.out)
    assert played["cut"].startswith("\\x1b[2J.jsonl.gz is cut off")
    assert [line.rpartition(": ")[2] for line in told.err.splitlines()] == [
        f"{number} looks" for number in range(1, played["looks"] + 1)
    ]
    Command(recording=file, folder=tmp_path / "replay").run()
    told = capsys.readouterr().out
    assert told.startswith(f"{datetime.fromtimestamp(BEGAN + 60, UTC):%Y-%m-%d %H:%M:%S}: 1 looks\n")
    assert "\nThe recording ends early: \\x1b[2J.jsonl.gz is cut off" in told


def test_a_line_may_be_as_long_as_a_picture_and_no_longer():
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    room = MAX_LINE_BYTES - len('{"file": "pictures/epoch-0000001.webp", "data": ""}\n')
    data = base64.b64encode(random.Random(0).randbytes(room // 4 * 3)).decode()
    picture = {"file": "pictures/epoch-0000001.webp", "data": data}
    Replay(with_lines(FOLDER / "long.jsonl.gz", [*lines, picture]), FOLDER / "long").play()
    picture["data"] += "AAAA"
    with pytest.raises(BrokenFile, match="a line of more than"):
        Replay(with_lines(FOLDER / "long.jsonl.gz", [*lines, picture]), FOLDER / "long").play()


def test_what_no_replay_has_made_is_not_replaced():
    watched = FOLDER / "watched"
    watched.mkdir()
    (watched / "monitor.sqlite").write_text("precious")
    (FOLDER / "good.jsonl.gz").write_bytes(real())
    with pytest.raises(ValueError, match="name another"):
        Replay(FOLDER / "good.jsonl.gz", watched)
    assert (watched / "monitor.sqlite").read_text() == "precious"
    shutil.rmtree(watched)
    Replay(FOLDER / "good.jsonl.gz", watched).play()
    (watched / "old.txt").write_text("of before")
    Replay(FOLDER / "good.jsonl.gz", watched).play()
    assert (watched / REPLAYED).exists()
    assert not (watched / "old.txt").exists()
