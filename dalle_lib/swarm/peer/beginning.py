"""Where a trainer begins: its own progress, the run's newest checkpoint, or the state of another peer."""

import logging
import shutil
from pathlib import Path

from dalle_lib.files import replace_file
from dalle_lib.machine import require_room_in_cache
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.newest import newest_checkpoint
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.state import resume
from dalle_lib.swarm.process.folder import MODEL, OPTIMIZER, saved_epoch

logger = logging.getLogger(__name__)

RECENT = 100
"""Epochs by which a state may be behind the others', so that a peer goes on from it and burdens no donor: its
parameters become theirs in the next round of parameters, and LAMB's statistics forget 98% in 100 epochs (0.96)."""


def fetch_state(card: RunCard, folder: Path) -> None:
    """Put the run's newest checkpoint on the Hub into a peer's folder, unless what is there is nearly as recent.

    Where that fails, the peer begins without it, and a donor gives it the state. Raises NotEnoughRoom.
    """
    try:
        own, newest = saved_epoch(folder), newest_checkpoint(card)
        if newest is None or (own is not None and newest.epoch <= own + RECENT // 2):
            return
        size = sum(newest.bytes[name] for name in (MODEL, OPTIMIZER))
        require_room_in_cache(f"the state of run {card.name!r}", lambda: (2 * size, size))
        for name in MODEL, OPTIMIZER:  # by the second one a peer has progress
            fetched = newest.fetched(name)
            with replace_file(folder / name) as unfinished:
                shutil.copyfile(fetched, unfinished)
        logger.info("begins with %r", newest)
    except (OSError, ValueError) as error:
        logger.warning("begins without the run's newest checkpoint: %s", in_one_line(error))


def take_up(folder: Path, optimizer: CollaborativeOptimizer, batches: TrainingBatches) -> None:
    """Go on from the state in a peer's folder, or from that of another peer where its own is missing or old.

    Raises BrokenFile as `resume` does.
    """
    resume(folder, optimizer, batches)
    behind = optimizer.tracker.global_epoch - optimizer.local_epoch
    if optimizer.local_epoch > 0 and 0 < behind <= RECENT:
        optimizer.average_state_with_peers()
    elif behind > 0:
        optimizer.load_state_from_peers()
