"""A whole swarm on this machine: a bootstrap peer and trainers, each a process of its own, on 127.0.0.1."""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.swarm.process.crew import Crew, join_run
from dalle_lib.swarm.process.join import Peer, PeerFailed, join
from dalle_lib.swarm.process.settings import PeerSettings

LOCALHOST = "127.0.0.1"
LATE_S = 60.0
"""When the last neighbour of a private swarm joins."""
RUN, BOOTSTRAP, PEERS = "run", "bootstrap", "peers"


@dataclass
class LocalSwarm(Crew):
    """A running private swarm, named by the folder of its run card; nothing of it leaves this machine."""

    bootstrap: Peer = field(kw_only=True)

    def add(self, settings: PeerSettings) -> Peer:
        """Start a trainer of this swarm, and return it at once."""
        settings = replace(settings, run=self.run, host=LOCALHOST)
        self.peers[settings.name] = join(settings, self.folder / PEERS / settings.name)
        return self.peers[settings.name]

    def close(self) -> None:
        """Make all peers leave, the bootstrap peer last. Raises PeerFailed if one ended by an error."""
        try:
            super().close()
        finally:
            self.bootstrap.stop()

    @classmethod
    def start(cls, card: RunCard, folder: str | Path) -> "LocalSwarm":
        """Return a new swarm in `folder` that has a bootstrap peer only.

        The run is saved as `folder`/run, so that anyone on this machine can join it by that name.
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
        return cls(folder, str(run), bootstrap=bootstrap)

    @classmethod
    def found(cls, folder: str | Path) -> "LocalSwarm":
        """Return the swarm that was started in `folder`, perhaps by another program, whatever of it still runs."""
        folder = Path(folder).resolve()
        peers = {peer.name: Peer(peer) for peer in (folder / PEERS).glob("*") if peer.is_dir()}
        return cls(folder, str(folder / RUN), peers, bootstrap=Peer(folder / BOOTSTRAP))


@contextlib.contextmanager
def local_swarm(card: RunCard, folder: str | Path, trainers: Iterable[PeerSettings] = ()) -> Iterator[LocalSwarm]:
    """Start a private swarm of `card` with `trainers` in `folder`, and end it when the block ends."""
    with contextlib.closing(LocalSwarm.start(card, folder)) as swarm:
        for trainer in trainers:
            swarm.add(trainer)
        yield swarm


def take_part(run: str, name: str, minutes: float, folder: str | Path, token: str | None = None) -> Crew:
    """Join `run` as `name` for some minutes: an embedded run with company on this machine, any other as it is.

    An embedded run begins anew in `folder`; any other goes on in a folder of its own beside it. `token` is a Hugging
    Face token, for private runs.
    """
    card = RunCard.load(run, token)
    if run not in EMBEDDED_RUNS:
        settings = PeerSettings(run=run, name=name, max_minutes=minutes)
        return join_run(settings, Path(folder).with_name(card.key), token)
    swarm = private_swarm(card, folder)
    swarm.add(PeerSettings(run=swarm.run, name=name, max_minutes=minutes))
    return swarm


def private_swarm(card: RunCard, folder: str | Path, late_s: float = LATE_S) -> LocalSwarm:
    """Return a fresh swarm on this machine with two other volunteers; what an earlier one left in `folder` is removed.

    ada is as fast as you, eve works at half the pace and comes late. Nothing leaves this machine.
    """
    folder = Path(folder)
    if folder.exists():
        with contextlib.suppress(PeerFailed):  # how an earlier demo ended does not matter to this one
            LocalSwarm.found(folder).close()
        shutil.rmtree(folder)
    swarm = LocalSwarm.start(card, folder)
    swarm.add(PeerSettings(run=swarm.run, name="ada"))
    swarm.add(PeerSettings(run=swarm.run, name="eve", duty=0.5, batch_size=8, start_after_s=late_s))
    return swarm
