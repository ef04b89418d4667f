"""A whole swarm on this machine: a bootstrap peer and trainers, each a process of its own, on 127.0.0.1."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dalle_lib.run import RunCard
from dalle_lib.swarm.crew import Crew
from dalle_lib.swarm.process import Peer, join
from dalle_lib.swarm.settings import PeerSettings

LOCALHOST = "127.0.0.1"
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
