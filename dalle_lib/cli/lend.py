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
    """A run, as `dalle-lib join` got it or `dalle-lib status` tells it; without it, the peers of all runs are meant."""

    def _peers(self) -> list["Peer"]:
        """Return the peers that are meant. Raises ValueError where there are none."""
        from dalle_lib.swarm import Peer

        folders = folders_of_peers(self.folder)
        if not folders:
            raise ValueError(
                f"expected a peer in {self.folder}, but there is none. Go to the folder in which you typed "
                "`dalle-lib join`, or name it: --folder PATH/peers."
            )
        found = [Peer(folder) for folder in folders if self._is_meant(folder)]
        if not found:
            which = f" called {self.name!r}" * bool(self.name) + f" of run {self.run_name!r}" * bool(self.run_name)
            raise ValueError(
                f"expected a peer{which} in {self.folder}, but there is none. `dalle-lib status` shows those that are; "
                "name another --folder."
            )
        return found

    def _is_meant(self, folder: Path) -> bool:
        return self.name in ("", folder.name) and self.run_name in ("", *_runs_of(folder))

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


def _runs_of(folder: Path) -> Iterator[str]:
    """Yield the name of a peer's run, and what its volunteer typed for it."""
    from dalle_lib.swarm.process.settings import PeerSettings

    if (bound := run_of(folder)) is not None:
        yield bound.name
    yield PeerSettings.load(folder / SETTINGS).run


def _say(peer: "Peer", told: str) -> None:
    print(f"{printable(peer.folder.name)} in {printable(str(peer.folder.parent))}: {told}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Pause(_OfPeers):
    """Pause the peers of a folder, until you resume them.

    A paused peer hands in what it has and computes nothing. It stays in its run, answers others, and stays paused if it
    is started again. It keeps its memory: `dalle-lib stop` frees that. For example:

    dalle-lib pause

    dalle-lib pause --name ada
    """

    def run(self) -> None:
        """Ask each that runs to pause."""
        for peer in self._running():
            told = _pauses(peer)
            ask(peer.folder, "pause")
            _say(peer, told)


def _pauses(peer: "Peer") -> str:
    """Return what a running peer will do when it is asked to pause."""
    from dalle_lib.swarm.process.standing import AT_WORK, Standing

    standing = Standing.of(peer)
    if standing.state in AT_WORK:
        return "it pauses after the batch that it computes, and hands in what it has when the epoch ends."
    if _held_by(peer) == "month":
        return "it pauses when the month is over and it comes back."
    state = "is paused, and stays so" if standing.state == "paused" else "will compute nothing"
    return f"it {state} until `dalle-lib resume`."


@dataclass(frozen=True, kw_only=True)
class Resume(_OfPeers):
    """Let the peers of a folder go on.

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
            _say(peer, _goes_on(peer, was_asked))


def _goes_on(peer: "Peer", was_asked: bool) -> str:
    """Return what a peer does now that nothing more is asked of it."""
    from dalle_lib.swarm.process.lending import hold_in_words
    from dalle_lib.swarm.process.standing import Standing

    hold = Standing.of(peer).hold if peer.is_running else None
    if hold is not None and hold.reason != "you":
        return f"nothing {'more is' if was_asked else 'was'} asked of it; it is {hold_in_words(hold)}."
    if not was_asked:
        return "nothing was asked of it."
    return "it goes on." if peer.is_running else "it will compute when it is started again."


@dataclass(frozen=True, kw_only=True)
class Finish(_OfPeers):
    """Let the peers of a folder leave after their epoch.

    So all that they computed counts. Until then `dalle-lib resume` takes it back. `dalle-lib stop` does not wait
    for the epoch. For example:

    dalle-lib finish

    dalle-lib finish --name ada
    """

    def run(self) -> None:
        """Ask each that runs to leave after its epoch."""
        for peer in self._running():
            when = {"month": "within a minute", "you": "at once, and computes no more", None: "after this epoch"}
            told = when.get(_held_by(peer), when[None])
            ask(peer.folder, "finish")
            _say(peer, f"it leaves {told}.")


@dataclass(frozen=True, kw_only=True)
class Stop(_OfPeers):
    """Stop the peers of a folder.

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


def _held_by(peer: "Peer") -> str | None:
    """Return what holds a peer that runs, if anything does."""
    from dalle_lib.swarm.process.standing import Standing

    hold = Standing.of(peer).hold
    return None if hold is None else hold.reason


def _was_asked(folder: Path) -> bool:
    from dalle_lib.files import BrokenFile

    try:
        return wish_of(folder) is not None
    except BrokenFile:
        return True
