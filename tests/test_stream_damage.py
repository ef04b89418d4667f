"""A stream goes on where shards of its data are damaged, gone or lies: it leaves out their rows, and says how many."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import served_codes
from served_codes import FORMAT, GROUPS, KEY, ROWS, TOTAL, WHERE, passes, rest_of_pass, rows_of

from dalle_lib.streaming import Filters, Manifest, stream_codes, write_codes
from dalle_lib.streaming.codes import METADATA_KEY
from dalle_lib.streaming.footer import read_footer
from dalle_lib.streaming.manifest import FileEntry
from dalle_lib.streaming.row_groups import HASHES_KEY

reader, serve, shards = served_codes.reader, served_codes.serve, served_codes.shards
OTHER = replace(FORMAT, vqgan_sha256="b" * 64)
SMALLER = replace(FORMAT, codebook_size=50)
DIFFERS, DAMAGED, UNLIKE = "file differs from the manifest", "row group damaged", "row group differs from its hash"
GOOD = [*range(60), *range(120, 180)]
"""The rows of the shards around the middle one, in which these tests make their faults."""


def written(tmp_path, rows, codes_format=FORMAT) -> bytes:
    write_codes(tmp_path / "one.parquet", rows, codes_format, rows_per_group=ROWS)
    return (tmp_path / "one.parquet").read_bytes()


def unhashed(captions: list[bytes | None], codes: list[bytes], codes_format=FORMAT, about=None) -> bytes:
    """Return a shard as `write_codes` would not write it: with any values, and without hashes of row groups."""
    about = {METADATA_KEY: json.dumps(asdict(codes_format)), **(about or {})}
    table = pa.table({"caption": pa.array(captions, pa.binary()), "codes": pa.array(codes, pa.binary())})
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(about)
    pq.write_table(table, sink, ROWS, compression="brotli", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def flipped(data: bytes, group: int = 1) -> bytes:
    """Return a shard of which some bytes in a page of a row group are others."""
    column = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(group).column(1)
    middle = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 8]) + data[middle + 8 :]


def plain(shard: int = 1) -> tuple[list[bytes], list[bytes]]:
    rows = rows_of(shard)
    return [row.caption.encode() for row in rows], [row.codes.astype("<u2").tobytes() for row in rows]


@pytest.mark.parametrize(
    ("with_manifest", "has_hashes"),
    [(True, True), (False, True), (False, False)],
    ids=["manifest", "no manifest", "no hashes"],
)
def test_a_damaged_page_costs_its_row_group(hub, serve, shards, reader, with_manifest, has_hashes):
    if not has_hashes:
        shards = shards | {"1.parquet": unhashed(*plain())}
    manifest = serve(shards, with_manifest)
    hub.add(KEY, {"train/1.parquet": flipped(shards["1.parquet"])})
    drawn, left_out = passes(reader, manifest=manifest.sha256 if with_manifest else None)
    assert sorted(drawn) == [*range(80), *range(100, 180)]
    assert left_out == {UNLIKE if has_hashes else DAMAGED: ROWS}


def test_what_a_manifest_names_is_known_by_hashes_to_the_last_row(hub, serve, shards, reader, tmp_path):
    """Else whoever serves the data could give two readers of one receipt different rows."""
    bare = unhashed(*plain())
    with pytest.raises(ValueError, match=r"1\.parquet .* does not tell the hashes of its row groups"):
        serve(shards | {"1.parquet": bare})
    (tmp_path / "served" / "1.parquet").write_bytes(shards["1.parquet"])
    manifest = Manifest.of_folder(tmp_path / "served", FORMAT)
    footer = read_footer(lambda start, length: bare[start : start + length], len(bare))
    lies = replace(manifest, files=(manifest.files[0], FileEntry.of_footer(footer, "1.parquet", "0" * 64)))
    hub.add(
        KEY,
        {"train/manifest.json": lies.text.encode(), "train/1.parquet": bare, "train/0.parquet": shards["0.parquet"]},
    )
    drawn, left_out = passes(reader, middle=60, total=120, manifest=lies.sha256)
    assert (sorted(drawn), left_out) == (list(range(60)), {DIFFERS: 60})


def changes(shards, tmp_path) -> dict[str, tuple[bytes | None, str]]:
    data, swapped = shards["1.parquet"], shards["2.parquet"]
    return {
        "gone": (None, "file is gone"),
        "cut short": (data[:-100], DIFFERS),
        "half": (data[: len(data) // 2], DIFFERS),
        "longer": (data + b"PAR1", DIFFERS),
        "empty": (b"", DIFFERS),
        "no Parquet": (b"a" * len(data), DIFFERS),
        "of the same size": (data[:4] + bytes(len(data) - 5000) + data[-4996:], UNLIKE),
        "another shard": (swapped, DIFFERS),
        "another VQ-GAN": (written(tmp_path, rows_of(1), OTHER), DIFFERS),
    }


CHANGES = ["gone", "cut short", "half", "longer", "empty", "no Parquet", "of the same size", "another shard",
           "another VQ-GAN"]  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_shard_that_is_not_the_manifests_is_left_out(hub, serve, shards, reader, tmp_path, name):
    data, reason = changes(shards, tmp_path)[name]
    manifest = serve(shards)
    hub.add(KEY, {"train/1.parquet": data})
    drawn, left_out = passes(reader, manifest=manifest.sha256)
    assert (sorted(drawn), left_out) == (GOOD, {reason: GROUPS * ROWS})


@pytest.mark.parametrize("name", ["gone", "cut short", "of the same size", "another shard"])
def test_a_shard_that_changes_while_it_is_read_gives_no_row_twice(hub, serve, shards, reader, tmp_path, name):
    data, reason = changes(shards, tmp_path)[name]
    serve(shards)
    drawn, left_out = passes(reader, lambda: hub.add(KEY, {"train/1.parquet": data}))
    assert set(GOOD) <= set(drawn) <= set(range(TOTAL))
    assert set(left_out) <= {reason, UNLIKE}
    assert left_out.total() in (ROWS, 2 * ROWS, 3 * ROWS)


def test_a_shard_that_comes_back_is_read_again(hub, serve, shards, reader):
    serve(shards)
    hub.add(KEY, {"train/1.parquet": None})
    stream = reader()
    assert rest_of_pass(stream)[1] == {"file is gone": 60}
    hub.add(KEY, {"train/1.parquet": shards["1.parquet"]})
    while stream.position < 2 * TOTAL - 1:
        before = stream.left_out.copy()
        next(stream)
    assert stream.left_out == before


def test_bad_rows_are_left_out_each_for_its_reason(serve, shards, reader):
    captions, codes = plain()
    beyond = np.full(256, 50, "<u2").tobytes()
    small = [(np.frombuffer(one, "<u2") % 50).astype("<u2").tobytes() for one in codes]
    captions[0], captions[1], captions[2], captions[3] = None, b"", b"a" * 2**20, b"caption \xff"
    captions[4], captions[5] = b"a" * 10_001, "é".encode() * 10_000 + b"a"
    small[10], small[11], small[12], small[13] = small[10][:-1], small[11] + b"\0\0", None, beyond
    serve({"1.parquet": unhashed(captions, small, SMALLER)}, with_manifest=False)
    drawn, left_out = passes(reader, at=5, middle=30, total=60)
    assert sorted(drawn) == [*range(66, 70), *range(74, 120)]
    assert left_out == {
        "no caption": 2, "caption above 10,000 letters": 3, "caption not in UTF-8": 1, "codes of another number": 3,
        "codes beyond the codebook": 1,
    }  # fmt: skip


def test_codes_of_another_kind_are_refused_or_left_out(hub, serve, shards, reader, tmp_path):
    """Where all are, nothing is drawn; where one shard of a manifest is, which no honest one is, it is left out."""
    other = shards | {"1.parquet": written(tmp_path, rows_of(1), OTHER)}
    manifest = serve(other)
    drawn, left_out = passes(reader, manifest=manifest.sha256)
    assert (sorted(drawn), left_out) == (GOOD, {"file of another kind": 60})
    for expected in OTHER, SMALLER:
        with pytest.raises(ValueError, match=r"codes of another kind: expected .*(b{64}|size=50).*, but it has"):
            reader(expected=expected)
    hub.add(KEY, {"train/manifest.json": None})
    with pytest.raises(ValueError, match=r"1\.parquet holds codes of another kind"):
        reader()


BOMB = """
import logging, resource, sys
from dalle_lib.streaming import stream_codes
import pyarrow.parquet, huggingface_hub

stream = stream_codes(sys.argv[1], seed=1)
if sys.argv[2] == "ahead":
    stream.prefetch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(120):
    next(stream)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, stream.left_out.total())
"""


@pytest.mark.parametrize("how", ["synchronous", "ahead"])
def test_some_kilobytes_that_become_400_megabytes_take_no_memory(serve, shards, how):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["a" * 2_000_000]))
    about = json.dumps({"grid": 16, "codebook_size": 2**16, "vqgan_sha256": "a" * 64})
    table = pa.table({"caption": words, "codes": pa.array([bytes(512)] * 200, pa.binary())})
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: about}), sink, compression="brotli")
    assert sink.tell() < 4000
    serve(shards | {"1.parquet": sink.getvalue().to_pybytes()}, with_manifest=False)
    done = subprocess.run([sys.executable, "-c", BOMB, WHERE, how], capture_output=True, text=True, timeout=300)
    kilobytes, left_out = map(int, done.stdout.split())
    assert kilobytes < 100_000, done.stderr
    assert left_out in (0, 200)


def told(manifest: Manifest, **changed) -> bytes:
    return replace(manifest, files=(replace(manifest.files[0], **changed), *manifest.files[1:])).text.encode()


LIES = {
    "a name above": ({"name": "../0.parquet"}, "name of a file in the manifest's folder"),
    "a name from the root": ({"name": "/0.parquet"}, "name of a file in the manifest's folder"),
    "a name twice": ({"name": "1.parquet"}, "twice"),
    "a row group too large": ({"groups": (20, 20, 2**39)}, "rows"),
    "too many rows": ({"groups": (20, 20, 2**64)}, "rows"),
    "rows below none": ({"groups": (20, -20)}, "rows"),
    "bytes without an end": ({"bytes": 2**60}, "sizes"),
    "a footer beyond the file": ({"footer_bytes": 2**20}, "sizes"),
    "a footer without an end": ({"bytes": 2**39, "footer_bytes": 2**38}, "sizes"),
    "no hash": ({"footer_sha256": ""}, "hashes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_cannot_be_is_refused(hub, serve, shards, name):
    changed, match = LIES[name]
    hub.add(KEY, {"train/manifest.json": told(serve(shards), **changed)})
    with pytest.raises(ValueError, match=rf"manifest\.json cannot be read .*{match}") as refused:
        stream_codes(WHERE, seed=1)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("groups", [(20, 20, 21), (20, 20, 19), (20, 40), (20, 20, 20, 20), (60,)])
def test_rows_that_a_manifest_invents_are_not_drawn(hub, serve, shards, reader, groups):
    hub.add(KEY, {"train/manifest.json": told(serve(shards), groups=groups)})
    drawn, left_out = passes(reader, total=120 + sum(groups))
    assert (sorted(drawn), left_out) == (list(range(60, 180)), {DIFFERS: sum(groups)})


@pytest.mark.parametrize("grid", ["16", 16.0, 10**9, None, [16]])
def test_a_manifest_whose_codes_mean_nothing_is_refused(hub, serve, shards, grid):
    text = serve(shards).text.replace('"grid": 16', f'"grid": {json.dumps(grid)}')
    hub.add(KEY, {"train/manifest.json": text.encode()})
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read"):
        stream_codes(WHERE, seed=1)


def test_another_manifest_or_one_of_17_megabytes_is_refused(hub, serve, shards):
    manifest = serve(shards)
    with pytest.raises(ValueError, match=f"expected SHA-256 {'0' * 64}, found {manifest.sha256}"):
        stream_codes(WHERE, seed=1, manifest="0" * 64)
    hub.log.clear()
    hub.add(KEY, {"train/manifest.json": bytes(17 << 20)})
    with pytest.raises(ValueError, match="has more than 16,777,216 bytes"):
        stream_codes(WHERE, seed=1)
    assert sum(request.sent for request in hub.log) < 18 << 20
    hub.add(KEY, {"train/manifest.json": None})
    with pytest.raises(ValueError, match=r"has no manifest\.json, but the run names one"):
        stream_codes(WHERE, seed=1, manifest=manifest.sha256)


@pytest.mark.parametrize("with_manifest", [True, False], ids=["manifest", "no manifest"])
def test_filters_that_need_what_the_data_lack_are_refused(hub, serve, shards, with_manifest):
    serve(shards, with_manifest)
    with pytest.raises(ValueError, match="the filters need width, height, nsfw of each picture"):
        stream_codes(WHERE, seed=1, filters=Filters.paper())


def test_filters_are_tried_on_a_shard_that_is_there(hub, serve, shards, reader, tmp_path):
    more = [[replace(row, nsfw="UNLIKELY") for row in rows_of(shard)] for shard in range(3)]
    manifest = serve({f"{shard}.parquet": written(tmp_path, more[shard]) for shard in range(3)})
    hub.add(KEY, {"train/0.parquet": None})
    drawn, left_out = passes(reader, manifest=manifest.sha256, filters=Filters(nsfw=("UNLIKELY",)))
    assert (sorted(drawn), left_out) == (list(range(60, 180)), {"file is gone": 60})


@pytest.mark.parametrize("with_manifest", [True, False], ids=["manifest", "no manifest"])
def test_hashes_that_lie_too_deep_in_lists_cost_their_shard(serve, shards, reader, with_manifest):
    serve(shards | {"1.parquet": unhashed(*plain(), about={HASHES_KEY: "[" * 100_000})}, with_manifest)
    stream = reader()
    drawn, left_out = rest_of_pass(stream, 180 if with_manifest else 120)
    assert sorted(drawn) == GOOD
    told = {DAMAGED: 60} if with_manifest else {"files that cannot be read": 1}
    assert left_out + stream.data.unreadable == told
