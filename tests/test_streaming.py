"""Captions and codes from files to batches: each row once a pass, bad ones counted, private ones with a Hub token."""

import subprocess
import sys
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dalle_lib.files import BrokenFile
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard, batches_of
from dalle_lib.streaming import CaptionTokenizer, CodeRow, CodesFormat, read_codes, stream_codes, write_codes
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.streaming.tokenizer import PADDING_ID

FORMAT = CodesFormat(grid=3, codebook_size=50, vqgan_sha256="a" * 64)
TOKEN = "hf_madeUpForThisTest"


def rows(count: int, start: int = 0) -> list[CodeRow]:
    return [CodeRow(f"caption {i}", (np.arange(9) + i) % 50) for i in range(start, start + count)]


@pytest.fixture
def source(tmp_path):
    for part in range(3):
        write_codes(tmp_path / f"{part}.parquet", rows(20, 20 * part), FORMAT, rows_per_group=7)
    return tmp_path


def test_rows_come_back_as_written(source):
    back = read_codes(source / "1.parquet", FORMAT)
    assert [row.caption for row in back] == [f"caption {i}" for i in range(20, 40)]
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(back, rows(20, 20), strict=True))


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (np.full(9, 50), "expected codes from 0 to 49 in row 1, but got 50 to 50"),
        (np.full(9, -1), "but got -1 to -1"),
        (np.full(9, 70_000), "but got 70000 to 70000"),
        (np.zeros(8, int), r"expected 9 whole numbers in row 1, but got int64 of shape \[8\]"),
        (np.zeros((3, 3), int), r"of shape \[3, 3\]"),
        (np.zeros(9), r"but got float64 of shape \[9\]"),
    ],
)
def test_codes_that_are_none_of_the_codebooks_are_not_written_and_what_was_there_stays(tmp_path, codes, told):
    file = tmp_path / "codes.parquet"
    write_codes(file, rows(2), FORMAT)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=told):
        write_codes(file, [*rows(1), CodeRow("wrong", codes)], FORMAT)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_reading_leaves_no_threads_that_could_abort_python_at_its_end(source):
    script = """
import sys, psutil
from dalle_lib.streaming import read_codes, stream_codes
before = psutil.Process().num_threads()
read_codes(sys.argv[1] + "/0.parquet")
next(iter(stream_codes(sys.argv[1], seed=0)))
print(psutil.Process().num_threads() - before)
"""
    done = subprocess.run([sys.executable, "-c", script, source], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr


def test_a_pass_holds_each_row_once_and_the_stream_never_ends(source):
    stream = islice(stream_codes(str(source), seed=1), 120)
    captions = [row.caption for row in stream]
    assert sorted(captions[:60]) == sorted(captions[60:]) == sorted(f"caption {i}" for i in range(60))
    assert captions[:60] != captions[60:]


def test_the_order_depends_on_the_seed_alone(source):
    def order(seed):
        return [row.caption for row in islice(stream_codes(str(source), seed=seed), 60)]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_bad_rows_are_dropped_and_counted(tmp_path):
    write_codes(tmp_path / "codes.parquet", rows(5), FORMAT)
    table = pq.read_table(tmp_path / "codes.parquet")
    good = table["codes"].to_pylist()
    codes = [good[0], good[1][:-1], b"\xff" * 18, None, good[4]]
    bad = table.set_column(1, "codes", pa.array(codes, pa.binary())).replace_schema_metadata(table.schema.metadata)
    pq.write_table(bad, tmp_path / "codes.parquet", compression="brotli")
    stream = stream_codes(str(tmp_path), seed=0)
    assert {row.caption for row in islice(stream, 4)} == {"caption 0", "caption 4"}
    assert stream.left_out.total() >= 3


def test_a_damaged_row_group_is_skipped_and_the_rest_is_read(tmp_path):
    file = tmp_path / "codes.parquet"
    write_codes(file, rows(30), FORMAT, rows_per_group=10)
    column = pq.ParquetFile(file).metadata.row_group(1).column(1)
    data = bytearray(file.read_bytes())
    middle = column.dictionary_page_offset + column.total_compressed_size // 2
    data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
    file.write_bytes(data)
    stream = stream_codes(str(tmp_path), seed=0)
    captions = {row.caption for row in islice(stream, 40)}
    assert captions == {f"caption {i}" for i in [*range(10), *range(20, 30)]}
    assert stream.left_out.total() >= 1


def test_a_small_file_that_decodes_to_hundreds_of_megabytes_is_not_read(tmp_path):
    file = tmp_path / "codes.parquet"
    write_codes(file, [CodeRow("a" * 1_000_000, np.zeros(9, int))] * 200, FORMAT)
    assert file.stat().st_size < 5_000
    with pytest.raises(ValueError, match=r"codes\.parquet .* at most [\d,]+ bytes, but number 0 decodes to 200,1"):
        read_codes(file)
    write_codes(tmp_path / "small.parquet", rows(3), FORMAT)
    stream = stream_codes(str(tmp_path), seed=0)
    assert {row.caption for row in islice(stream, 6)} == {f"caption {i}" for i in range(3)}
    assert stream.left_out.total() >= 1


def test_many_row_groups_that_are_small_enough_are_not_read_beyond_the_memory_of_all(tmp_path, monkeypatch):
    file = tmp_path / "codes.parquet"
    write_codes(file, [CodeRow("a" * 10_000, np.zeros(9, int))] * 20, FORMAT, rows_per_group=2)
    assert len(read_codes(file)) == 20
    monkeypatch.setattr("dalle_lib.streaming.codes.MAX_BYTES", 100_000)
    with pytest.raises(BrokenFile, match=r"rows of at most 100,000 bytes in all, but the first 10 take 10"):
        read_codes(file)


def test_codes_that_another_program_wrote_are_refused(source):
    file = source / "0.parquet"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"parquet-cpp-arrow", b"parquet-mr-arrows"))
    with pytest.raises(ValueError, match=r"was not written by .*write_codes, but by 'parquet-mr"):
        read_codes(file)


def test_codes_of_another_vqgan_are_refused(source):
    other = CodesFormat(grid=3, codebook_size=50, vqgan_sha256="b" * 64)
    with pytest.raises(ValueError, match="another kind"):
        next(iter(stream_codes(str(source), seed=0, expected=other)))


def test_nothing_to_read_is_an_error_not_a_hang(tmp_path):
    with pytest.raises(ValueError, match="found none"):
        stream_codes(str(tmp_path), seed=0)
    write_codes(tmp_path / "codes.parquet", [], FORMAT)
    with pytest.raises(ValueError, match="no readable row"):
        next(iter(stream_codes(str(tmp_path), seed=0)))


def test_private_data_are_streamed_with_their_hub_token_alone(source, hub):
    files = {f"train/{file.name}": file.read_bytes() for file in source.glob("*.parquet")}
    revision = hub.add("datasets/owner/codes", files, private=True)
    hub.users[TOKEN] = User("owner")
    where = "hf://datasets/owner/codes/train"
    for token in None, "hf_ofSomebodyElse":
        with pytest.raises(ValueError, match="a Hub token that can read it") as refused:
            stream_codes(where, seed=1, token=token)
        assert "hf_" not in str(refused.value)
    rows = islice(stream_codes(where, seed=1, token=TOKEN, revision=revision, expected=FORMAT), 60)
    assert sorted(row.caption for row in rows) == sorted(f"caption {i}" for i in range(60))


def test_a_private_run_trains_on_private_data(mini, hub, tmp_path):
    folder = mini.save(tmp_path / "run")
    revision = hub.add("datasets/owner/codes", folder / mini.data.train, private=True)
    data = {**mini.data.model_dump(), "train": "hf://datasets/owner/codes", "revision": revision}
    hub.add("owner/run", folder, private=True)
    hub.add("owner/run", {"run.json": mini.with_changes(data=data).model_dump_json().encode()})
    hub.users[TOKEN] = User("owner")
    card = RunCard.load("owner/run", TOKEN)
    assert len(next(batches_of(card, batch_size=5, seed=0))) == 5


def test_captions_are_cut_and_padded(mini):
    tokenizer = CaptionTokenizer(mini.path(mini.tokenizer), 4)
    short, long = tokenizer(["cat face", "cat face on a yellow background"])
    assert (short[-1], (long != PADDING_ID).all()) == (PADDING_ID, True)
    assert short[0] == long[0]
    assert 0 not in short
    read = tokenizer.read_part("cat face on a yellow background")
    assert "cat face on a yellow background".startswith(read)
    assert tokenizer([read]).equal(long[None])
    assert tokenizer.read_part("cat face") == "cat face"


def test_training_batches_corrupt_only_what_is_shown(mini):
    source = mini.data_source(mini.data.train)
    batches = TrainingBatches(
        stream_codes(source, seed=0),
        CaptionTokenizer(mini.path(mini.tokenizer), 12),
        batch_size=64,
        codebook_size=1024,
        code_corruption=0.15,
        caption_dropout=0.1,
    )
    many = list(islice(batches, 30))
    changed = np.mean([(b.codes != b.input_codes).float().mean() for b in many])
    dropped = np.mean([(b.text == 0).all(1).float().mean() for b in many])
    assert changed == pytest.approx(0.15, abs=0.01)
    assert dropped == pytest.approx(0.1, abs=0.02)
    real = {row.codes.tobytes() for row in read_codes(f"{source}/codes.parquet")}
    assert all(codes.numpy().tobytes() in real for b in many for codes in b.codes)


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b"{}",
        b'{"grid": 0, "codebook_size": 50, "vqgan_sha256": "%s"}' % (b"a" * 64),
        b'{"grid": 3, "codebook_size": {"": null}, "vqgan_sha256": "%s"}' % (b"a" * 64),
        b'{"grid": 3, "codebook_size": 50, "vqgan_sha256": [%s]}' % b", ".join([b"0"] * 5000),
        b'{"grid": 3, "codebook_size": 50, "vqgan_sha256": "%s", "more": 1}' % (b"a" * 64),
    ],
    ids=["a list", "nothing", "no grid", "a size that is none", "a long hash", "one more"],
)
def test_codes_whose_meaning_cannot_be_are_refused_in_one_short_line(source, said):
    table = pq.read_table(source / "0.parquet").replace_schema_metadata({b"dalle_lib.codes": said})
    pq.write_table(table, source / "0.parquet")
    with pytest.raises(ValueError, match=r"0\.parquet cannot be read as codes") as error:
        read_codes(source / "0.parquet")
    assert len(str(error.value)) < 600
    assert str(error.value).isprintable()


def test_batches_made_ahead_have_the_receipts_and_the_state_of_what_was_handed_out(mini):
    plain, ahead = batches_of(mini, 4, seed=3), batches_of(mini, 4, seed=3)
    made = []
    ahead.prefetch(lambda batch: made.append(len(batch)) or batch)
    for expected, found in zip(islice(plain, 3), islice(ahead, 3), strict=True):
        assert (found.receipt, found.text.tolist()) == (expected.receipt, expected.text.tolist())
        assert found.input_codes.equal(expected.input_codes)
        assert ahead.state_dict() == plain.state_dict()
        assert ahead.left_out == plain.left_out
    ahead.batch_size = 2
    assert [len(batch) for batch in islice(ahead, 3)] == [4, 2, 2]
    again = batches_of(mini, 2, seed=3)
    again.load_state_dict(ahead.state_dict())
    assert next(again).receipt == next(ahead).receipt
    ahead.close()
    assert next(ahead, None) is None
    assert made[:4] == [4, 4, 4, 4]
