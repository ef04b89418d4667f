"""Hostile recordings are refused in a line, and what nobody has signed is never told of."""

import base64
import gzip
import json
import random
import shutil
import tempfile
import zlib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, as_json, mutated, with_a_change
from signed_records import BEGAN, EPOCH_S, EVERY_S, NAMES, lines_of, look_at, record, with_lines

from dalle_lib.files import BrokenFile
from dalle_lib.monitor.recorded import MAX_LINE_BYTES
from dalle_lib.monitor.recording import REPLAYED
from dalle_lib.replay import Replay
from dalle_lib.run import RunCard

CARD = RunCard.load("emoji-mini")
_TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = Path(_TEMPORARY.name)
KEPT = {"epoch": 2, "made": BEGAN + 90, "sha256": "ab" * 32, "bytes": 1000, "figures": '{"held_out_loss": 4.5}'}
few = settings(max_examples=settings.default.max_examples // 2)
"""Each example is a replay."""


@cache
def real() -> bytes:
    """Return a recording of a few looks, with a checkpoint, prompts and a picture."""
    looks = [look_at(CARD.key, BEGAN + EVERY_S * number) for number in range(3, 7)]
    lines = lines_of(record(FOLDER / "monitor", CARD, looks))
    figures = {"held_out_loss": 4.5, "half_width": 0.1, "rows": 64, "drawn": {"rank": 0.3, "exact": 0.1}}
    lines += [
        {"checkpoint": KEPT | {"figures": json.dumps(figures)}},
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
    "nothing": (b"", "not that of a recording"),
    "no gzip": (b"status.json", "[Nn]ot a gzipped file"),
    "a bomb": (gzip.compress(bytes(10**8)), "more than [0-9,]+ bytes"),
    "a bomb of lines": (gzip.compress(head() + LOOK * 10**6), "far more text"),
    "a bomb in its second line": (gzip.compress(head() + b" " * 10**8), "more than [0-9,]+ bytes"),
    "deep": (gzip.compress(head() + b"[" * 10**6 + b"\n"), "recursion"),
    "a long number": (gzip.compress(head() + b"1" * 10**5 + b"\n"), "cannot be read as a recording"),
    "of another version": (gzip.compress(head().replace(b'"recording": 1', b'"recording": 2')), "expected version 1"),
    "of another protocol": (gzip.compress(head().replace(b'protocol\\": 4', b'protocol\\": 5')), "protocol"),
    "without a look": (gzip.compress(head()), "no look"),
    "none but the card": (gzip.compress(head().replace(b"card", b"cord")), "first line"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_the_error_says_why(kind):
    data, why = HOSTILE[kind]
    (FOLDER / "one.jsonl.gz").write_bytes(data)
    with pytest.raises(ValueError, match=why):
        Replay(FOLDER / "one.jsonl.gz", FOLDER / "one").play()


LINES = {
    "a file elsewhere": {"file": "../evil.webp", "data": ""},
    "a file of the monitor": {"file": "status.json", "data": ""},
    "a folder up": {"file": "pictures/../../evil.webp", "data": ""},
    "a page": {"file": "pictures/epoch-0000001.html", "data": ""},
    "no base 64": {"file": "pictures/epoch-0000001.webp", "data": "é"},
    "a column more": {"checkpoint": KEPT | {"epoch) VALUES (1); --": 1}},
    "not a number": {"checkpoint": KEPT | {"figures": '{"held_out_loss": NaN}'}},
    "deep figures": {"checkpoint": KEPT | {"figures": "[" * 3000}},
    "an epoch beyond": {"checkpoint": KEPT | {"epoch": 2**70}},
    "a time that never is": {"look": float("nan"), "seen": [], "not_shown": 0},
    "records that are not there": {"look": BEGAN + 900, "seen": [10**9] * 6000, "not_shown": 0},
    "something else": {"run": "rm"},
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_no_recorder_writes_ends_a_replay(kind):
    lines = [json.loads(line) for line in gzip.decompress(real()).splitlines()]
    file = with_lines(FOLDER / "line.jsonl.gz", [*lines, LINES[kind]])
    with pytest.raises(BrokenFile, match=r"cannot be read as a recording .*Get it anew"):
        Replay(file, FOLDER / "line").play()
    assert not (FOLDER / "evil.webp").exists()


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
