"""A small monitor of a swarm on this machine: in a thread of the program that started the swarm, and ends with it."""

import logging
import threading
from pathlib import Path

from dalle_lib.monitor.monitor import Monitor
from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm import Crew, LocalSwarm, Peer, PeerFailed, PeerSettings, join
from dalle_lib.swarm.process.local import LOCALHOST, MONITOR

logger = logging.getLogger(__name__)

SMALL = MonitorSettings(checkpoint_minutes=1.0, look_s=2.0, status_s=10.0, rows=64, prompts=4, judges=False)
"""What costs two busy processors little."""


def watch_over(crew: Crew, settings: MonitorSettings = SMALL) -> Path | None:
    """Start a monitor of a swarm on this machine, and return its folder; None for peers in a run of others.

    It keeps a checkpoint now and then and draws with each. It ends when the swarm is asked to leave; `crew.close` waits
    for it. What it has to tell goes to the log, because it must not write over what a notebook or a terminal shows.
    """
    if not isinstance(crew, LocalSwarm):
        return None
    folder = crew.folder / MONITOR
    watcher = threading.Thread(target=_watch, args=(crew, folder, settings), daemon=True)
    crew.watchers.append(watcher)
    watcher.start()
    return folder


def _watch(swarm: LocalSwarm, folder: Path, settings: MonitorSettings) -> None:
    started: list[Peer] = []

    def start() -> Peer:
        if started:  # another program has ended it, with the whole swarm
            swarm.leaving.set()
            raise ValueError("it has ended, and so does the monitor.")
        own = PeerSettings(
            run=swarm.run, name=MONITOR, role="observer", host=LOCALHOST,
            state_every_s=60 * settings.checkpoint_minutes, keeps_signed=settings.record,
        )  # fmt: skip
        started.append(join(own, folder / MONITOR))
        return started[0]

    try:
        Monitor(swarm.run, folder, start, settings).follow(swarm.leaving)
    except (OSError, ValueError, PeerFailed) as error:  # the swarm does not need it
        logger.warning("the monitor has ended: %s", in_one_line(error))
