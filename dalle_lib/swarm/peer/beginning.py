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
from dalle_lib.swarm.peer.snapshot import Snapshot, restore_snapshot, take_snapshot
from dalle_lib.swarm.peer.state import read_state, resume_batches
from dalle_lib.swarm.process.events import HUB, TAKING, EventLog
from dalle_lib.swarm.process.folder import epoch_in, none_usable, place_of_last, saved_epoch, states_in

logger = logging.getLogger(__name__)

RECENT = 100
"""Epochs by which a state may be behind the others', so that a peer goes on from it and burdens no donor: its
parameters become theirs in the next round of parameters, and LAMB's statistics forget 98% in 100 epochs (0.96)."""
FROM_HUB = ".from-hub"
"""A file in a peer's folder that says that its state came from the Hub, and nobody has gone on from it yet."""
ASIDE = "its saved progress {} is broken ({}), and it {}. Remove {}, and check this disk if it happens again."
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
        last = place_of_last(folder, epoch)
        for name, fetched in here.items():  # by the second one a peer has progress
            with replace_file(folder / name, durable=True, before=last if name == OPTIMIZER else None) as unfinished:
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


def take_up(
    folder: Path, optimizer: CollaborativeOptimizer, batches: TrainingBatches, events: EventLog, fingerprint: str
) -> None:
    """Go on from the state in a peer's folder, or from that of another peer where its own is missing or old.

    How it stands with another's is written to `events`, now and whenever one is taken over later. `fingerprint` is that
    of the run's card. Raises BrokenFile as `last_state` does.
    """
    averager, tracker = optimizer.state_averager, optimizer.tracker
    averager.tell_taking = lambda taking: events.write(TAKING, **vars(taking))
    if states_in(folder):
        found = last_state(folder, take_snapshot(averager), fingerprint, events, has_others=tracker.global_epoch > 0)
        if found is not None:
            restore_snapshot(optimizer, found[1])
            resume_batches(found[0], batches)
    (folder / FROM_HUB).unlink(missing_ok=True)
    behind = tracker.global_epoch - optimizer.local_epoch
    if optimizer.local_epoch > 0 and 0 < behind <= RECENT:
        optimizer.average_state_with_peers()
    elif behind > 0:
        optimizer.load_state_from_peers()


def last_state(
    folder: Path, own: Snapshot, fingerprint: str, events: EventLog, *, has_others: bool
) -> tuple[Path, Snapshot] | None:
    """Return the file and the state from which a peer goes on: the last one that can be used, or None if none can.

    `own` is the optimizer's state now. Those that cannot be used are set aside, and it is told what follows. Where none
    can, and no other peers have any (`has_others`), this raises BrokenFile, and nothing is changed.
    """
    broken: dict[Path, BrokenFile] = {}
    found = None
    for file in states_in(folder):
        try:
            found = file, read_state(file, own, fingerprint)
            break
        except BrokenFile as error:
            if file.name == OPTIMIZER and (folder / FROM_HUB).exists():
                give_up_fetched(folder, error, events)
            else:
                broken[file] = error
    if broken and found is None and not has_others:
        raise none_usable(broken)
    begins = "takes over the others' progress" if found is None else f"goes on from that of epoch {found[1].epoch:,}"
    for file, error in broken.items():
        why, aside = in_one_line(error.__cause__ or error), file.replace(file.with_suffix(".broken"))
        events.write("problem", peer="", problem=ASIDE.format(file.name, why, begins, aside))
    return found


def give_up_fetched(folder: Path, error: BrokenFile, events: EventLog) -> None:
    """Remove the state in a peer's folder if it came from the Hub, and tell why; else raise `error`."""
    if not (folder / FROM_HUB).exists():
        raise error
    for name in MODEL, OPTIMIZER:
        (folder / name).unlink(missing_ok=True)
    events.write("problem", peer="", problem=f"begins without the newest checkpoint: {in_one_line(error)}")
