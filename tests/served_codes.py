"""A data set of codes on the stand-in for the Hub, and a reader of a pass with short waits: fixtures and helpers."""

import json
from collections import Counter

import numpy as np
import pytest

from dalle_lib.streaming import CodeRow, CodesFormat, Manifest, stream_codes, write_codes

FORMAT = CodesFormat(grid=16, codebook_size=2**16, vqgan_sha256="a" * 64)
WHERE, KEY = "hf://datasets/owner/codes/train", "datasets/owner/codes"
SHARDS, GROUPS, ROWS = 3, 3, 20
TOTAL = SHARDS * GROUPS * ROWS


def rows_of(shard: int, told: str = "caption") -> list[CodeRow]:
    rng, first = np.random.default_rng(shard), shard * GROUPS * ROWS
    return [CodeRow(f"{told} {first + i}", rng.integers(0, 2**16, 256)) for i in range(GROUPS * ROWS)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> dict[str, bytes]:
    """The bytes of the shards by their names; the caption of each row is its number."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        write_codes(folder / f"{shard}.parquet", rows_of(shard), FORMAT, rows_per_group=ROWS)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture
def serve(hub, tmp_path):
    """Give the stand-in these shards, with their manifest unless told otherwise, and return the manifest."""

    def serve(shards: dict[str, bytes], with_manifest: bool = True) -> Manifest | None:
        (folder := tmp_path / "served").mkdir()
        for name, data in shards.items():
            (folder / name).write_bytes(data)
        manifest = Manifest.of_folder(folder, FORMAT) if with_manifest else None
        files = shards | ({"manifest.json": manifest.text.encode()} if manifest else {})
        hub.add(KEY, {f"train/{name}": data for name, data in files.items()})
        return manifest

    return serve


@pytest.fixture(params=[False, True], ids=["synchronous", "ahead"])
def reader(request, monkeypatch):
    """Open a stream whose waits are short, and close it at the end."""
    for name, value in {"MAX_DELAY_S": 0.05, "SILENCE_S": 0.4, "SLOW_AFTER_S": 0.3, "SLOW_BYTES_PER_S": 50_000}.items():
        monkeypatch.setattr(f"dalle_lib.streaming.fetch.{name}", value)
    opened = []

    def reader(**kwargs):
        opened.append(stream_codes(WHERE, seed=1, **kwargs))
        if request.param:
            opened[-1].prefetch()
        return opened[-1]

    yield reader
    for stream in opened:
        stream.close()


def wait_for_late_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers ask nothing twice because a busy machine answers late, where a test counts what they ask."""
    for name in "SILENCE_S", "SLOW_AFTER_S":
        monkeypatch.setattr(f"dalle_lib.streaming.fetch.{name}", 60.0)


def numbers(rows: list[CodeRow]) -> list[int]:
    return [int(row.caption.split()[-1]) for row in rows]


def rest_of_pass(stream, total: int = TOTAL) -> tuple[list[int], Counter]:
    """Return what the rest of a first pass gives, and what was left out in it; of the second one a row is drawn."""
    found = []
    while True:
        before, left_out = stream.position, stream.left_out.copy()
        row = next(stream)
        if (
            stream.position > total
        ):  # the rows before it in this pass, and bad ones of the next before the next good one
            bad = total - before
            reasons = list((stream.left_out - left_out).elements())[:bad]
            return found, left_out + Counter(reasons)
        found.append(int(row.caption.split()[-1]))


def passes(reader, fault=lambda: None, at: int = 25, middle: int = 100, total: int = TOTAL, **kwargs):
    """Return the rows and what was left out of a whole pass, in which `fault` begins at row `at`.

    The same pass must come from a state that was taken in its middle.
    """
    stream, drawn, state = reader(**kwargs), [], None
    while stream.position < middle:
        if len(drawn) == at:
            fault()
        drawn += numbers([next(stream)])
    state = json.loads(json.dumps(stream.state_dict()))
    rest, left_out = rest_of_pass(stream, total)
    again = reader(**kwargs)
    again.load_state_dict(state)
    rest_again, left_out_again = rest_of_pass(again, total)
    assert (rest_again, left_out_again.total()) == (rest, left_out.total())
    assert max(Counter(drawn + rest).values()) == 1, "a row came twice"
    assert len(drawn + rest) + left_out.total() == total
    return drawn + rest, left_out
