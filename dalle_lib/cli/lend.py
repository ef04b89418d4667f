"""`dalle-lib pause`, `resume`, `finish` and `stop`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.one_line import in_one_line, printable
from dalle_lib.swarm.process.folder import PEERS, SETTINGS, folders_of_peers, run_of
from dalle_lib.swarm.process.lending import ask, take_back, wish_of

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer


@dataclass(frozen=True, kw_only=True)
class _OfPeers:
    folder: Path = PEERS
    """Folder in which peers were started."""
    name: str = ""
    """Name of one peer; without it, all of the folder are meant."""
    run_name: Annotated[str, tyro.conf.arg(name="run")] = ""
    """Name of a run, as `dalle-lib status` tells it; without it, the peers of all runs are meant."""

    def _peers(self) -> list["Peer"]:
        """Return the peers that are meant. Raises ValueError where there are none."""
        from dalle_lib.swarm import Peer

        found = [Peer(folder) for folder in folders_of_peers(self.folder) if self._is_meant(folder)]
        if not found:
            which = "".join(
                [f" called {self.name!r}" * bool(self.name), f" of run {self.run_name!r}" * bool(self.run_name)]
            )
            raise ValueError(
                f"expected a peer{which} in {self.folder}, but there is none. `dalle-lib status` shows those that are; "
                "name another --folder."
            )
        return found

    def _is_meant(self, folder: Path) -> bool:
        bound = run_of(folder) if self.run_name else None
        return self.name in ("", folder.name) and (
            not self.run_name or (bound is not None and bound.name == self.run_name)
        )

    def _running(self, trainers_only: bool = True) -> Iterator["Peer"]:
        """Yield those that run, and say of the others why nothing is asked of them."""
        from dalle_lib.swarm.process.settings import PeerSettings

        for peer in self._peers():
            if not peer.is_running:
                _say(peer, "it does not run.")
            elif trainers_only and PeerSettings.load(peer.folder / SETTINGS).role != "trainer":
                _say(peer, "it computes nothing, and only helps others: `dalle-lib stop` ends it.")
            else:
                yield peer


def _say(peer: "Peer", told: str) -> None:
    print(f"{printable(peer.folder.name)} in {printable(str(peer.folder.parent))}: {told}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Pause(_OfPeers):
    """Pause the peers of this machine, until you resume them.

    A paused peer hands in what it has and computes nothing. It stays in its run, answers others, and stays paused if it
    is started again. For example:

    dalle-lib pause

    dalle-lib pause --name ada
    """

    def run(self) -> None:
        """Ask each that runs to pause."""
        for peer in self._running():
            now = "after the batch that it computes, and hands in what it has when the epoch ends"
            when = "when the month is over and it comes back" if _rests(peer) else now
            ask(peer.folder, "pause")
            _say(peer, f"it pauses {when}.")


@dataclass(frozen=True, kw_only=True)
class Resume(_OfPeers):
    """Let the peers of this machine go on.

    It takes back what `dalle-lib pause` or `dalle-lib finish` has asked. What else holds one, such as its schedule,
    goes on to do so. For example:

    dalle-lib resume

    dalle-lib resume --run emoji-mini
    """

    def run(self) -> None:
        """Take back what was asked of each, whether it runs or not."""
        for peer in self._peers():
            was_asked = _was_asked(peer.folder)
            take_back(peer.folder)
            goes_on = "it goes on" if peer.is_running else "it will compute when it is started again"
            _say(peer, f"{goes_on}." if was_asked else "nothing was asked of it.")


@dataclass(frozen=True, kw_only=True)
class Finish(_OfPeers):
    """Let the peers of this machine leave after their epoch.

    So all that they computed counts. Until then `dalle-lib resume` takes it back. `dalle-lib stop` does not wait
    for the epoch. For example:

    dalle-lib finish

    dalle-lib finish --name ada
    """

    def run(self) -> None:
        """Ask each that runs to leave after its epoch."""
        for peer in self._running():
            when = "within a minute" if _rests(peer) else "after this epoch"
            ask(peer.folder, "finish")
            _say(peer, f"it leaves {when}.")


@dataclass(frozen=True, kw_only=True)
class Stop(_OfPeers):
    """Stop the peers of this machine.

    They save their progress and leave at once. What they computed since their last epoch ended counts in no update;
    `dalle-lib finish` waits for that. For example:

    dalle-lib stop

    dalle-lib stop --run emoji-mini
    """

    def run(self) -> None:
        """Ask each that runs to leave, and wait until it has. Raises PeerFailed for the first that does not."""
        from dalle_lib.swarm import PeerFailed

        asked, failures = list(self._running(trainers_only=False)), []
        for peer in asked:
            _trying(peer.ask_to_stop, failures)
            _say(peer, "it leaves ...")
        for peer in asked:
            _trying(peer.stop, failures)
            if not peer.is_running:
                _say(peer, "it has left.")
        if failures:
            raise PeerFailed(in_one_line(failures[0])) from failures[0]


def _trying(act: Callable[[], None], failures: list[Exception]) -> None:
    """Do it; a failure must not keep the other peers from being stopped."""
    from dalle_lib.swarm import PeerFailed

    try:
        act()
    except PeerFailed as failure:
        failures.append(failure)


def _rests(peer: "Peer") -> bool:
    """Return whether a peer that runs waits for the next month."""
    from dalle_lib.swarm.process.standing import Standing

    hold = Standing.of(peer).hold
    return hold is not None and hold.reason == "month"


def _was_asked(folder: Path) -> bool:
    from dalle_lib.files import BrokenFile

    try:
        return wish_of(folder) is not None
    except BrokenFile:
        return True
