"""States of the run, taken from two of its peers by one that does not train, and written as checkpoints."""

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hivemind
import torch

from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard, initial_model
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.bootstrap import help_others
from dalle_lib.swarm.peer.build import build_state_averager
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.peer.snapshot import Snapshot, take_snapshot
from dalle_lib.swarm.peer.state import save_state
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.folder import CHECKPOINTS, MODEL, OPTIMIZER, checkpoint_name
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

logger = logging.getLogger(__name__)

TRIES = 4
"""States that are taken until two users' are of one epoch."""
DIFFERENCE = 0.02
"""Largest distance of two donors' parameters, relative to their norm, that averaging in 8 bits explains."""
LOOK_EVERY_S, AGAIN_S = 1.0, 60.0
"""Seconds between looks at what is due, and until a state is asked for again that could not be taken."""
SLACK = 10
"""Epochs by which a state may be beyond that of the median peer."""


class DonorsDisagree(ValueError):
    """The states of two donors are further apart than averaging in 8 bits explains: one lies, or has drifted."""


@dataclass(frozen=True)
class Pulled:
    """A state of the run."""

    snapshot: Snapshot
    donors: tuple[str, ...]
    """Ids of the peers that gave it: one if no second one gave a state of the same epoch."""
    difference: float | None
    """How far the donors' parameters are apart, relative to their norm; None of one donor."""


class Puller:
    """Takes states from peers that may give theirs. Made before this process has threads: hivemind forks."""

    def __init__(self, card: RunCard, dht: hivemind.DHT, trust: Trust) -> None:
        self.card, self.trust = card, trust
        self.model = initial_model(card)
        self.averager = build_state_averager(card, self.model, dht, trust)

    def pull(self, earliest: int, latest: int) -> Pulled | None:
        """Return a state of two users' peers, or one if no other has one of its epoch; None if nobody gives any.

        It is of an epoch between these two. While the run goes on, the second state is often that of the next epoch:
        then the first donor, or another, is asked for that one. Raises DonorsDisagree.
        """
        last, self.averager.local_epoch = None, earliest
        for _ in range(TRIES):
            without = () if last is None else (self.trust.user_of(last.donors[0]),)
            timeout_s = self.card.averaging.timeout_s / 2
            donor = self.averager.load_state_from_peers(timeout_s, latest, without)
            if donor is None:
                break
            new = Pulled(take_snapshot(self.averager), (donor,), None)
            if last is not None and last.snapshot.epoch == new.snapshot.epoch:
                donors = last.donors + new.donors
                return Pulled(new.snapshot, donors, require_alike(last.snapshot, new.snapshot, donors))
            last = new
        return last

    def write(self, pulled: Pulled, folder: Path) -> Path:
        """Write a state into a folder of its own among a peer's checkpoints, whole or not at all, and return it."""
        place = folder / CHECKPOINTS / checkpoint_name(pulled.snapshot.epoch)
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with torch.no_grad():
            torch._foreach_copy_(self.averager.main_parameters, pulled.snapshot.parameters)
        save_state(unfinished, self.card, self.model, pulled.snapshot)
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)
        for name in (MODEL, OPTIMIZER):  # what this peer has saved last, with which others draw
            link = folder / f".{name}"
            link.unlink(missing_ok=True)
            link.hardlink_to(place / name)
            link.replace(folder / name)
        return place

    def close(self) -> None:
        """End the process that takes states."""
        self.averager.shutdown()


def observe(
    puller: Puller,
    dht: hivemind.DHT,
    board: MetricsBoard,
    settings: PeerSettings,
    folder: Path,
    events: EventLog,
    stop: threading.Event,
) -> None:
    """Help newcomers until `stop` is set; tell who is there, and write a checkpoint every `state_every_s` seconds."""
    taking = threading.Thread(target=_take_states, args=(puller, settings, folder, events, stop), daemon=True)
    taking.start()

    def users_of(peers: Sequence[PeerStatus]) -> dict[str, str]:
        ids = [peer.peer_id for peer in peers]
        return {peer: puller.trust.user_of(peer) for peer in ids if puller.trust.record_refusal(peer) is None}

    try:
        help_others(dht, board, puller.card, folder, events, stop, users_of if puller.trust.roster else lambda _: {})
    finally:
        stop.set()
        taking.join(puller.card.averaging.timeout_s)
        puller.close()


def _take_states(puller: Puller, settings: PeerSettings, folder: Path, events: EventLog, stop: threading.Event) -> None:
    """Write a checkpoint as soon as there is a new epoch, and then every `state_every_s` seconds.

    Where nobody gives a state, or two donors disagree, it is told, and tried again soon.
    """
    written, due = -1, time.monotonic()
    while not stop.wait(LOOK_EVERY_S):
        status = SwarmStatus.read(folder)
        if time.monotonic() < due or status is None or not status.peers or status.epoch <= max(0, written):
            continue
        due = time.monotonic() + min(settings.state_every_s, AGAIN_S)
        try:
            pulled = puller.pull(max(0, written), min(status.epoch + SLACK, status.total_epochs))
            if pulled is None or pulled.snapshot.epoch <= written:
                events.write("problem", peer="", problem="no peer gave a state of the run that is newer than the last")
                continue
            place = puller.write(pulled, folder)
        except DonorsDisagree as disagree:
            events.write("problem", peer="", problem=str(disagree))
        except Exception as error:  # whatever it is, the next state may be taken
            logger.exception("no checkpoint was written")
            events.write("problem", peer="", problem=f"no checkpoint was written: {in_one_line(error)}")
        else:
            written, due = pulled.snapshot.epoch, time.monotonic() + settings.state_every_s
            told = {"donors": pulled.donors, "difference": pulled.difference}
            events.write("checkpoint", epoch=written, folder=place.name, **told)


def require_alike(first: Snapshot, second: Snapshot, donors: tuple[str, str]) -> float:
    """Return how far the parameters of two donors are apart, relative to their norm.

    Raises DonorsDisagree for more than DIFFERENCE.
    """
    norms = torch.stack([parameter.norm() for parameter in first.parameters])
    apart = torch.stack([(a - b).norm() for a, b in zip(first.parameters, second.parameters, strict=True)])
    difference = float(apart.norm() / norms.norm().clamp(min=1e-12))
    if not difference <= DIFFERENCE:
        raise DonorsDisagree(
            f"the states of {' and '.join(donors)} at epoch {first.epoch} are {difference:.1%} apart, and averaging in "
            f"8 bits explains at most {DIFFERENCE:.0%}: neither is kept."
        )
    return difference
