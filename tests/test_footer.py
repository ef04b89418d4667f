"""A Parquet file whose last bytes are wrong is refused in a line, and ends no process."""

import random
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from dalle_lib.files import BrokenFile
from dalle_lib.run import RunCard
from dalle_lib.streaming import footer, read_codes
from dalle_lib.streaming.footer import read_footer

CHANGED = 150


@pytest.fixture(scope="module")
def real() -> bytes:
    card = RunCard.load("emoji-mini")
    with open(f"{card.data_source(card.data.train)}/codes.parquet", "rb") as file:
        return file.read()


def written(folder, data: bytes):
    file = folder / "codes.parquet"
    file.write_bytes(data)
    return file


def test_it_tells_of_the_groups_what_arrow_does(real, tmp_path):
    said = read_footer(lambda start, length: real[start : start + length], len(real))
    metadata, groups = pq.read_metadata(written(tmp_path, real)), said.groups
    assert said.about == metadata.metadata
    assert len(groups) == metadata.num_row_groups > 0
    for number, group in enumerate(groups):
        about = metadata.row_group(number)
        assert group.rows == about.num_rows
        for place, column in enumerate(group.columns):
            theirs = about.column(place)
            start = theirs.dictionary_page_offset if theirs.has_dictionary_page else theirs.data_page_offset
            assert column == footer.Column(
                theirs.path_in_schema, start, theirs.total_compressed_size, theirs.total_uncompressed_size
            )


READ = """
import sys
from dalle_lib.streaming import read_codes
for line in sys.stdin:
    place, mask = map(int, line.split())
    data = bytearray(open(sys.argv[1], "rb").read())
    data[place] ^= mask
    open(sys.argv[2], "wb").write(data)
    try:
        read_codes(sys.argv[2])
    except ValueError as error:
        assert sys.argv[2] in str(error), error
print("all read")
"""


def test_one_wrong_byte_at_the_end_is_told_and_ends_no_process(real, tmp_path):
    """Of 45,000 files with a few bytes changed, 52 ended the process when Arrow was asked about a column."""
    rng, file = random.Random(0), written(tmp_path, real)
    start = len(real) - 8 - int.from_bytes(real[-8:-4], "little")
    optional = real.rindex(b"\x25\x02\x18\x07caption") + 1  # by another value than these, Arrow aborts
    changes = [(optional, 3)] + [(rng.randrange(start, len(real) - 8), 1 << rng.randrange(8)) for _ in range(CHANGED)]
    lines = "".join(f"{place} {mask}\n" for place, mask in changes)
    arguments = [sys.executable, "-c", READ, file, tmp_path / "changed.parquet"]
    done = subprocess.run(arguments, input=lines, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"PAR1", "is it whole"), (b"PAR1" + bytes(8), "is it whole"), (b"PAR1\xff\xff\xff\x7fPAR1", "is it whole")],
)
def test_a_file_without_an_end_is_refused(data, told, tmp_path):
    with pytest.raises(BrokenFile, match=rf"codes.parquet cannot be read as Parquet.*{told}"):
        read_codes(written(tmp_path, data))


def test_a_file_that_says_too_much_of_itself_is_refused_before_arrow_reads_it(real, tmp_path, monkeypatch):
    monkeypatch.setattr(footer, "MAX_FOOTER_BYTES", 100)
    monkeypatch.setattr(pq, "read_metadata", lambda *_: pytest.fail("Arrow has read it"))
    with pytest.raises(BrokenFile, match="bytes of itself, and at most 100 are read"):
        read_codes(written(tmp_path, real))
