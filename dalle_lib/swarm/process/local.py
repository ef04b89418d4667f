"""A whole swarm on this machine: a bootstrap peer and trainers, each a process of its own, on 127.0.0.1."""

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dalle_lib.platforms import bring_back
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.swarm.process.crew import Crew, join_run
from dalle_lib.swarm.process.folder import MONITOR, SETTINGS
from dalle_lib.swarm.process.join import STOP_TIMEOUT_S, Peer, PeerFailed, join
from dalle_lib.swarm.process.lending import LendingSettings
from dalle_lib.swarm.process.settings import FIRST_GPU, PeerSettings

LOCALHOST = "127.0.0.1"
LATE_S = 60.0
"""Seconds after which the second neighbour joins a private swarm."""
RUN, BOOTSTRAP, PEERS = "run", "bootstrap", "peers"
PARTS = RUN, BOOTSTRAP, PEERS, MONITOR
"""What is in a swarm's folder, a folder each."""
MARK = "made_by_dalle_lib.txt"
"""File by which the folder of a private swarm is known, so that nobody else's folder is ever removed."""
ALL_OF_IT = LendingSettings()
NEIGHBOURS = ("ada", "eve")
"""The other trainers of a private swarm."""

_OPEN: dict[Path, "LocalSwarm"] = {}
"""The swarms that this program has started and not closed yet, by folder."""


@dataclass
class LocalSwarm(Crew):
    """Trainers and a bootstrap peer on this machine, where anyone can join them by `run`, the folder of the run card.

    They listen on 127.0.0.1, so nothing leaves the machine. `wait` waits for the trainers alone.
    """

    bootstrap: Peer = field(kw_only=True)
    """The peer through which the trainers find each other. It runs until `close`."""
    leaving: threading.Event = field(default_factory=threading.Event, kw_only=True)
    """Set as soon as the trainers are asked to leave."""
    watchers: list[threading.Thread] = field(default_factory=list, kw_only=True)
    """Threads of this program that watch over the swarm until `leaving` is set; `close` waits for them."""

    def add(self, settings: PeerSettings) -> Peer:
        """Start a trainer in this swarm, and return it at once."""
        threads = settings.threads or 1  # all of them are on this machine
        device = FIRST_GPU if settings.device == "auto" else settings.device
        settings = replace(settings, run=self.run, host=LOCALHOST, threads=threads, device=device)
        self.peers[settings.name] = join(settings, self.folder / PEERS / settings.name)
        return self.peers[settings.name]

    def ask_to_stop(self) -> None:
        """Ask the trainers, and who watches over them, to leave, and return at once."""
        self.leaving.set()
        super().ask_to_stop()

    def close(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """Make all peers leave, the bootstrap peer last. Raises PeerFailed as `wait` does."""
        try:
            super().close(timeout_s)
        finally:
            for watcher in self.watchers:
                watcher.join(timeout_s)
            self.bootstrap.stop()
            _OPEN.pop(self.folder, None)

    @classmethod
    def start(cls, card: RunCard, folder: str | Path) -> "LocalSwarm":
        """Start the bootstrap peer of a new swarm in `folder`, and return the swarm when newcomers can join it.

        The run card is saved in `folder`/run, with the bootstrap peer's address.
        """
        folder = Path(folder).resolve()
        run = card.with_changes(initial_peers=()).save(folder / RUN)
        settings = PeerSettings(run=str(run), role="bootstrap", name=BOOTSTRAP, host=LOCALHOST)
        bootstrap = join(settings, folder / BOOTSTRAP)
        try:
            addresses = bootstrap.wait_for("connected")["addresses"]
        except BaseException:
            bootstrap.ask_to_stop()
            raise
        RunCard.load(run).with_changes(initial_peers=tuple(addresses)).save(run)
        swarm = _OPEN[folder] = cls(folder, str(run), bootstrap=bootstrap)
        return swarm

    @classmethod
    def found(cls, folder: str | Path) -> "LocalSwarm":
        """Return the swarm that was started in `folder`, perhaps by another program and perhaps over by now."""
        folder = Path(folder).resolve()
        if folder in _OPEN:
            return _OPEN[folder]
        folders = {peer.name: peer for peer in (folder / PEERS).glob("*")}
        folders[f"{MONITOR}/"] = folder / MONITOR / MONITOR  # no trainer is called so
        peers = {name: Peer(peer) for name, peer in folders.items() if peer.is_dir()}
        return cls(folder, str(folder / RUN), peers, bootstrap=Peer(folder / BOOTSTRAP))


@contextlib.contextmanager
def local_swarm(card: RunCard, folder: str | Path, trainers: Iterable[PeerSettings] = ()) -> Iterator[LocalSwarm]:
    """Start a swarm of `card` with `trainers` in `folder` on this machine, and end it when the block ends."""
    with contextlib.closing(LocalSwarm.start(card, folder)) as swarm:
        for trainer in trainers:
            swarm.add(trainer)
        yield swarm


def take_part(
    run: str,
    name: str,
    minutes: float,
    folder: str | Path,
    token: str | None = None,
    team: str = "",
    lending: LendingSettings = ALL_OF_IT,
) -> Crew:
    """Join `run` as `name` for some minutes, and return your peers and those that were started with them.

    An embedded run has no other peers, nor has one on this machine whose card names no first peers. So two neighbours
    are started on this machine (`private_swarm`), and the run begins anew in `folder`. Any other run is joined as by
    `join_run`, in a folder of its own beside `folder`, from where it goes on next time; on Kaggle also from the output
    of an earlier version that was added to the notebook. `token` is a Hub token, for private runs; `team` is the team
    that your contribution counts for; `lending` says when it computes, and how much of the machine it takes. Raises
    ValueError before anything is started if you have a neighbour's name, or one that no peer can have, or no minutes.
    """
    settings = PeerSettings(run=run, name=name, team=team, max_minutes=minutes, **vars(lending))
    card = RunCard.load(run, token)
    if not is_alone(run, card):
        own = Path(folder).with_name(card.key)
        bring_back(own)
        return join_run(settings, own, token)
    if name in NEIGHBOURS:
        taken = " and ".join(NEIGHBOURS)
        raise ValueError(f"on {run}, {taken} are the names of your neighbours: choose another one than {name!r}.")
    swarm = private_swarm(card, folder)
    swarm.add(settings)
    return swarm


def is_alone(run: str, card: RunCard) -> bool:
    """Return whether a run has no peers elsewhere: it is an embedded one, or one of your own that nobody has joined."""
    return run in EMBEDDED_RUNS or (card.repository is None and not card.initial_peers)


def private_swarm(card: RunCard, folder: str | Path, late_s: float = LATE_S) -> LocalSwarm:
    """Return a new swarm on this machine with two neighbours for you; what an earlier one left in `folder` is removed.

    ada computes all the time; eve half of it, in smaller batches, and she joins after `late_s` seconds. Nothing leaves
    this machine. Raises ValueError, and removes nothing, if `folder` holds what no private swarm has made.
    """
    folder = Path(folder)
    require_own_swarm(folder)
    if earlier := _parts(folder):
        with contextlib.suppress(PeerFailed):  # how an earlier swarm ended does not matter
            LocalSwarm.found(folder).close()
        for part in earlier:
            shutil.rmtree(part)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(f"The next private swarm here removes {', '.join(PARTS)}.\n")
    swarm = LocalSwarm.start(card, folder)
    ada, eve = NEIGHBOURS
    swarm.add(PeerSettings(run=swarm.run, name=ada))
    swarm.add(PeerSettings(run=swarm.run, name=eve, duty=0.5, batch_size=8, start_after_s=late_s))
    return swarm


def require_own_swarm(folder: Path) -> None:
    """Raise ValueError if a private swarm in `folder` would replace something that no private swarm has made.

    Those of earlier versions, which left no mark, are known by the settings of their bootstrap peer.
    """
    if (parts := _parts(folder)) and not ((folder / MARK).exists() or (folder / BOOTSTRAP / SETTINGS).exists()):
        raise ValueError(
            f"expected a folder for a private swarm, but {folder} holds {', '.join(part.name for part in parts)}, "
            "which none has made. Nothing was removed: name another folder, or move these away."
        )


def _parts(folder: Path) -> list[Path]:
    """Return what is in `folder` at the places of a swarm's parts."""
    return [folder / name for name in PARTS if (folder / name).exists()]
