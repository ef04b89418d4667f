"""States of the run, taken from two of its peers by one that does not train, and written as checkpoints."""

import logging
import random
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hivemind
import torch

from dalle_lib.auth import AccessToken
from dalle_lib.files import is_disk_full
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard, initial_model
from dalle_lib.run.files import CHECKPOINTS, checkpoint_name
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.bootstrap import help_others
from dalle_lib.swarm.peer.build import build_state_averager
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.peer.snapshot import Snapshot, take_snapshot
from dalle_lib.swarm.peer.state import save_state
from dalle_lib.swarm.peer.taken import go_on, set_aside, show_newest
from dalle_lib.swarm.process.drift import DIFFERENCE
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.gone_back import GoneBack, place_aside
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

logger = logging.getLogger(__name__)

TRIES = 4
"""States that are taken until two users' agree."""
LOOK_EVERY_S, AGAIN_S = 1.0, 60.0
"""Seconds between looks at what is due, and until a state is asked for again after a failure; twice as many after each
further one, because each try costs volunteers their upload."""
LOOK_UP_S = 5.0
"""Seconds in which one look at the swarm looks for access tokens that are not known."""
SLACK = 10
"""Epochs by which a state may be beyond that of the median peer."""


class DonorsDisagree(ValueError):
    """No two donors' states are as near as they must be: some lie, or have drifted."""


@dataclass(frozen=True)
class Pulled:
    """A state of the run."""

    snapshot: Snapshot
    donors: tuple[str, ...]
    """Ids of the peers that gave it, and one like it: one peer if nobody else gave any."""
    difference: float | None
    """How far the donors' parameters are apart, relative to their norm; None of one donor."""
    refused: tuple[str, ...] = ()
    """Ids of the peers whose states were so unlike these two that no split of the run explains it."""


class Puller:
    """Takes states from peers that may give theirs. Made before this process has threads: hivemind forks."""

    def __init__(self, card: RunCard, dht: hivemind.DHT, trust: Trust) -> None:
        self.card, self.trust = card, trust
        self.model = initial_model(card)
        self.averager = build_state_averager(card, self.model, dht, trust)

    def pull(self, earliest: int, latest: int) -> Pulled | None:
        """Return a state that two users gave alike, or the only one that anybody gives; None if nobody does.

        It is of an epoch between these two. States of unlike epochs may differ by what the updates between them
        explain. Raises DonorsDisagree if several users gave states, and no two agree.
        """
        taken: dict[str, tuple[str, Snapshot]] = {}
        user, differences = "", []
        for _ in range(TRIES):
            if (new := self._take(earliest, latest, tuple(taken))) is None and len(taken) > 1:
                new = self._take(earliest, latest, (user,))  # one of the others again, who may be further now
            if new is None:
                break
            donor, snapshot = new
            user = self.trust.user_of(donor)
            for other, (its_donor, its) in taken.items():
                explained = None if other == user else self._explained(abs(its.epoch - snapshot.epoch))
                if explained is None:
                    continue
                difference = distance(its, snapshot)
                if difference <= explained:
                    thirds = [third for each, third in taken.items() if each not in (other, user)]
                    refused = tuple(peer for peer, its in thirds if self._is_refused(its, snapshot))
                    return Pulled(snapshot, (its_donor, donor), difference, refused)
                differences.append(f"{difference:.1%} from {its_donor} to {donor}")
            # The others' parameters are enough to compare with.
            taken[user] = donor, Snapshot(snapshot.epoch, snapshot.parameters, {})
        if differences:
            raise DonorsDisagree(
                f"the states of the donors are apart, by {', '.join(differences)}, and averaging in 8 bits explains "
                f"{DIFFERENCE:.0%}: none is kept."
            )
        return Pulled(snapshot, (donor,), None) if taken else None

    def pull_back(self, epoch: int, written: int) -> Pulled | None:
        """Return a state of a run that has gone back to `epoch`, from before its checkpoint of the epoch `written`.

        Two users gave it alike; one alone is not believed here. Where two are beyond that checkpoint after all, it is
        theirs; else one of the epoch in which most users are, and of nobody who is in between. None if there is none.
        """
        for earliest, latest in (written + 1, epoch + SLACK), (max(0, epoch - 1), epoch + 1):
            with suppress(DonorsDisagree):
                if earliest <= latest and (pulled := self.pull(earliest, latest)) and pulled.difference is not None:
                    return pulled
        return None

    def _take(self, earliest: int, latest: int, without: Sequence[str]) -> tuple[str, Snapshot] | None:
        """Return a donor of none of these users, and its state."""
        self.averager.local_epoch = earliest
        donor = self.averager.load_state_from_peers(self.card.averaging.timeout_s / 2, latest, without)
        return None if donor is None else (donor, take_snapshot(self.averager))

    def _explained(self, epochs: int) -> float | None:
        """Return how far states so many epochs apart may differ; None if that is not known.

        LAMB changes each tensor by at most the learning rate, relative to its norm; but who claims to be far ahead may
        not differ by anything. Peers that make many updates of their own between two averages may go any distance.
        """
        if self.card.averaging.strategy == "local" and epochs:
            return None
        return DIFFERENCE + min(DIFFERENCE, epochs * self.card.optimizer.lr)

    def _is_refused(self, other: Snapshot, state: Snapshot) -> bool:
        """Return whether a state is unlike another for no honest reason.

        Where rounds were split, honest peers have made unlike updates since parameters were averaged last.
        """
        explained = self._explained(abs(other.epoch - state.epoch))
        split = 2 * self.card.averaging.state_every * self.card.optimizer.lr
        return explained is not None and distance(other, state) > explained + split

    def write(self, pulled: Pulled, folder: Path, aside: Path | None = None) -> Path:
        """Write a state into a folder of its own among a peer's checkpoints, whole or not at all, and return it.

        With `aside`, the checkpoints of its epoch and of later ones are moved there before it counts.
        """
        place = folder / CHECKPOINTS / checkpoint_name(pulled.snapshot.epoch)
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            with torch.no_grad():
                torch._foreach_copy_(self.averager.main_parameters, pulled.snapshot.parameters)
            save_state(unfinished, self.card, self.model, pulled.snapshot)
            if aside is not None:
                set_aside(folder, pulled.snapshot.epoch, aside)
            shutil.rmtree(place, ignore_errors=True)  # it is broken: nothing of an epoch that is here is taken again
            unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # it may be what fills the disk
            raise
        show_newest(place, folder)
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

    def tokens_of(peers: Sequence[PeerStatus]) -> dict[str, AccessToken]:
        """Return the access tokens of members' peers. Those not known yet are looked up, some at each call."""
        trust, deadline = puller.trust, time.monotonic() + LOOK_UP_S
        ids = [peer.peer_id for peer in peers]
        unknown = [peer for peer in ids if trust.roster.known(peer) is None]
        for peer in random.sample(unknown, len(unknown)):
            if time.monotonic() > deadline:
                break
            trust.record_refusal(peer)
        return {peer: token for peer in ids if (token := trust.roster.known(peer)) is not None}

    try:
        found = tokens_of if puller.trust.roster else None
        help_others(dht, board, puller.card, folder, events, stop, found, settings.keeps_signed)
    finally:
        stop.set()
        taking.join(puller.card.averaging.timeout_s)
        puller.close()


def _take_states(puller: Puller, settings: PeerSettings, folder: Path, events: EventLog, stop: threading.Event) -> None:
    """Write a checkpoint as soon as there is a new epoch, every `state_every_s` seconds, and at once of the last epoch.

    Where nobody gives a state, or no two donors agree, it is told, and tried again soon. Once the run has gone back for
    good (`GoneBack`), the state of an earlier epoch counts, too, if two users gave it alike.
    """
    written, due, again_s, is_over, is_back = go_on(folder), time.monotonic(), AGAIN_S, False, False
    gone_back = GoneBack()
    while not stop.wait(LOOK_EVERY_S):
        status = SwarmStatus.read(folder)
        if status is None or not status.peers:
            continue
        was_back, is_back = is_back, gone_back.look(status.epoch_of_most, written, time.monotonic())
        if status.epoch <= max(0, written) and not is_back:
            continue
        was_over, is_over = is_over, status.epoch >= status.total_epochs
        if (is_over and not was_over) or (is_back and not was_back):  # the peers leave soon, or the newest is wrong
            due, again_s = time.monotonic(), AGAIN_S
        if time.monotonic() < due:
            continue
        kind, problem, aside = "state", "", None
        try:
            if is_back:
                pulled = puller.pull_back(status.epoch_of_most, written)
            else:
                earliest = status.total_epochs if is_over else max(0, written)
                pulled = puller.pull(earliest, min(status.epoch + SLACK, status.total_epochs))
            problem = _misfit(pulled, written, is_back)
            if not problem:
                if pulled.snapshot.epoch <= written:
                    aside = place_aside(folder, pulled.snapshot.epoch)
                place = puller.write(pulled, folder, aside)
        except DonorsDisagree as disagree:
            kind, problem = "donors", str(disagree)
        except Exception as error:  # whatever it is, the next state may be taken
            logger.exception("no checkpoint was written")
            kind = "disk" if is_disk_full(error) else "state"
            problem = f"no checkpoint was written: {in_one_line(error)}"
        if problem:
            due = time.monotonic() + min(settings.state_every_s, again_s)
            again_s = min(settings.state_every_s, 2 * again_s)
            _tell(events, "problem", peer="", kind=kind, problem=problem)
            continue
        written, due, again_s = pulled.snapshot.epoch, time.monotonic() + settings.state_every_s, AGAIN_S
        about = {"donors": pulled.donors, "difference": pulled.difference, "refused": pulled.refused}
        about |= {} if aside is None else {"aside": aside.name}
        _tell(events, "checkpoint", epoch=written, folder=place.name, **about)


def _misfit(pulled: Pulled | None, written: int, is_back: bool) -> str:
    """Return why a state makes no checkpoint after that of `written`, or "" if it does."""
    if is_back and pulled is None:
        return (
            f"the run has gone back to before its last checkpoint, of epoch {written:,}, which stays, as no two users "
            "gave a state of the run alike"
        )
    if not is_back and (pulled is None or pulled.snapshot.epoch <= written):
        return "no peer gave a state of the run that is newer than the last"
    return ""


def _tell(events: EventLog, event: str, **fields) -> None:
    try:
        events.write(event, **fields)
    except OSError as error:  # a full disk, which must not end this thread
        logger.warning("not told: %s %s (%s)", event, fields, in_one_line(error))


def distance(first: Snapshot, second: Snapshot) -> float:
    """Return how far the parameters of two states are apart, relative to their norm."""
    norms = torch.stack([parameter.norm() for parameter in first.parameters])
    apart = torch.stack([(a - b).norm() for a, b in zip(first.parameters, second.parameters, strict=True)])
    return float(apart.norm() / norms.norm().clamp(min=1e-12))
