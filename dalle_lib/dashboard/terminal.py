"""A peer in a terminal: one live panel, or a line an epoch where the output is a file or a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dalle_lib.dashboard.words import epoch_of, facts_of, line_of, news, state_in_words
from dalle_lib.swarm.process.history import troubles
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.standing import AT_WORK, Standing

MAX_WIDTH = 78
BAR_WIDTH = 40


class Lines:
    """Prints what is new of a peer: where it listens, whom it found, a line an epoch, troubles, a hint."""

    def __init__(self, file: TextIOBase) -> None:
        self._file = file
        self._epochs = 0
        self._told: set[str] = set()

    def __call__(self, peer: Peer, hint: str = "") -> None:
        """Print what was not printed yet."""
        events = peer.events()
        self._tell(news(events))
        standings = Standing.after_epochs(peer, self._epochs)
        self._epochs += len(standings)
        for standing in standings:
            print(line_of(standing), file=self._file, flush=True)
        self._tell([*(f"  {trouble}" for trouble in troubles(events)), hint])

    def _tell(self, lines: list[str]) -> None:
        for line in lines:
            if line and line not in self._told:
                print(line, file=self._file, flush=True)
                self._told.add(line)


class LivePanel:
    """Shows one panel, always up to date; above it, where the peer listens, whom it found, and troubles."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._told: set[str] = set()

    def __call__(self, peer: Peer, hint: str = "") -> None:
        """Show the peer as it is now."""
        events = peer.events()
        for line in [*news(events), *troubles(events)]:
            if line not in self._told:
                self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)
                self._told.add(line)
        self._live.update(panel(Standing.of(peer), hint), refresh=True)


@contextmanager
def live_panel(file: TextIOBase) -> Iterator[LivePanel]:
    """Yield what shows the live panel of a peer on the terminal `file`; its last state stays there."""
    with Live(console=Console(file=file), auto_refresh=False) as live:
        yield LivePanel(live)


def panel(standing: Standing, hint: str = "") -> Panel:
    """Return how a peer stands as a panel: its state in words, how far the run is, what matters, what Ctrl+C does."""
    rows: list = [Text(state_in_words(standing), style="bold")]
    if standing.epoch is not None and standing.total_epochs:
        rows.append(_bars(standing))
        rows.append(Text(" · ".join(facts_of(standing)[1:])))
    if standing.state in AT_WORK and standing.swarm is not None and standing.swarm.peers:
        speed = sum(peer.samples_per_s for peer in standing.swarm.peers)
        names = ", ".join(peer.name for peer in standing.swarm.peers)
        together = f"together {speed:,.0f} samples a second: {names}"
        rows.append(Text(together, style="dim", no_wrap=True, overflow="ellipsis"))
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
