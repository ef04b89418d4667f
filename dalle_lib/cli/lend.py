"""`dalle-lib pause`, `resume`, `finish` and `stop`."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.swarm.process.folder import SETTINGS, run_of
from dalle_lib.swarm.process.lending import ask, take_back
from dalle_lib.swarm.process.listed import peers_of

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer


@dataclass(frozen=True, kw_only=True)
class _OfPeers:
    folder: Path | None = None
    """Folder in which peers were started; without it, all of yours on this machine are meant."""
    name: str = ""
    """Name of one peer; without it, all are meant."""
    run_name: Annotated[str, tyro.conf.arg(name="run")] = ""
    """A run, as `dalle-lib join` got it or `dalle-lib status` tells it; without it, the peers of all runs are meant."""

    def _peers(self) -> list["Peer"]:
        """Return the peers that are meant. Raises ValueError where there are none."""
        from dalle_lib.swarm import Peer

        folders = peers_of(self.folder, say=partial(print, file=sys.stderr))
        where = "of yours on this machine" if self.folder is None else f"in {self.folder}"
        if not folders:
            raise ValueError(
                f"expected a peer {where}, but there is none. Go to the folder in which you typed `dalle-lib join`, or "
                "name it: --folder PATH/peers."
            )
        found = [Peer(folder) for folder in folders if self._is_meant(folder)]
        if not found:
            which = f" called {self.name!r}" * bool(self.name) + f" of run {self.run_name!r}" * bool(self.run_name)
            raise ValueError(
                f"expected a peer{which} {where}, but there is none. `dalle-lib status` shows those that are; name "
                "another --folder."
            )
        return found

    def _is_meant(self, folder: Path) -> bool:
        try:
            return self.name in ("", folder.name) and (not self.run_name or self.run_name in _runs_of(folder))
        except (BrokenFile, OSError) as error:
            _say(folder, f"its run is not known: {in_one_line(error)}")
            return False

    def _each(self, act: Callable[["Peer"], str]) -> list[Exception]:
        """Do something with each peer that is meant and say what it returns; return why it failed with others."""
        return _each_of(self._peers(), act)


def _each_of(peers: Iterable["Peer"], act: Callable[["Peer"], str]) -> list[Exception]:
    from dalle_lib.swarm import PeerFailed

    failures = []
    for peer in peers:
        try:
            _say(peer.folder, act(peer))
        except (PeerFailed, BrokenFile, OSError) as failure:  # which keeps no other peer from what it is asked
            failures.append(failure)
    return failures


def _raise_if_any(failures: list[Exception]) -> None:
    """Raise PeerFailed for the last of these, and print the others."""
    from dalle_lib.swarm import PeerFailed

    for failure in failures[:-1]:
        print(in_one_line(failure), file=sys.stderr)
    if failures:
        raise PeerFailed(in_one_line(failures[-1])) from failures[-1]


def _why_not(peer: "Peer", trainers_only: bool = True) -> str:
    """Return why nothing is asked of a peer; "" for one that is asked."""
    from dalle_lib.swarm.process.settings import PeerSettings

    if not peer.is_running:
        return "it does not run."
    with contextlib.suppress(BrokenFile, OSError):  # such a peer may be a trainer
        if trainers_only and PeerSettings.load(peer.folder / SETTINGS).role != "trainer":
            return "it computes nothing, and only helps others: `dalle-lib stop` ends it."
    return ""


def _runs_of(folder: Path) -> Iterator[str]:
    """Yield the name of a peer's run, and what its volunteer typed for it."""
    from dalle_lib.swarm.process.settings import PeerSettings

    if (bound := run_of(folder)) is not None:
        yield bound.name
    yield PeerSettings.load(folder / SETTINGS).run


def _say(folder: Path, told: str) -> None:
    print(f"{printable(folder.name)} in {printable(str(folder.parent))}: {told}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Pause(_OfPeers):
    """Pause your peers on this machine, until you resume them.

    A paused peer hands in what it has and computes nothing. It stays in its run, answers others, and stays paused if it
    is started again. It keeps its memory; `dalle-lib stop` frees that. For example:

    dalle-lib pause

    dalle-lib pause --name ada
    """

    def run(self) -> None:
        """Ask each that runs to pause. Raises PeerFailed if one cannot be asked, after the others."""
        _raise_if_any(self._each(_pause))


def _pause(peer: "Peer") -> str:
    if why := _why_not(peer):
        return why
    ask(peer.folder, "pause")
    return "it pauses after the batch that it computes, or stays paused, until `dalle-lib resume`."


@dataclass(frozen=True, kw_only=True)
class Resume(_OfPeers):
    """Let your peers on this machine go on.

    It takes back what `dalle-lib pause` or `dalle-lib finish` has asked. A peer that something else holds, such as its
    schedule, stays paused for that. For example:

    dalle-lib resume

    dalle-lib resume --run emoji-mini
    """

    def run(self) -> None:
        """Take back what was asked of each, whether it runs or not. Raises PeerFailed as `Pause.run` does."""
        _raise_if_any(self._each(_resume))


def _resume(peer: "Peer") -> str:
    take_back(peer.folder)
    if peer.is_running:
        return (
            "nothing more is asked of it: it goes on, unless something else holds it, which `dalle-lib status` shows."
        )
    return "nothing more is asked of it: it will compute when it is started again."


@dataclass(frozen=True, kw_only=True)
class Finish(_OfPeers):
    """Let your peers on this machine leave after their epoch.

    All that they computed counts then. A paused peer leaves as soon as it has handed in what it has. While a peer is
    still there, `dalle-lib resume` takes it back. `dalle-lib stop` does not wait for the epoch. For example:

    dalle-lib finish

    dalle-lib finish --name ada
    """

    def run(self) -> None:
        """Ask each that runs to leave after its epoch. Raises PeerFailed as `Pause.run` does."""
        _raise_if_any(self._each(_finish))


def _finish(peer: "Peer") -> str:
    if why := _why_not(peer):
        return why
    ask(peer.folder, "finish")
    return "it leaves after its epoch; if it is paused, as soon as it has handed in what it has."


@dataclass(frozen=True, kw_only=True)
class Stop(_OfPeers):
    """Stop your peers on this machine.

    They save their progress and leave at once, also those that only help others. What they computed since the last
    epoch ended counts in no update; `dalle-lib finish` waits until it does. For example:

    dalle-lib stop

    dalle-lib stop --run emoji-mini
    """

    def run(self) -> None:
        """Ask each that runs to leave, and wait until it has. Raises PeerFailed if one does not, after the others."""
        asked = []

        def ask_to_leave(peer: "Peer") -> str:
            if why := _why_not(peer, trainers_only=False):
                return why
            peer.ask_to_stop()
            asked.append(peer)
            return "it leaves ..."

        def see_off(peer: "Peer") -> str:
            peer.stop()
            return "it has left."

        _raise_if_any([*self._each(ask_to_leave), *_each_of(asked, see_off)])
