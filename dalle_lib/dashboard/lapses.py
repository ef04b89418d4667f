"""How a run's pictures came about, on a page: those of all checkpoints as one picture that moves."""

import base64
from html import escape
from pathlib import Path

from IPython.display import HTML

from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.dashboard.tables import sentence
from dalle_lib.monitor.lapse import time_lapse
from dalle_lib.swarm import Crew
from dalle_lib.swarm.process.local import MONITOR, LocalSwarm

LAPSE = "time_lapse"
"""The files in the folder of a report, as WebP and as GIF."""
NO_LAPSE = (
    "No monitor runs on this machine beside a run of others: the run's own draws with each checkpoint, and sends the "
    "pictures to where the run's card says."
)


def write_lapse(crew: Crew, out: Path) -> int:
    """Write what the monitor of a swarm on this machine has drawn into the folder `out`; return how many pictures."""
    if not isinstance(crew, LocalSwarm):
        return 0
    return time_lapse(crew.folder / MONITOR, *(out / f"{LAPSE}.{kind}" for kind in ("webp", "gif")))


def show_lapse(crew: Crew, out: str | Path) -> HTML:
    """Return the time-lapse of a swarm on this machine for a notebook, and write it into the folder `out`.

    Where there is no monitor here, or it has drawn nothing, a sentence says so instead.
    """
    count, file = write_lapse(crew, Path(out)), Path(out, f"{LAPSE}.webp")
    if count == 0:
        return sentence(NO_LAPSE if not isinstance(crew, LocalSwarm) else "The monitor has drawn nothing.")
    told = f"the same prompts drawn with each of {count} checkpoints, from before training to the last one"
    data = base64.b64encode(file.read_bytes()).decode()
    picture = f"<img alt='{escape(told)}' style='max-width:none' src='data:image/webp;base64,{data}'>"
    return HTML(scrolling(picture) + sentence(f"Also at {file} and, to send around, as a GIF beside it.").data)
