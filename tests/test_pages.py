"""What a file of Parquet claims is known, and bounded, before Arrow takes memory for it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dalle_lib.streaming.footer import read_footer
from dalle_lib.streaming.pages import decoded_bytes
from dalle_lib.streaming.row_groups import RowGroups

KINDS = {"caption": (pa.string(),), "codes": (pa.binary(),)}


def part(footer):
    start, length = footer.groups[0].range_of()
    return start, start + length


def many_rows_of_nothing(file):
    pq.write_table(pa.table(dict.fromkeys(["caption", "codes"], pa.nulls(300_000, pa.string()))), file)


def in_thrift(number):
    """Return a whole number as Thrift's compact protocol has it: doubled, in base 128."""
    digits = [2 * number >> shift & 127 for shift in range(0, 64, 7) if 2 * number >> shift]
    return bytes([digit | 128 for digit in digits[:-1]] + digits[-1:])


def one_long_caption(file):
    long = {"caption": pa.array(["a" * 150_000_000]), "codes": pa.array([b"aa"], pa.binary())}
    pq.write_table(pa.table(long), file, compression="brotli", use_dictionary=False)
    data = file.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    size = pq.ParquetFile(file).metadata.row_group(0).column(0).total_uncompressed_size
    told, lie = in_thrift(size), in_thrift(size % 2**14)
    lie = lie[:-1] + bytes([lie[-1] | 128]) + b"\x80" * (len(told) - len(lie) - 1) + b"\x00"
    assert data.count(told, start) == 1
    file.write_bytes(data[:start] + data[start:].replace(told, lie))


def captions_that_each_add_to_the_one_before(file):
    columns = {
        "caption": pa.array(["a" * length for length in range(99)]),
        "codes": pa.array([b"aa"] * 99, pa.binary()),
    }
    encoding = {"caption": "DELTA_BYTE_ARRAY", "codes": "PLAIN"}
    pq.write_table(pa.table(columns), file, use_dictionary=False, column_encoding=encoding)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (many_rows_of_nothing, "number 0 decodes to 150,000,000: write fewer"),
        (one_long_caption, "number 0 decodes to 150,000,0[0-9]+: write fewer"),
        (captions_that_each_add_to_the_one_before, "expected pages of plain values or of a dictionary"),
    ],
)
def test_what_pages_claim_is_known_before_any_is_decoded(write, told, tmp_path, monkeypatch):
    file = tmp_path / "codes.parquet"
    write(file)
    assert file.stat().st_size < 30_000
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("memory was taken"))
    data = file.read_bytes()
    footer = read_footer(lambda start, length: data[start : start + length], len(data))
    with pytest.raises(ValueError, match=told):
        RowGroups(footer, KINDS).read(0, data[slice(*part(footer))])


HEADERS = [
    (b"\x15\x00\x15\x02\x15", "cut off"),
    (b"\x15\x00" + b"\x15" + b"\xff" * 10, "more than 64 bits"),
    (b"\x15\x00\x05\x02\x00\x00", "holds a field twice"),
    (b"\x1c\x1c\x1c\x1c" + bytes(4), "too many structures"),
    (b"\x1d\x00", "a field of kind 13"),
    (b"\x15\x00\x05\x84\x80\x08\x02\x00", "one that cannot be"),
    (b"\x19\xf5\xff\xff\x03", "a list longer than its bytes"),
    (b"\x15\x00\x00", "a number in field 2 of a page's header, but got None"),
    (b"\x15\x00\x15\x01\x00", "field 2 .* got -1"),
    (b"\x15\x02\x15\x00\x00", "expected pages of plain values"),
    (b"\x15\x04\x15\x02\x15\x00\x4c\x15\x02\x15\x00\x00\x00", "more values than fit"),
]


@pytest.mark.parametrize(("header", "told"), HEADERS, ids=[told for _, told in HEADERS])
def test_a_pages_header_that_cannot_be_is_refused(header, told):
    with pytest.raises(ValueError, match=told):
        decoded_bytes(header)
