"""A peer in a terminal: one live panel, or a line an epoch where the output is a file or a pipe."""

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOBase

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dalle_lib.dashboard.lately import troubles, what_it_means
from dalle_lib.dashboard.run_view import RunView
from dalle_lib.dashboard.start import counted_line, start_lines, steps_of, title_of
from dalle_lib.dashboard.words import (
    STAYS,
    Invite,
    computing_line,
    epoch_of,
    facts_of,
    helped_line,
    last_looked,
    line_of,
    news,
    proof_line,
    reach_line,
    state_in_words,
    who_is_there,
)
from dalle_lib.swarm.process.events import STAYING, EventReader
from dalle_lib.swarm.process.folder import SETTINGS
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.standing import AT_WORK, LOOKS_ON, Standing
from dalle_lib.swarm.process.status import SwarmStatus

MAX_WIDTH = 78
BAR_WIDTH = 40


def fitted(text: str, width: int) -> str:
    """Return a text whose lines of prose are broken at words to fit `width` columns, under the text after a label.

    Lines with a command or a long word such as an address stay whole, so that they can be copied.
    """
    lines = []
    for line in text.splitlines():
        is_copied = "dalle-lib " in line or any(len(word) > width // 2 for word in line.split())
        label = re.match(r"(\w+:)? *", line)[0]
        indent = " " * len(label)
        kept = [line] if is_copied else textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
        lines += kept or [line]
    return "\n".join(lines)


class Teller:
    """What there is to tell of one peer that was not told before."""

    def __init__(self, invite: Invite | None = None) -> None:
        """Say with `invite` how friends join this peer."""
        self._invite = invite
        self._told: set[str] = set()
        self._reader: EventReader | None = None
        self._starts, self._epochs = 0, 0
        self._seen: tuple = ()

    def new_of(self, peer: Peer, hint: str = "", *, with_epochs: bool = False) -> Iterator[str]:
        """Yield new lines: where it listens, whom it found, a line an epoch if wished, troubles, the hint."""
        starts, settings = self.reader(peer).starts(), PeerSettings.load(peer.folder / SETTINGS)
        events = starts[-1]
        if len(starts) != self._starts:  # it was started again, or has rested
            self._starts, self._epochs, self._told = len(starts), 0, self._told & {hint}
        yield from self._untold(news(events, self._invite, expects_others=not settings.alone))
        if with_epochs:
            if settings.role == "trainer":
                yield from self._untold([counted_line(starts, settings.start_after_s) or ""])
            yield from self._untold([reach_line(events) or "", computing_line(events) or ""])
            standings = Standing.after_epochs(peer, self._epochs, self.reader(peer))
            self._epochs += len(standings)
            yield from map(line_of, standings)
            if any(event["event"] == STAYING for event in events):
                yield from self._untold([f"{STAYS}."])
            if settings.role != "trainer":
                yield from self._helped(Standing.of(peer, self.reader(peer)))
        wrong = troubles(events, SwarmStatus.read(peer.folder))
        yield from self._untold([*(f"  {trouble}" for trouble in wrong), hint])

    def _helped(self, standing: Standing) -> Iterator[str]:
        """Yield a line where the epoch, or who is there, has changed, or a bootstrap peer looks no more or again."""
        if standing.state != "helping" or standing.swarm is None:
            return
        there = (peer.peer_id for peer in standing.swarm.peers)
        seen = standing.swarm.epoch, *there, standing.swarm.said_complete, standing.old_look_s is None
        if seen != self._seen:
            self._seen = seen
            yield helped_line(standing)

    def reader(self, peer: Peer) -> EventReader:
        """Return the reader of the peer's events, which goes on from where it was."""
        self._reader = self._reader or EventReader(peer.folder)
        return self._reader

    def _untold(self, lines: list[str]) -> Iterator[str]:
        """Yield those lines that are new, and after each what it means, where that is new too."""
        for line in lines:
            for each in filter(None, (line, what_it_means(line))):
                if each not in self._told:
                    self._told.add(each)
                    yield each


class Lines:
    """Prints what is new of a peer."""

    def __init__(self, file: TextIOBase, invite: Invite | None = None) -> None:
        self._file, self._teller = file, Teller(invite)

    def __call__(self, peer: Peer, hint: str = "") -> None:
        """Print what was not printed yet."""
        for line in self._teller.new_of(peer, hint, with_epochs=True):
            print(line, file=self._file, flush=True)


class LivePanel:
    """Shows one panel, always up to date; above it, where the peer listens, whom it found, and troubles."""

    def __init__(self, live: Live, invite: Invite | None = None, view: RunView | None = None) -> None:
        self._live, self._teller, self._view = live, Teller(invite), view

    def __call__(self, peer: Peer, hint: str = "") -> None:
        """Show the peer as it is now."""
        for line in self._teller.new_of(peer):
            console = self._live.console
            console.print(fitted(line, console.width), highlight=False, markup=False, soft_wrap=True)
        standing = Standing.of(peer, self._teller.reader(peer))
        beside = [*self._start(peer, standing), *self._beside(peer, standing)]
        self._live.update(panel(standing, hint, beside), refresh=True)

    def _start(self, peer: Peer, standing: Standing) -> list[str]:
        """Return the steps of the peer's start while they matter; then how long they took in all."""
        starts, waits_s = self._teller.reader(peer).starts(), PeerSettings.load(peer.folder / SETTINGS).start_after_s
        if steps := steps_of(standing, starts, waits_s):
            return [title_of(starts[-1]), *start_lines(steps)]
        line = counted_line(starts, waits_s) if standing.role == "trainer" else None
        return [] if line is None else [line]

    def _beside(self, peer: Peer, standing: Standing) -> list[str]:
        """Return what is known of the run and of this machine beside how the peer stands, a line each."""
        events = self._teller.reader(peer).starts()[-1]
        computing = [line for line in (reach_line(events), computing_line(events)) if line]
        if self._view is None or standing.role != "trainer":
            return computing
        own = next((event["peer_id"] for event in events if event["event"] == "joined"), None)
        facts = " · ".join(f"{name}: {value}" for name, value in self._view.facts(standing, own).items())
        return [*computing, facts, *([f"The organiser says: {message}"] if (message := self._view.message()) else [])]


@contextmanager
def live_panel(file: TextIOBase, invite: Invite | None = None, view: RunView | None = None) -> Iterator[LivePanel]:
    """Yield what shows the live panel of a peer on the terminal `file`; its last state stays there."""
    with _no_sign_of_ctrl_c(file), Live(console=Console(file=file), auto_refresh=False) as live:
        yield LivePanel(live, invite, view)


@contextmanager
def _no_sign_of_ctrl_c(file: TextIOBase) -> Iterator[None]:
    """Keep the terminal from showing `^C`, which would break the panel that is being drawn there."""
    import termios

    descriptor = file.fileno()
    if _is_in_background(descriptor):  # such a program is stopped if it changes a terminal
        yield
        return
    before = termios.tcgetattr(descriptor)
    quiet = [*before]
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _is_in_background(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # this is the terminal of another session, as under `setsid`
        return True


def panel(standing: Standing, hint: str = "", beside: Sequence[str] = ()) -> Panel:
    """Return how a peer stands as a panel: its state in words, how far the run is, what matters, what Ctrl+C does.

    Each text of `beside` gets a line.
    """
    rows: list = [Text(state_in_words(standing), style="bold")]
    if standing.epoch is not None and standing.total_epochs:
        rows.append(_bars(standing))
        if standing.role == "trainer":  # what a bootstrap peer does tells how many it sees
            rows.append(Text(" · ".join(facts_of(standing)[1:])))
    rows += [Text(line) for line in (*beside, proof_line(standing)) if line is not None]
    if standing.state in LOOKS_ON and standing.swarm is not None and standing.swarm.peers:
        there = last_looked(standing) or who_is_there(standing.swarm)
        if there != state_in_words(standing):
            rows.append(Text(there, style="dim", no_wrap=True, overflow="ellipsis"))
    if hint:
        rows.append(Text(hint, style="dim"))
    title = Text(f"{standing.run} · {standing.name}")
    return Panel(Group(*rows), title=title, title_align="left", box=ROUNDED, width=MAX_WIDTH, padding=(0, 1))


def _bars(standing: Standing) -> Table:
    """Return the progress of the run, and of its epoch while the peer is at work."""
    bars = Table.grid(padding=(0, 1))
    bars.add_column(width=5)
    bars.add_row("run", ProgressBar(standing.total_epochs, standing.epoch, width=BAR_WIDTH), epoch_of(standing))
    if standing.state in AT_WORK:
        done = standing.done or 0.0
        bars.add_row("epoch", ProgressBar(1.0, done, width=BAR_WIDTH), f"{done:.0%}")
    return bars
