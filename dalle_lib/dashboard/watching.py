"""Follow a peer until it is done: a live panel in a notebook, lines of text in a terminal or where nobody looks."""

import sys
import time
from collections.abc import Callable
from io import TextIOBase

from dalle_lib.checks.report import problem_report
from dalle_lib.machine import this_platform
from dalle_lib.swarm.process.history import epochs_of, last_round
from dalle_lib.swarm.process.join import CannotJoin, Peer, PeerFailed

UPDATE_EVERY_S = 1.0

Show = Callable[[Peer], None]
"""Shows a peer as it is now."""


def watch(peer: Peer) -> None:
    """Show what a peer does until it is done; the stop button or Ctrl+C makes it leave cleanly before.

    A notebook shows a panel; a terminal, and a notebook that nobody watches, show a line for each epoch. Raises
    CannotJoin if the peer could not take part, and PeerFailed if it ended by any other error, after printing a block to
    copy into a report of it.
    """
    in_notebook, unattended = _is_notebook(), this_platform().is_unattended
    show = (
        panel_display() if in_notebook and not unattended else lines_display(sys.stdout if in_notebook else sys.stderr)
    )
    try:
        while peer.is_running:
            show(peer)
            time.sleep(UPDATE_EVERY_S)
    except KeyboardInterrupt:
        print("Leaving: saving, and saying goodbye to the others ...")
        peer.stop()
    show(peer)
    if in_notebook and unattended:
        panel_display()(peer)
    try:
        peer.wait()
    except CannotJoin:
        raise
    except PeerFailed:
        print(problem_report(peer))
        raise


def panel_display() -> Show:
    """Return a function that shows the panel in a notebook: the first call adds it, each later call replaces it."""
    from IPython.display import HTML, display

    from dalle_lib.dashboard.panel import panel_html

    handle, shown = display(HTML(""), display_id=True), ""

    def show(peer: Peer) -> None:
        nonlocal shown
        html = panel_html(peer)
        if html != shown:
            handle.update(HTML(html))
            shown = html

    return show


def lines_display(file: TextIOBase) -> Show:
    """Return a function that prints a line for each epoch of a peer, and for each trouble, that is not printed yet."""
    printed, told = 0, []

    def show(peer: Peer) -> None:
        nonlocal printed, told
        epochs = epochs_of(peer)
        for row in epochs.iloc[printed:].itertuples():
            line = f"epoch {row.epoch:3d}  {row.time:5.0f} s  loss {row.loss:.3f}  {row.peers} peers"
            print(line, file=file, flush=True)
        printed = len(epochs)
        troubles = [line for line in last_round(peer.events())[1:] if line not in told]
        for line in troubles:
            print(f"           {line}", file=file, flush=True)
        told += troubles

    return show


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
