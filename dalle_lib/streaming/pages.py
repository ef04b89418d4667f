"""What the pages of a Parquet column claim, known before Arrow takes memory for it.

Arrow takes the memory that a page's header claims, whatever the file's metadata say of the column: a file of some
kilobytes led to gigabytes.
"""

from dalle_lib.streaming.thrift import Thrift

_TYPE, _DECODED, _COMPRESSED = 1, 2, 3
"""Fields of a page's header, by their numbers in Parquet's definition (apache/parquet-format, parquet.thrift)."""
_ABOUT = {0: 5, 2: 7, 3: 8}
"""Field that tells more of a page, by the page's type: of a page of values, a dictionary, and values in version 2."""
_VALUES, _ENCODING = 1, {0: 2, 2: 2, 3: 4}
_DICTIONARY = 2
_PLAIN_OR_DICTIONARY = (0, 2, 8)
"""Encodings in which a value is there as it is. Others build values from parts, with no bound by the page's size."""
MAX_PAGES = 2**14
"""Pages of a column in a row group at most: `write_codes` makes a handful, and the headers of millions take minutes."""
_LENGTH_BYTES = 4
"""Bytes that a plain text takes at least."""


def decoded_bytes(column: bytes) -> int:
    """Return how many bytes the pages of a column in a row group claim to hold when they are decompressed.

    Raises ValueError if a page's header cannot be read, or is none that `write_codes` writes, or if there are more
    pages than MAX_PAGES.
    """
    # A page's header has no list, and one would take 70 times the memory of its bytes.
    pages, count, total = Thrift(column, deepest=2, longest=0), 0, 0
    while pages.place < len(pages.data):
        if (count := count + 1) > MAX_PAGES:
            raise ValueError(f"expected at most {MAX_PAGES:,} pages in a column of a row group, but there are more")
        header = pages.struct()
        kind = _number(header, _TYPE)
        about, decoded = header.get(_ABOUT.get(kind)), _number(header, _DECODED)
        if not isinstance(about, dict) or _number(about, _ENCODING[kind]) not in _PLAIN_OR_DICTIONARY:
            raise ValueError("expected pages of plain values or of a dictionary, but got others")
        if kind == _DICTIONARY and _number(about, _VALUES) * _LENGTH_BYTES > decoded:
            raise ValueError(f"expected a dictionary in {decoded:,} bytes, but it claims more values than fit there")
        pages.take(_number(header, _COMPRESSED))
        total += decoded
    return total


def _number(fields: dict, number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"expected a number in field {number} of a page's header, but got {value!r:.40}")
    return value
