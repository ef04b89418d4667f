"""The checkpoints of a run on this machine: noted when they are whole, and kept by their age."""

import logging
import shutil
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path

from dalle_lib.checkpoint import read_header
from dalle_lib.files import sha256_of
from dalle_lib.monitor.contributions import DAY_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.one_line import in_one_line
from dalle_lib.run.files import CHECKPOINTS, MODEL, OPTIMIZER, checkpoint_name, epoch_named

logger = logging.getLogger(__name__)

WEEK_S = 7 * DAY_S


def folder_of(place: Path, epoch: int) -> Path:
    """Return where a peer's folder holds the checkpoint of an epoch."""
    return place / CHECKPOINTS / checkpoint_name(epoch)


def found_in(place: Path) -> dict[int, Path]:
    """Return the folders of checkpoints in a peer's folder, by epoch, in order."""
    named = ((epoch_named(folder.name), folder) for folder in (place / CHECKPOINTS).glob("*"))
    return dict(sorted((epoch, folder) for epoch, folder in named if epoch is not None and folder.is_dir()))


def note_new(place: Path, database: MonitorDatabase) -> list[int]:
    """Write down the checkpoints in a peer's folder that are new, and return their epochs.

    One that cannot be read, as after a power cut, is removed: the next one is made anew.
    """
    new = []
    known = {row["epoch"] for row in database.rows("SELECT epoch FROM checkpoints")}
    for epoch, folder in found_in(place).items():
        if epoch in known:
            continue
        try:
            for name in (MODEL, OPTIMIZER):
                read_header(folder / name)
            database.insert(
                "checkpoints", epoch=epoch, made=folder.stat().st_mtime, sha256=sha256_of(folder / MODEL),
                bytes=sum((folder / name).stat().st_size for name in (MODEL, OPTIMIZER)), revision=None, figures=None,
            )  # fmt: skip
            new.append(epoch)
        except (OSError, ValueError) as error:
            logger.warning("the checkpoint in %s is removed: %s", folder, in_one_line(error))
            shutil.rmtree(folder, ignore_errors=True)
    return new


def remove_old(place: Path, database: MonitorDatabase) -> None:
    """Remove the checkpoints that are not kept by age."""
    made = {row["epoch"]: row["made"] for row in database.rows("SELECT epoch, made FROM checkpoints")}
    for epoch, folder in found_in(place).items():
        if epoch in made.keys() - kept_by_age(made):
            shutil.rmtree(folder, ignore_errors=True)


def kept_by_age(made: Mapping[int, float]) -> set[int]:
    """Return which epochs' checkpoints are kept: all of the last day, one a day of the last week, one a week before.

    The last one of a day or a week is taken. `made` says when each was made, in seconds since 1970. They are as old as
    the newest makes them, and of the time between two a day counts at most: so a pause of the run, or a clock that was
    ahead for a while, costs no more of them than a day does.
    """
    if not made:
        return set()
    kept: dict[tuple[str, int], int] = {}
    order = sorted(made)
    gaps = [min(DAY_S, max(0.0, made[after] - made[before])) for before, after in pairwise(order)]
    times = dict(zip(order, accumulate(gaps, initial=made[order[0]]), strict=True))
    for epoch, at in times.items():
        age = times[order[-1]] - at
        if age < DAY_S:
            kept["epoch", epoch] = epoch
        else:
            kept[("day", int(at // DAY_S)) if age <= WEEK_S else ("week", int(at // WEEK_S))] = epoch
    return set(kept.values())
