"""The checkpoints in the folder of a peer that takes them: which is the newest, and what no longer counts."""

import shutil
from contextlib import suppress
from pathlib import Path

from dalle_lib.checkpoint import read_header
from dalle_lib.run.files import CHECKPOINTS, MODEL, OPTIMIZER, epoch_named
from dalle_lib.swarm.process.folder import epoch_in


def go_on(folder: Path) -> int:
    """Return the epoch of the newest checkpoint in a peer's folder, or -1, and remove what was not finished there."""
    for unfinished in (folder / CHECKPOINTS).glob(".epoch-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for place in sorted((folder / CHECKPOINTS).glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError):  # of a broken one, the next one counts
            read_header(place / MODEL)
            epoch = epoch_in(read_header(place / OPTIMIZER)[1])
            show_newest(place, folder)
            return epoch
    return -1


def set_aside(folder: Path, epoch: int, aside: Path) -> None:
    """Move the checkpoints of an epoch and of later ones in a peer's folder to `aside`, where none counts."""
    aside.mkdir(parents=True, exist_ok=True)
    # The newest goes last: where this is ended in between, the run is found to have gone back once more.
    for place in sorted((folder / CHECKPOINTS).glob("epoch-*")):
        if (of := epoch_named(place.name)) is not None and of >= epoch:
            place.rename(aside / place.name)


def show_newest(place: Path, folder: Path) -> None:
    """Make the files of a checkpoint what this peer has saved last, with which others draw."""
    for name in MODEL, OPTIMIZER:
        link = folder / f".{name}"
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(place / name)
        except OSError:  # a file system without links, such as a mounted drive's
            shutil.copyfile(place / name, link)
        link.replace(folder / name)
