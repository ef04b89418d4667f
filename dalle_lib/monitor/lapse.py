"""How a run's pictures became what they are: those of its checkpoints as one picture that moves."""

from pathlib import Path

from PIL import Image, ImageDraw

from dalle_lib.files import replace_file
from dalle_lib.monitor.drawings import PICTURES, spread
from dalle_lib.run.files import epoch_named

MAX_FRAMES = 30
"""Pictures of a time-lapse, which is sent with each checkpoint."""
FRAME_MS, LAST_MS = 700, 3000
"""Milliseconds of each picture in a time-lapse, and of the last one."""
_LINE = 18
"""Pixels of the line below that tells the epoch."""


def time_lapse(folder: Path, *files: Path) -> int:
    """Write the first samples of all checkpoints in a monitor's folder as a picture that moves; return its frames.

    Each of `files` ends with .webp or .gif. If there are more than MAX_FRAMES, evenly spread ones are taken, and the
    last. Nothing is written where there are none.
    """
    there = sorted(file for file in (folder / PICTURES).glob("*.webp") if epoch_named(file.stem) is not None)
    frames = [_frame(each) for each in spread(there, MAX_FRAMES)]
    if frames:
        lasts = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
        for file in files:
            kind = {".webp": "WEBP", ".gif": "GIF"}[file.suffix]
            file.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(file) as unfinished:
                frames[0].save(unfinished, kind, save_all=True, append_images=frames[1:], duration=lasts, loop=0)
    return len(frames)


def _frame(file: Path) -> Image.Image:
    """Return a checkpoint's pictures with its epoch below."""
    with Image.open(file) as opened:
        drawn = opened.convert("RGB")
    frame = Image.new("RGB", (drawn.width, drawn.height + _LINE), "white")
    frame.paste(drawn)
    ImageDraw.Draw(frame).text((3, drawn.height + 3), f"epoch {epoch_named(file.stem):,}", fill="black")
    return frame
