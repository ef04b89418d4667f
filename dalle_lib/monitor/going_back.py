"""What a monitor forgets where its run has gone back to an earlier epoch: what belongs to the part that does not go on.

Its peer has decided that, by the epoch of most users and the states of two, and has set checkpoints aside.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from dalle_lib.monitor.checkpoints import folder_of
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import BEST, PICTURES
from dalle_lib.run.files import epoch_named
from dalle_lib.swarm.process.gone_back import BACK_S, asides_in


def go_back(folder: Path, place: Path, database: MonitorDatabase) -> list[Path]:
    """Forget, once, what is known of checkpoints that were set aside in the folder `place` of a monitor's peer.

    Return the folders in which they are, unless it is forgotten already. The epochs after them are noted again as they
    come. Nobody's credit changes, but what peers claim is compared with what others saw from now on alone: who has made
    an epoch twice would seem to claim too much. Pictures in the monitor's folder go to where the checkpoints are.
    """
    return [aside for aside, told in asides_in(place).items() if _forget(aside, *told, folder, place, database)]


def _forget(aside: Path, epoch: int, at: int, folder: Path, place: Path, database: MonitorDatabase) -> bool:
    # What was set aside is older than that by BACK_S, and what came instead is newer, but for the clock of the disk.
    since = {"epoch": epoch, "before": at - BACK_S / 2}
    with database.writing():
        rows = database.rows("SELECT epoch, made FROM checkpoints WHERE epoch >= :epoch AND made < :before", **since)
        gone = [row["epoch"] for row in rows if not _is_here(place, **row)]
        if not gone:
            return False
        # Where this is ended in between, all of it is done anew.
        for name in PICTURES, BEST:
            for file in (folder / name).glob("*.webp"):
                if (of := epoch_named(file.stem)) is not None and of >= epoch:
                    shutil.move(file, aside / f"{name}-{file.name}")
        for each in gone:
            database.change("DELETE FROM checkpoints WHERE epoch = :epoch", epoch=each)
        database.change("DELETE FROM epochs WHERE epoch >= :epoch AND ended < :before", **since)
        for table in "claims", "weights":
            database.change(f"DELETE FROM {table}")
        for column in "run_epoch", "origin_epoch":
            database.change(f"UPDATE starts SET {column} = :epoch WHERE {column} > :epoch", epoch=epoch)
    return True


def _is_here(place: Path, epoch: int, made: float) -> bool:
    """Return whether this very checkpoint counts still: its peer was ended while it set some aside."""
    with suppress(OSError):
        return folder_of(place, epoch).stat().st_mtime == made
    return False
