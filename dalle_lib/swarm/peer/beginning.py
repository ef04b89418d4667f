"""Where a trainer begins: its own progress, the run's newest checkpoint, or the state of another peer."""

import logging
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dalle_lib.checkpoint import read_header
from dalle_lib.files import BrokenFile, replace_file
from dalle_lib.machine import require_room_in_cache
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.run.newest import newest_checkpoint
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.swarm.averaging.donors import SLOWEST_BYTES_PER_S, TELL_EVERY_S, Taking
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.state import resume
from dalle_lib.swarm.process.events import HUB, TAKING, EventLog
from dalle_lib.swarm.process.folder import epoch_in, saved_epoch

logger = logging.getLogger(__name__)

RECENT = 100
"""Epochs by which a state may be behind the others', so that a peer goes on from it and burdens no donor: its
parameters become theirs in the next round of parameters, and LAMB's statistics forget 98% in 100 epochs (0.96)."""
FROM_HUB = ".from-hub"
"""A file in a peer's folder that says that its state came from the Hub, and nobody has gone on from it yet."""
GRACE_S = 60.0
"""Seconds for which a checkpoint may come more slowly than SLOWEST_BYTES_PER_S."""


def fetch_state(card: RunCard, folder: Path, events: EventLog) -> None:
    """Fetch the run's newest checkpoint from the Hub into a peer's folder, unless what is there is nearly as recent.

    Where that fails, or comes more slowly than a donor may give it, the peer begins without it, and a donor gives it
    the state. Raises NotEnoughRoom.
    """
    try:
        own, newest = saved_epoch(folder), newest_checkpoint(card)
        if newest is None or (own is not None and newest.epoch <= own + RECENT // 2):
            return
        size = sum(newest.bytes[name] for name in (MODEL, OPTIMIZER))
        require_room_in_cache(f"the state of run {card.name!r}", lambda: (2 * size, size))
        before, here = 0, {}
        for name in MODEL, OPTIMIZER:
            here[name] = newest.fetched(name, _telling(events, before, size))
            before += newest.bytes[name]
        if (epoch := epoch_in(read_header(here[OPTIMIZER])[1])) != newest.epoch:
            raise ValueError(f"expected a state of epoch {newest.epoch:,}, but it is of epoch {epoch:,}")
        (folder / FROM_HUB).touch()
        for name, fetched in here.items():  # by the second one a peer has progress
            with replace_file(folder / name) as unfinished:
                shutil.copyfile(fetched, unfinished)
        logger.info("begins with %r", newest)
    except (OSError, ValueError) as error:
        logger.warning("begins without the run's newest checkpoint: %s", in_one_line(error))
        events.write("problem", peer="", problem=f"begins without the newest checkpoint: {in_one_line(error)}")


def _telling(events: EventLog, before: int, size: int) -> Callable[[int], None]:
    """Return what writes how much of a checkpoint is here, every few seconds, and gives up one that comes too slowly.

    `before` of its `size` bytes have come already.
    """
    began, told_at = time.monotonic(), -math.inf

    def tell(came: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - began > GRACE_S and came < SLOWEST_BYTES_PER_S * (now - began):
            raise TimeoutError(f"it comes with less than {SLOWEST_BYTES_PER_S:,} bytes a second")
        if now >= told_at + TELL_EVERY_S:
            told_at = now
            events.write(TAKING, **vars(Taking(HUB, share=min(1.0, (before + came) / size))))

    return tell


def take_up(folder: Path, optimizer: CollaborativeOptimizer, batches: TrainingBatches, events: EventLog) -> None:
    """Go on from the state in a peer's folder, or from that of another peer where its own is missing or old.

    How it stands with another's is written to `events`, now and whenever one is taken over later. Raises BrokenFile as
    `resume` does; where it is a checkpoint from the Hub that cannot be the run's, the peer begins without it.
    """
    optimizer.state_averager.tell_taking = lambda taking: events.write(TAKING, **vars(taking))
    try:
        resume(folder, optimizer, batches)
    except BrokenFile as error:
        give_up_fetched(folder, error, events)
    (folder / FROM_HUB).unlink(missing_ok=True)
    behind = optimizer.tracker.global_epoch - optimizer.local_epoch
    if optimizer.local_epoch > 0 and 0 < behind <= RECENT:
        optimizer.average_state_with_peers()
    elif behind > 0:
        optimizer.load_state_from_peers()


def give_up_fetched(folder: Path, error: BrokenFile, events: EventLog) -> None:
    """Remove the state in a peer's folder if it came from the Hub, and tell why; else raise `error`."""
    if not (folder / FROM_HUB).exists():
        raise error
    for name in MODEL, OPTIMIZER:
        (folder / name).unlink(missing_ok=True)
    events.write("problem", peer="", problem=f"begins without the newest checkpoint: {in_one_line(error)}")
