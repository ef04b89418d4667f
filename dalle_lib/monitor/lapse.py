"""How a run's pictures became what they are: those of all its checkpoints as one picture that moves."""

import json
import re
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw

from dalle_lib.files import replace_file, small_text
from dalle_lib.organizing.model_page import PAGE_FOLDER, PROMPTS_FILE

PICTURES = "pictures"
"""Folder in that of a monitor with a grid of each checkpoint's first samples of the same prompts."""
COLUMNS = 4
"""Pictures beside each other in a grid."""
MAX_FRAMES = 30
"""Pictures of a time-lapse, which is sent with each checkpoint."""
FRAME_MS, LAST_MS = 700, 3000
"""Milliseconds of each picture in a time-lapse, and of the last one."""
_LINE, _LETTER = 13, 6
"""Pixels of a line of text, and of a letter, about."""


def prompts_in(folder: Path) -> list[str]:
    """Return the prompts that are drawn with each checkpoint of the monitor in a folder; none before the first."""
    file = folder / PAGE_FOLDER / PROMPTS_FILE
    if not file.exists():
        return []
    told = json.loads(small_text(file))
    return told["seen"] + told["unseen"]


def time_lapse(folder: Path, *files: Path) -> int:
    """Write the pictures of all checkpoints in a monitor's folder as one that moves, and return how many there are.

    Each of `files` ends with .webp or .gif. Of more than MAX_FRAMES, evenly spread ones are taken, and the last.
    Nothing is written where there are none.
    """
    prompts, there = prompts_in(folder), sorted((folder / PICTURES).glob("epoch-*.webp"))[::-1]
    frames = [_frame(each, prompts) for each in there[:: max(1, -(-len(there) // MAX_FRAMES))][::-1]]
    if frames:
        lasts = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(file) as unfinished:
                kind = {".webp": "WEBP", ".gif": "GIF"}[file.suffix]
                frames[0].save(unfinished, kind, save_all=True, append_images=frames[1:], duration=lasts, loop=0)
    return len(frames)


def _frame(file: Path, prompts: list[str]) -> Image.Image:
    """Return a checkpoint's pictures, with the epoch below, and their prompts above if they are in one row."""
    with Image.open(file) as opened:
        drawn = opened.convert("RGB")
    columns = prompts if len(prompts) <= COLUMNS else []
    cell = drawn.width // max(1, len(columns))
    told = [textwrap.wrap(prompt, cell // _LETTER - 1)[:4] for prompt in columns]
    top = _LINE * max(map(len, told), default=0) + 4
    frame = Image.new("RGB", (drawn.width, top + drawn.height + _LINE + 6), "white")
    draw = ImageDraw.Draw(frame)
    for number, lines in enumerate(told):
        draw.multiline_text((number * cell + 3, 2), "\n".join(lines), fill="black", spacing=1)
    frame.paste(drawn, (0, top))
    epoch = int(re.search(r"\d+", file.stem)[0])
    draw.text((3, top + drawn.height + 3), f"epoch {epoch:,}", fill="black")
    return frame
