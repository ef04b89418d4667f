"""A data set that is being made, for a notebook: its pictures, what was left out, its bytes, what codes keep."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
from IPython.display import HTML
from PIL import Image, ImageDraw

from dalle_lib.dashboard.grids import on_page, wrapped
from dalle_lib.dashboard.tables import sentence, table_html
from dalle_lib.files import reading
from dalle_lib.streaming import CodeRow
from dalle_lib.streaming.batches import codes_of
from dalle_lib.streaming.prepare import Prepared
from dalle_lib.streaming.prepare.card import PREVIEW
from dalle_lib.vqgan import VQGAN

_SIDE, _GAP, _LINES, _COLUMNS = 96, 8, 28, 8
"""Pixels of a picture's side, between two, and for the two lines of a caption; pictures in a row."""


def captioned(pairs: Sequence[tuple[str, np.ndarray]]) -> HTML:
    """Return pictures, each above its caption, in rows of eight; where there are none, a sentence that says so."""
    if not pairs:
        return sentence("No picture with a caption can be used: preparing the source says why.")
    return on_page(_sheet([(caption, [picture]) for caption, picture in pairs]), "pictures above their captions")


def left_out(prepared: Prepared) -> HTML:
    """Return how many pairs of picture and caption were left out, by why, and how many were kept."""
    rows = [*sorted(prepared.counts.items()), ("kept", prepared.rows)]
    total = sum(count for _, count in rows)
    return HTML(
        table_html(["pairs", "number", "share"], [(escape(why), f"{n:,}", f"{n / total:.1%}") for why, n in rows])
    )


def bytes_by_step(prepared: Prepared) -> HTML:
    """Return what the pictures that were kept take, all and one, as files, as pixels, as codes and as published."""
    codes = next(iter(prepared.manifests.values())).format
    side, bits = prepared.resolution, (codes.codebook_size - 1).bit_length()
    steps = {
        "the pictures' files": prepared.source_bytes,
        f"{side}x{side} pixels, 8 bits a colour": prepared.rows * side**2 * 3,
        f"{codes.grid}x{codes.grid} codes, {bits} bits each": prepared.rows * codes.grid**2 * bits // 8,
        "published: codes with captions, compressed": prepared.bytes,
    }
    rows = [(name, f"{size:,}", f"{size / prepared.rows:,.0f}") for name, size in steps.items()]
    return HTML(table_html(["step", "bytes", "a picture"], rows))


def beside_originals(prepared: Prepared, rows: Sequence[CodeRow], vqgan: VQGAN, shown: int = 16) -> HTML:
    """Return pictures of the data set's preview, each above what the codes of a row with its caption make of it.

    `rows` are rows that were read back. A caption that several of them, or of the preview, have is left out, as it does
    not say which is which. Where none is left, a sentence says so instead. Raises BrokenFile for a damaged preview.
    """
    file = prepared.folder / PREVIEW
    if not file.exists():
        return sentence("This data set has no preview, which has the originals: it was prepared with preview=0.")
    with reading(file, "the preview of a data set", "Prepare the data set again: it is written anew."):
        table = pq.read_table(file, columns=["caption", "picture"])
    captions, read = table["caption"].to_pylist(), Counter(row.caption for row in rows)
    originals = dict(zip(captions, table["picture"].to_pylist(), strict=True))
    known = {caption for caption, count in Counter(captions).items() if count == 1}
    found = [row for row in rows if row.caption in known and read[row.caption] == 1][:shown]
    if not found:
        return sentence("None of these rows is in the preview, which has the originals: read more of them.")
    decoded = vqgan.decode(codes_of(found)).numpy()
    pairs = [
        (row.caption, [np.asarray(Image.open(BytesIO(originals[row.caption]["bytes"]))), made])
        for row, made in zip(found, decoded, strict=True)
    ]
    return on_page(_sheet(pairs), "original pictures above what their codes, read back, make of them")


def _sheet(columns: Sequence[tuple[str, list[np.ndarray]]]) -> Image.Image:
    """Return columns of pictures, each above its caption, in rows of _COLUMNS."""
    high = len(columns[0][1])
    width, height = _SIDE + _GAP, high * (_SIDE + _GAP) + _LINES
    sheet = Image.new("RGB", (min(len(columns), _COLUMNS) * width, -(-len(columns) // _COLUMNS) * height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (caption, pictures) in enumerate(columns):
        x, y = number % _COLUMNS * width, number // _COLUMNS * height
        for line, picture in enumerate(pictures):
            small = Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
            sheet.paste(small, (x, y + line * (_SIDE + _GAP)))
        words = wrapped(caption, 17).split("\n")[:2]
        draw.multiline_text((x, y + high * (_SIDE + _GAP) - 4), "\n".join(words), fill="black", spacing=1)
    return sheet
