"""Follow a peer until it is done: a live panel in a notebook or a terminal, lines of text where nobody looks."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dalle_lib.checks.report import problem_report
from dalle_lib.dashboard.terminal import Lines, live_panel
from dalle_lib.machine import this_platform
from dalle_lib.swarm.process.join import LEAVE_TIMEOUT_S, CannotJoin, Peer, PeerFailed

UPDATE_EVERY_S = 1.0
LEAVES = "Ctrl+C leaves and saves."
STOPS_WATCHING = "Another program runs this peer: Ctrl+C only stops watching."
LEAVING = f"Leaving and saving, which takes at most {LEAVE_TIMEOUT_S:.0f} s; Ctrl+C changes nothing now."
STOPPED_WATCHING = "Stopped watching. The peer goes on in the program that started it."

Show = Callable[[Peer, str], None]
"""Shows a peer as it is now, and a hint: what Ctrl+C does."""


def watch(peer: Peer) -> None:
    """Show what a peer does until it is done; the stop button or Ctrl+C makes it leave cleanly before.

    A peer that another program started is only watched: Ctrl+C ends that, and never the peer. A notebook and a terminal
    show a live panel; a notebook that nobody watches, a file and a pipe get a line for each epoch. Raises CannotJoin if
    the peer could not take part, and PeerFailed if it ended by any other error, after printing a block to copy into a
    report of it.
    """
    is_ours, hint = peer.is_ours, LEAVES if peer.is_ours else STOPS_WATCHING
    with _display() as show:
        while peer.is_running:
            try:
                show(peer, hint)
                time.sleep(UPDATE_EVERY_S)
            except KeyboardInterrupt:
                if not is_ours:
                    show(peer, STOPPED_WATCHING)
                    return
                hint = LEAVING
                peer.ask_to_stop()
        show(peer, "")
    if _is_notebook() and this_platform().is_unattended:
        panel_display()(peer)
    try:
        peer.wait()
    except CannotJoin:
        raise
    except PeerFailed:
        print(problem_report(peer))
        raise


@contextmanager
def _display() -> Iterator[Show]:
    """Yield what shows a peer where this program runs."""
    if _is_notebook():
        yield Lines(sys.stdout) if this_platform().is_unattended else panel_display()
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with live_panel(sys.stderr) as show:
            yield show
    else:
        yield Lines(sys.stderr)


def panel_display() -> Show:
    """Return a function that shows the panel in a notebook: the first call adds it, each later call replaces it."""
    from IPython.display import HTML, display

    from dalle_lib.dashboard.panel import panel_html

    handle, shown = display(HTML(""), display_id=True), ""

    def show(peer: Peer, hint: str = "") -> None:
        nonlocal shown
        html = panel_html(peer)
        if html != shown:
            handle.update(HTML(html))
            shown = html

    return show


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
