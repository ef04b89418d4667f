"""Pictures from before and after training, and from before and after CLIP's choice, as one sheet each."""

import base64
from collections.abc import Sequence
from html import escape

from IPython.display import HTML
from PIL import Image, ImageDraw

from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.dashboard.summary import KINDS, NOT_EXAMINED, NOT_RANKED
from dalle_lib.dashboard.tables import sentence
from dalle_lib.evaluation import Drawn, Examination
from dalle_lib.inference import Drawing
from dalle_lib.inference.drawing import png_bytes

SHOWN = 8
"""Captions of each kind in the grid."""
GAP = 8
"""Pixels between two pictures of a sheet."""
INDENT = 24
"""Pixels by which CLIP's choice stands apart from the first sample."""
_HEADER, _LABEL = 40, 64


def grid(
    before: Examination | None, after: Examination | None, shown: int = SHOWN, side: int = 96
) -> Image.Image | HTML:
    """Return a sheet of the first pictures of both examinations: a column for each caption, before above after.

    Pictures are `side` pixels wide. Where the model was not examined, a sentence for a notebook says so instead.
    """
    if before is None or after is None:
        return sentence(NOT_EXAMINED)
    cell = side + GAP
    height = _HEADER + 2 * cell
    sheet = Image.new("RGB", (_LABEL + shown * cell, len(KINDS) * height), "white")
    draw = ImageDraw.Draw(sheet)
    for block, (kind, title) in enumerate(KINDS.items()):
        top = block * height
        draw.text((4, top + 2), title, fill="#555555")
        for i, caption in enumerate(getattr(before, kind).captions[:shown]):
            draw.multiline_text((_LABEL + i * cell, top + 14), wrapped(caption), fill="black", spacing=1)
        for line, (name, examination) in enumerate({"before": before, "after": after}.items()):
            y = top + _HEADER + line * cell
            draw.text((4, y + side // 2), name, fill="black")
            drawn: Drawn = getattr(examination, kind)
            for i, picture in enumerate(drawn.pictures[:shown]):
                sheet.paste(_resized(Image.fromarray(picture.numpy()), side), (_LABEL + i * cell, y))
    return sheet


def ranked_grid(drawings: Sequence[Drawing], side: int = 96) -> Image.Image | HTML:
    """Return a sheet with a row for each caption: the first sample, then the best different candidates by CLIP.

    Pictures are `side` pixels wide. Where nothing was drawn, a sentence for a notebook says so instead.
    """
    if not drawings:
        return sentence(NOT_RANKED)
    cell, label, header = side + GAP, 112, 28
    best = max(4, *(len(drawing.best) for drawing in drawings))  # four give the heading room
    candidates = len(drawings[0].candidates)
    sheet = Image.new("RGB", (label + (1 + best) * cell + INDENT, header + len(drawings) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((label, 8), "first sample", fill="#555555")
    draw.text((label + cell + INDENT, 8), f"the best of {candidates} by CLIP, and how many are alike", fill="#555555")
    for i, drawing in enumerate(drawings):
        y = header + i * cell
        draw.multiline_text((4, y + side // 3), wrapped(drawing.prompt), fill="black", spacing=1)
        sheet.paste(_resized(Image.fromarray(drawing.candidates[0].numpy()), side), (label, y))
        for k, (picture, choice) in enumerate(zip(drawing.pictures, drawing.choices, strict=True), start=1):
            x = label + k * cell + INDENT
            sheet.paste(_resized(picture, side), (x, y))
            place, outline = (x + side - 2, y + side - 2), {"stroke_width": 2, "stroke_fill": "white"}
            draw.text(place, f"x{choice.count}", fill="black", anchor="rs", **outline)
    return sheet


def on_page(sheet: Image.Image | HTML, told: str) -> HTML:
    """Return a sheet in its own size for a notebook, so that its captions stay legible where the page is narrow.

    `told` says in words what the sheet shows. A sentence in place of a sheet stays as it is.
    """
    if isinstance(sheet, HTML):
        return sheet
    return HTML(scrolling(picture_html(sheet, told, "max-width:none")))


def picture_html(picture: Image.Image, told: str, style: str = "") -> str:
    """Return a picture as an HTML tag that holds its bytes, so that an exported page still shows it.

    `told` says what is asked for or seen in it, for those who do not see it.
    """
    data = base64.b64encode(png_bytes(picture)).decode()
    return f"<img alt='{escape(told)}' style='{style}' src='data:image/png;base64,{data}'>"


def _resized(picture: Image.Image, side: int) -> Image.Image:
    return picture.resize((side, side), Image.Resampling.NEAREST)


def wrapped(caption: str, width: int = 17) -> str:
    """Return `caption` in lines of fewer than `width` characters, broken between words."""
    lines = [""]
    for word in caption.split():
        if len(lines[-1]) + len(word) >= width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
