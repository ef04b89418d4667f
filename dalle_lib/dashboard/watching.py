"""Follow a peer until it is done: a live panel in a notebook or a terminal, lines of text where nobody looks."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dalle_lib.dashboard.run_view import RunView
from dalle_lib.dashboard.terminal import Lines, live_panel
from dalle_lib.dashboard.words import Invite
from dalle_lib.one_line import in_one_line
from dalle_lib.platforms import this_platform
from dalle_lib.swarm.process.join import LEAVE_TIMEOUT_S, CannotJoin, Peer, PeerFailed

UPDATE_EVERY_S = 1.0
LEAVES = "Ctrl+C leaves and saves."
STOPS_WATCHING = "Another program runs this peer: Ctrl+C only stops watching."
LEAVING = f"Leaving and saving, which takes at most {LEAVE_TIMEOUT_S:.0f} s; Ctrl+C changes nothing now."
STOPPED_WATCHING = "Stopped watching. The peer goes on in the program that started it."
FAILED_LOOK = "This peer's files cannot be shown now, which does not stop it; the next look follows."

Show = Callable[[Peer, str], None]
"""Shows a peer as it is now, and a hint: what Ctrl+C does."""


def watch(
    peer: Peer,
    invite: Invite | None = None,
    minutes: float = math.inf,
    view: RunView | None = None,
) -> None:
    """Show what a peer does until it is done; the stop button or Ctrl+C makes it leave cleanly before.

    After `minutes` the watching ends, and the peer goes on.

    A peer that another program started is only watched: Ctrl+C ends that, and never the peer. A notebook and a terminal
    show a live panel; a notebook that nobody watches, a file and a pipe get a line for each epoch. `invite` says how
    friends join the peer: a result, which is printed on standard output, and not in a notebook. `view` adds what is
    known of the run beside the peer, and in a notebook cards that explain what peers do.

    Raises CannotJoin if the peer could not take part, and PeerFailed if it ended by any other error, after printing a
    block to copy into a report of it.
    """
    is_ours, hint = peer.is_ours, LEAVES if peer.is_ours else STOPS_WATCHING
    deadline = time.monotonic() + 60 * minutes
    with _display(invite, view) as show:
        look = _surviving(show)
        while peer.is_running:
            try:
                look(peer, hint)
                if time.monotonic() > deadline:
                    return
                time.sleep(UPDATE_EVERY_S)
            except KeyboardInterrupt:
                if not is_ours:
                    look(peer, STOPPED_WATCHING)
                    return
                hint = LEAVING
                peer.ask_to_stop()
        look(peer, "")
    if _is_notebook() and this_platform().is_unattended:
        panel_display(view)(peer)
    _require_clean_end(peer)


def _surviving(show: Show) -> Show:
    """Return a `show` that says so when a look at the peer's files fails, once for each reason, and goes on.

    A broken file, or one that is not there for a moment, must not end the watching: the healthy peer would leave.
    """
    told = set()

    def look(peer: Peer, hint: str) -> None:
        try:
            show(peer, hint)
        except BrokenPipeError:  # nobody reads any more
            raise
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            if (why := f"{type(error).__name__}: {in_one_line(error)}") not in told:
                told.add(why)
                print(f"{FAILED_LOOK} ({why})", file=sys.stderr, flush=True)

    return look


def _require_clean_end(peer: Peer) -> None:
    """Raise the errors of `watch` if a peer that has ended did so by an error."""
    try:
        peer.wait()
    except CannotJoin:
        raise
    except PeerFailed:
        from dalle_lib.checks.report import problem_report  # loads torch, for seconds

        print(problem_report(peer))
        raise


@contextmanager
def _display(invite: Invite | None, view: RunView | None) -> Iterator[Show]:
    """Yield what shows a peer where this program runs."""
    if _is_notebook():
        yield Lines(sys.stdout) if this_platform().is_unattended else panel_display(view)
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with live_panel(sys.stderr, invite if sys.stdout.isatty() else _printed(invite), view) as show:
            yield show
    else:
        yield Lines(sys.stderr, _printed(invite, is_shown=False))


def _printed(invite: Invite | None, *, is_shown: bool = True) -> Invite | None:
    """Return an `invite` that also prints what it says on standard output, once; it returns nothing unless `is_shown`.

    What is shown is progress, and goes to standard error: `dalle-lib join > file` would have no line for friends.
    """
    if invite is None:
        return None
    output, printed = sys.stdout, ""  # the live panel puts another in its place

    def print_and_show(addresses: list[str]) -> str:
        nonlocal printed
        if (told := invite(addresses)) != printed:
            printed = told
            print(told, file=output, flush=True)
        return told if is_shown else ""

    return print_and_show


def panel_display(view: RunView | None = None) -> Show:
    """Return a function that shows the panel in a notebook: the first call adds it, each later call replaces it.

    With a `view` cards lie below it. They are replaced seldom, because one that somebody has unfolded folds again then.
    """
    from IPython.display import HTML, display

    from dalle_lib.dashboard.cards import cards_html, rounds_of, was_held
    from dalle_lib.dashboard.panel import panel_html

    handle, shown = display(HTML(""), display_id=True), ""
    cards, figures = view and display(HTML(""), display_id=True), None

    def show(peer: Peer, hint: str = "") -> None:
        nonlocal shown, figures
        html = panel_html(peer, view)
        if html != shown:
            handle.update(HTML(html))
            shown = html
        if view is None:
            return
        rounds = len(rounds_of(peer))
        # After the first round, the tenth, the hundredth and so on, in the first pause, and at the end.
        if figures != (new := (rounds and len(str(rounds)), was_held(peer), bool(hint))):
            cards.update(HTML(cards_html(peer, view.card)))
            figures = new

    return show


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
