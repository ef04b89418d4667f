"""How a run's pictures came about, on a page: those of its checkpoints as one picture that moves."""

import base64
from html import escape
from pathlib import Path

from IPython.display import HTML

from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.dashboard.tables import sentence
from dalle_lib.files import read_record, small_bytes
from dalle_lib.monitor.lapse import time_lapse
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.organizing.model_page import LAPSE, PAGE_FOLDER, PROMPTS_FILE
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.newest import file_of_monitor
from dalle_lib.swarm import Crew, LocalSwarm
from dalle_lib.swarm.process.local import MONITOR

NAME = "time_lapse"
"""The files in the folder of a report, as WebP and, of a swarm on this machine, as GIF."""
MAX_PROMPTS = 50
NO_LAPSE = "There are no pictures of checkpoints: "


def write_lapse(crew: Crew, out: Path) -> int:
    """Write what the monitor of a swarm on this machine has drawn into the folder `out`; return how many pictures."""
    if not isinstance(crew, LocalSwarm):
        return 0
    return time_lapse(crew.folder / MONITOR, *(out / f"{NAME}.{kind}" for kind in ("webp", "gif")))


def show_lapse(crew: Crew, card: RunCard, out: str | Path) -> HTML:
    """Return the time-lapse of a run for a notebook, and write it into the folder `out`.

    It is that of the monitor of a swarm on this machine; for a run of others, that of its monitor on the Hub. Where
    there is none, a sentence says so instead.
    """
    file = Path(out, f"{NAME}.webp")
    if isinstance(crew, LocalSwarm):
        if write_lapse(crew, Path(out)) == 0:
            return sentence(f"{NO_LAPSE}the monitor has drawn nothing.")
        prompts = _prompts(crew.folder / MONITOR / PAGE_FOLDER / PROMPTS_FILE)
        told = f"Also at {file} and, to send around, as a GIF beside it."
    else:
        if card.checkpoints is None:
            return sentence(f"{NO_LAPSE}the run's card names no place for them.")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(small_bytes(file_of_monitor(card, f"{PAGE_FOLDER}/{LAPSE}"), MAX_CARD_BYTES))
            prompts = _prompts(file_of_monitor(card, f"{PAGE_FOLDER}/{PROMPTS_FILE}"))
        except (OSError, ValueError) as error:
            return sentence(f"{NO_LAPSE}{printable(in_one_line(error))}")
        told = f"From {card.checkpoints}, also at {file}."
    data = base64.b64encode(file.read_bytes()).decode()
    prompts = [printable(prompt) for prompt in prompts[:MAX_PROMPTS]]
    seen = f"the same prompts drawn with one checkpoint after the other: {', '.join(prompts)}"
    picture = f"<img alt='{escape(seen)}' style='max-width:none' src='data:image/webp;base64,{data}'>"
    listed = "".join(f"<li>{escape(prompt)}</li>" for prompt in prompts)
    return HTML(f"{scrolling(picture)}<ol>{listed}</ol>{sentence(told).data}")


def _prompts(file: Path) -> list[str]:
    """Return the prompts in a file, in the order of the pictures; none before the first checkpoint."""
    try:
        return read_record(file, lambda told: [str(each) for each in told["seen"] + told["unseen"]], "Try again later.")
    except FileNotFoundError:
        return []
