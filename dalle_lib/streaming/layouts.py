"""Which columns a file of codes has, and how its values become captions and codes: ours, and the paper's published one.

The paper's data set has the columns `caption`, `code`, `NSFW`, `original_width` and `original_height`; codes are
little-endian int16, and codes and captions may each be compressed by Brotli. Ours has `caption`, `codes` and, where
they are known, `nsfw`, `width` and `height`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from dalle_lib.streaming.filters import MAX_CAPTION, Filters
from dalle_lib.streaming.packing import Packing, bytes_of, unpack

LayoutName = Literal["own", "paper", "paper-brotli"]
"""Ours; the paper's; and the paper's with codes and captions compressed one by one."""
MAX_CAPTION_BYTES = 4 * MAX_CAPTION
_TEXT, _WHOLE = (pa.string(), pa.binary()), (pa.int32(), pa.int64())


@dataclass(frozen=True)
class CodeRow:
    """One picture and its caption."""

    caption: str
    codes: np.ndarray
    """int64 codes of shape [grid x grid], row by row."""
    nsfw: str | None = None
    """What a classifier said of the picture, in the words of LAION-400M, where it is known."""
    width: int | None = None
    """Pixels of the original picture, before it was cropped, where they are known."""
    height: int | None = None


@dataclass(frozen=True)
class Layout:
    """The columns of a file, by what they hold."""

    caption: str
    codes: str
    nsfw: str
    width: str
    height: str

    def kinds(self, needs: tuple[str, ...] = ("nsfw", "width", "height")) -> dict[str, tuple[pa.DataType, ...]]:
        """Return the types that the columns of captions, codes and of `needs` may have."""
        types = {"nsfw": _TEXT, "width": _WHOLE, "height": _WHOLE}
        return {self.caption: _TEXT, self.codes: _TEXT} | {getattr(self, need): types[need] for need in needs}

    def told(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of `nsfw`, `width` and `height` a file with these columns tells."""
        return tuple(need for need in ("nsfw", "width", "height") if getattr(self, need) in columns)


OWN = Layout("caption", "codes", "nsfw", "width", "height")
PAPER = Layout("caption", "code", "NSFW", "original_width", "original_height")


@dataclass(frozen=True)
class Reader:
    """Makes rows of the values of one file."""

    layout: Layout
    packing: Packing
    count: int
    """Codes of a picture."""
    codebook_size: int
    captions_compressed: bool
    """Whether captions may be compressed by Brotli one by one."""
    filters: Filters

    def row(self, values: Mapping[str, bytes | int | None]) -> CodeRow | str:
        """Return the row that a file's values make, or why it is left out."""
        caption, raw = None, values.get(self.layout.caption)
        if raw is not None:
            if len(raw) > MAX_CAPTION_BYTES:
                return f"caption above {MAX_CAPTION:,} letters"
            if (caption := _caption(raw, self.captions_compressed)) is None:
                return "caption not in UTF-8"
        nsfw = values.get(self.layout.nsfw)
        about = {
            "nsfw": nsfw.decode(errors="replace") if isinstance(nsfw, bytes) else None,
            "width": values.get(self.layout.width),
            "height": values.get(self.layout.height),
        }
        if (why := self.filters.why_not(caption, **about)) is not None:
            return why
        size = bytes_of(self.packing, self.count, self.codebook_size)
        packed = values.get(self.layout.codes)
        if self.layout is PAPER and packed is not None:  # a compressed one may be as long as a plain one
            packed = _decompressed(packed, size) or packed
        if packed is None or len(packed) != size:
            return "codes of another number"
        codes = unpack(self.packing, packed, self.count, self.codebook_size)
        return CodeRow(caption, codes, **about) if codes.max() < self.codebook_size else "codes beyond the codebook"


def _caption(raw: bytes, is_compressed: bool) -> str | None:
    """Return a caption of at most MAX_CAPTION_BYTES; None if the bytes are no text in UTF-8."""
    if is_compressed and (longer := _decompressed(raw, MAX_CAPTION_BYTES)) is not None:
        raw = longer
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _decompressed(raw: bytes, most: int) -> bytes | None:
    """Return what Brotli makes of bytes; None if they are not Brotli's, or are cut off, or become more than `most`."""
    try:
        import brotli
    except ImportError as error:
        raise ImportError("this data set is compressed by Brotli row by row: run `pip install brotli`.") from error
    decompressor = brotli.Decompressor()
    try:
        made = decompressor.process(raw, output_buffer_limit=most + 1)
    except brotli.error:
        return None
    return made if decompressor.is_finished() and len(made) <= most else None
