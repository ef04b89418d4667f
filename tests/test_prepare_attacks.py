"""Sources of strangers who want preparing to end, stall, take all memory, or show what is not theirs."""

import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_sources import as_csv, as_folder, as_parquet, as_tar, encoded, picture, pictures, prepare, rows_in

from dalle_lib.streaming.prepare.pictures import MAX_BYTES

DAMAGED = {"rest of a damaged source file": 1}


def captions(out: Path) -> set[str]:
    return {row.caption for row in rows_in(out)}


def tar_of(file: Path, members: list[tuple[str, bytes]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def header(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a member's header that claims a size, which may be negative."""
    member = tarfile.TarInfo("x.png")
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 2**88).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_what_is_no_file_in_a_folder_is_left_out_and_the_others_are_kept(tmp_path):
    source = as_folder(tmp_path / "in", pictures(3), inside=".")
    os.mkfifo(source / "pipe.png")
    (source / "gone.png").symlink_to(source / "nowhere")
    (source / "circle.png").symlink_to(source / "circle.png")
    for name in "folder", "piped", "upper":
        picture(len(name)).save(source / f"{name}.PNG", "PNG")
    (source / "folder.txt").mkdir()
    os.mkfifo(source / "piped.txt")
    (source / "upper.TXT").write_text("upper")
    prepared = prepare(source, tmp_path / "out", held_out=0)
    assert prepared.counts == {"picture file not readable": 3, "caption file not readable": 2}
    assert captions(tmp_path / "out") == {*pictures(3), "upper"}
    assert prepare(source, tmp_path / "out", held_out=0).counts == prepared.counts


@pytest.mark.parametrize(
    "rest",
    [
        header(-512) + bytes(1024),
        header(2**63) + b"abc",
        *(header(2**40, kind) + bytes(1024) for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE)),
        header(0, tarfile.GNUTYPE_LONGNAME) * 2000,
        b"garbage!" * 200,
        header(5)[:300],
    ],
    ids=["negative", "huge", "long name", "extended header", "names of names", "garbage", "cut"],
)
@pytest.mark.timeout(300)
def test_a_tar_that_lies_is_read_as_far_as_it_is_whole_and_its_rest_is_told(tmp_path, rest):
    file = as_tar(tmp_path / "in" / "0.tar", pictures(3))
    with tarfile.open(file) as tar:
        end = tar.getmembers()[-1].offset_data + 512
    file.write_bytes(file.read_bytes()[:end] + rest)
    as_tar(file.with_name("1.tar"), pictures(2, start=7))
    assert prepare(file.parent, tmp_path / "out", held_out=0).counts == DAMAGED
    assert captions(tmp_path / "out") == pictures(3).keys() | pictures(2, start=7).keys()


@pytest.mark.parametrize("first", [b"", b"no tar"])
def test_a_broken_first_file_and_a_pipe_do_not_keep_the_others_from_being_read(tmp_path, first):
    folder = as_tar(tmp_path / "in" / "1.tar", pictures(2)).parent
    (folder / "0.tar").write_bytes(first)
    os.mkfifo(folder / "2.tar")
    assert prepare(folder, tmp_path / "out", held_out=0).counts == {"rest of a damaged source file": 2}
    tables = as_parquet(tmp_path / "tables" / "1.parquet", pictures(2)).parent
    (tables / "0.csv").write_bytes(b"" if not first else b"a" * 2**18)
    os.mkfifo(tables / "2.csv")
    prepare(tables, tmp_path / "of tables", held_out=0)
    assert captions(tmp_path / "out") == captions(tmp_path / "of tables") == pictures(2).keys()


def test_a_picture_of_a_tar_never_gets_another_ones_caption(tmp_path):
    data = [encoded(picture(seed, width=40 + seed)) for seed in range(9)]
    members = [
        ("a.1.png", data[0]), ("a.1.txt", b"0"), ("a.2.png", data[1]), ("a.3.png", data[2]), ("a.3.txt", b"2"),
        ("b.jpg", data[3]), ("b.json", b"{}"), ("b.mask.png", data[4]), ("b.txt", b"3"),
        ("c.png", data[5]), ("c.txt", b"5"), ("c.png", data[6]), ("c.txt", b"6"),
        ("d.png", data[7]), ("d.txt", b"7"), ("d.x.png", data[8]), ("d.x.txt", b"8"),
    ]  # fmt: skip
    tar_of(tmp_path / "in" / "0.tar", members)
    assert prepare(tmp_path / "in", tmp_path / "out", held_out=0).counts == {"no caption": 1}
    rows = pq.read_table(tmp_path / "out" / "train" / "00000.parquet").to_pylist()
    assert {(row["caption"], row["width"]) for row in rows} == {
        (str(seed), 40 + seed) for seed in (0, 2, 3, 5, 6, 7, 8)
    }


@pytest.mark.parametrize(
    "told",
    [
        {"original_width": 10**30, "original_height": 5},
        {"original_width": 2**40, "original_height": 5},
        {"original_width": -7, "original_height": 5},
        {"NSFW": "\ud800"},
    ],
)
def test_what_json_tells_of_a_picture_cannot_end_the_work(tmp_path, told):
    about = json.dumps({"caption": "a", **told}).encode()
    tar_of(tmp_path / "in" / "0.tar", [("0.png", encoded(picture(1))), ("0.json", about)])
    prepare(tmp_path / "in", tmp_path / "out", held_out=0)
    (row,) = pq.read_table(tmp_path / "out" / "train" / "00000.parquet").to_pylist()
    assert (row["width"], row["height"]) == (70, 64)


def test_numbers_of_a_table_and_columns_that_hold_no_pictures_cannot_end_the_work(tmp_path):
    data = encoded(picture(1))
    tables = as_parquet(tmp_path / "in" / "0.parquet", {"first": data}).parent
    others = {"a": [1]}, {"image": [1], "text": ["b"]}, {"image": [{"bytes": 5}], "text": ["c"]}
    for number, columns in enumerate(others, 1):
        pq.write_table(pa.table(columns), tables / f"{number}.parquet")
    lines = "".join(f"{n},in.png,{width},7\n" for n, width in enumerate([5, "9" * 30, "9" * 5000, "²"]))
    (tmp_path / "numbers.csv").write_text("text,path,original_width,original_height\n" + lines)
    (tmp_path / "in.png").write_bytes(data)
    assert prepare(tables, tmp_path / "out", held_out=0).counts == {**DAMAGED, "no picture": 2}
    assert prepare(tmp_path / "numbers.csv", tmp_path / "of numbers", held_out=0).rows == 4


def test_a_line_without_end_and_a_column_that_unpacks_to_gigabytes_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("dalle_lib.streaming.prepare.tables.MAX_UNPACKED", 2**20)
    zeros = pa.table({"image": [bytes(2**24)], "text": ["zeros"]})
    pq.write_table(zeros, as_parquet(tmp_path / "in" / "1.parquet", pictures(2)).with_name("2.parquet"))
    (tmp_path / "in" / "0.csv").write_text("text,image\n" + "x" * (2**20 + 1))
    prepared = prepare(tmp_path / "in", tmp_path / "out", held_out=0)
    assert prepared.counts == {"rest of a damaged source file": 2}
    assert captions(tmp_path / "out") == pictures(2).keys()


def test_rows_that_are_left_out_do_not_keep_their_pictures_in_memory(tmp_path, monkeypatch):
    from dalle_lib.streaming.prepare.encoding import Encoder

    alive, keep = [], Encoder._keep

    def watched(self: Encoder, found: list, ready: list) -> None:
        alive.extend(each.row.bytes for each in found)
        keep(self, found, ready)

    monkeypatch.setattr(Encoder, "_keep", watched)
    large = {f"no picture {number}": bytes(MAX_BYTES // 8) for number in range(9)}
    tar_of(tmp_path / "in" / "0.tar", [("0.png", encoded(picture(1))), ("0.txt", b"one")])
    as_tar(tmp_path / "in" / "1.tar", large)
    assert prepare(tmp_path / "in", tmp_path / "out", held_out=0).counts == {"picture unreadable": 9}
    assert max(alive) <= 1000


def test_paths_of_a_table_do_not_lead_out_of_its_folder_unless_that_is_asked_for(tmp_path):
    private = tmp_path / "private" / "a.png"
    private.parent.mkdir()
    picture(1).save(private)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.png").symlink_to(private)
    picture(2).save(folder / "own.png")
    paths = {
        "own": "own.png",
        "up": "../private/a.png",
        "whole": str(private),
        "link": "link.png",
        "url": f"file://{private}",
    }
    table = as_csv(folder / "table.csv", paths, "path")
    prepared = prepare(table, tmp_path / "out", held_out=0)
    assert prepared.counts == {"path out of the pictures' folder": 3, "picture file not readable": 1}
    assert captions(tmp_path / "out") == {"own"}
    assert prepare(table, tmp_path / "other", held_out=0, picture_folder=str(private.parent)).rows == 2


def test_out_within_the_source_is_refused(tmp_path):
    source = as_folder(tmp_path / "in", pictures(2))
    for out in source / "out", source / ".." / "in" / "deep" / "out":
        with pytest.raises(ValueError, match="expected out outside of the source"):
            prepare(source, out)
        assert not out.exists()


def test_a_finished_file_that_is_gone_or_strange_is_told_before_more_work(tmp_path):
    source, out = as_folder(tmp_path / "in", pictures(20)), tmp_path / "out"
    prepare(source, out, held_out=0)
    file = out / "train" / "00001.parquet"
    data = file.read_bytes()
    for change in file.unlink, lambda: file.write_bytes(data[:-1]):
        change()
        with pytest.raises(ValueError, match=r"00001.parquet is gone or has changed: .* Prepare the data set anew"):
            prepare(source, out, held_out=0)
    file.write_bytes(data)
    assert prepare(source, out, held_out=0).rows == 20
    (out / ".prepare" / "journal.sqlite").unlink()
    with pytest.raises(ValueError, match=r"00001.parquet is none of this folder's data"):
        prepare(source, out, held_out=0)


def test_a_journal_that_is_damaged_or_a_disk_that_is_full_is_told_with_what_to_do(tmp_path, monkeypatch):
    source, out = as_folder(tmp_path / "in", pictures(9)), tmp_path / "out"
    prepare(source, out)
    journal = out / ".prepare" / "journal.sqlite"
    data = journal.read_bytes()
    journal.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(ValueError, match=r"journal.sqlite .*Prepare the data set anew in another folder"):
        prepare(source, out)
    journal.write_bytes(data)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dalle_lib.streaming.prepare.journal.Journal.set_meta", full)
    with pytest.raises(OSError, match=r"disk is full.*Run the same again: the work goes on where it was"):
        prepare(source, out)


def test_no_wrong_byte_at_the_end_of_a_table_ends_the_process(tmp_path):
    file = as_parquet(tmp_path / "0.parquet", pictures(2))
    code = (
        "import random, sys\nfrom pathlib import Path\n"
        "from dalle_lib.files import BrokenFile\nfrom dalle_lib.streaming.prepare.tables import _parquet_rows\n"
        "file, draw = Path(sys.argv[1]), random.Random(3)\ndata = file.read_bytes()\n"
        "for _ in range(400):\n"
        "    changed = bytearray(data)\n"
        "    changed[draw.randrange(len(data) - 1500, len(data))] = draw.randrange(256)\n"
        "    file.write_bytes(changed)\n"
        "    try: list(_parquet_rows(file, '0.parquet', ['image', 'text'], 0))\n    except BrokenFile: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
