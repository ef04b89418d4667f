"""Pictures from before and after training, and from before and after CLIP's choice, as one sheet each."""

from PIL import Image, ImageDraw

from dalle_lib.evaluation import Drawn, Examination
from dalle_lib.inference import Drawing

SHOWN = 8
"""Captions of each kind in the grid."""


def grid(before: Examination, after: Examination, shown: int = SHOWN, side: int = 96) -> Image.Image:
    """Return the first pictures of both examinations: a column a caption, before above after."""
    cell, header, label = side + 8, 40, 64
    sheet = Image.new("RGB", (label + shown * cell, 2 * (header + 2 * cell)), "white")
    draw = ImageDraw.Draw(sheet)
    for block, kind in enumerate(("seen", "unseen")):
        top = block * (header + 2 * cell)
        title = "captions of the training data" if kind == "seen" else "combinations never seen in training"
        draw.text((4, top + 2), title, fill="#555555")
        for line, examination in enumerate((before, after)):
            drawn: Drawn = getattr(examination, kind)
            y = top + header + line * cell
            draw.text((4, y + side // 2), ("before", "after")[line], fill="black")
            for i in range(min(shown, len(drawn.captions))):
                picture = Image.fromarray(drawn.pictures[i].numpy()).resize((side, side), Image.Resampling.NEAREST)
                sheet.paste(picture, (label + i * cell, y))
                if line == 0:
                    draw.multiline_text((label + i * cell, top + 14), _wrap(drawn.captions[i]), fill="black", spacing=1)
    return sheet


def ranked_grid(drawings: list[Drawing], side: int = 96) -> Image.Image:
    """Return a row a caption: the first sample as it came, then the best of all candidates by CLIP."""
    cell, label, header = side + 8, 200, 28
    best, candidates = len(drawings[0].best), len(drawings[0].candidates)
    sheet = Image.new("RGB", (label + (1 + best) * cell + 24, header + len(drawings) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((label, 8), "first sample", fill="#555555")
    draw.text((label + cell + 24, 8), f"CLIP's best {best} of {candidates}", fill="#555555")
    for i, drawing in enumerate(drawings):
        y = header + i * cell
        draw.multiline_text((4, y + side // 3), _wrap(drawing.prompt, 30), fill="black", spacing=1)
        for k, picture in enumerate([Image.fromarray(drawing.candidates[0].numpy()), *drawing.pictures]):
            x = label + k * cell + (24 if k else 0)
            sheet.paste(picture.resize((side, side), Image.Resampling.NEAREST), (x, y))
    return sheet


def _wrap(caption: str, width: int = 17) -> str:
    lines = [""]
    for word in caption.split():
        if len(lines[-1]) + len(word) >= width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
