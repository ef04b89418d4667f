"""The pictures that a run's checkpoints have drawn, by their epochs, of which evenly spread ones are shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from dalle_lib.run.files import epoch_named

PICTURES, BEST = "pictures", "best"
"""Folders in that of the monitor with the same prompts in a grid, a file for each checkpoint: the first sample of each
prompt, and the best of several by the run's CLIP."""
MAX_SHOWN = 60
"""Checkpoints whose pictures are told of and sent."""
Item = TypeVar("Item")


def drawings(folder: Path) -> dict[int, dict[str, str]]:
    """Return the files of a monitor's folder with the pictures that are shown, by epoch and by PICTURES and BEST.

    There is always one of PICTURES, the name of each file is in `folder`, and the newest checkpoint is among them.
    """
    there = {epoch_named(file.stem): file.name for file in (folder / PICTURES).glob("*.webp")}
    epochs = spread(sorted(epoch for epoch in there if epoch is not None), MAX_SHOWN)
    return {
        epoch: {name: f"{name}/{there[epoch]}" for name in (PICTURES, BEST) if (folder / name / there[epoch]).exists()}
        for epoch in epochs
    }


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, evenly spread, the first and the last among them.

    While `items` grow at their end, each of these stays, until every second one goes.
    """
    step, last = 1, len(items) - 1
    while len(range(0, len(items), step)) + (last % step != 0) > most:
        step *= 2
    chosen = list(items[::step])
    return chosen if last % step == 0 else [*chosen, items[-1]]
