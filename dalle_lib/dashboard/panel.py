"""The live panel of one peer: complete HTML at each update, so that a reload or an export still shows it."""

import sys
import time
from html import escape

from dalle_lib.dashboard.charts import run_chart, to_svg
from dalle_lib.swarm.history import epochs_of, samples_of
from dalle_lib.swarm.process import Peer
from dalle_lib.swarm.status import SwarmStatus

UPDATE_EVERY_S = 1.0
_STYLE = """
<style>
.dalle-panel { font-family: system-ui, sans-serif; max-width: 640px; }
.dalle-panel .bar { background: #e4e7eb; border-radius: 4px; height: 10px; }
.dalle-panel .bar div { background: #3b6fb6; border-radius: 4px; height: 10px; }
.dalle-panel .figures { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 12px 0; }
.dalle-panel .figures b { display: block; font-size: 1.4em; }
.dalle-panel table { border-collapse: collapse; width: 100%; margin: 8px 0; }
.dalle-panel th, .dalle-panel td { text-align: right; padding: 3px 8px; border-bottom: 1px solid #d5d9de; }
.dalle-panel th:first-child, .dalle-panel td:first-child { text-align: left; }
</style>
"""


def panel_html(peer: Peer) -> str:
    """Return the panel as it is now."""
    events, status, epochs = peer.events(), SwarmStatus.read(peer.folder), epochs_of(peer)
    you = next((event["peer_id"] for event in events if event["event"] == "joined"), None)
    parts = [f"<p><b>{escape(_state(peer, events))}</b></p>"]
    if status is not None:
        parts += [_progress(status), _figures(status, epochs, samples_of(peer)), _table(status, you)]
    if len(epochs):
        parts.append(to_svg(run_chart(epochs)))
    return f'{_STYLE}<div class="dalle-panel">{"".join(parts)}</div>'


def watch(peer: Peer) -> None:
    """Show a peer's panel until the peer is done; the stop button, or Ctrl+C, makes it leave cleanly first.

    Outside a notebook it prints a line an epoch instead. Raises PeerFailed if the peer ended by an error.
    """
    show = _notebook_display() or terminal_display()
    try:
        while peer.is_running:
            show(peer)
            time.sleep(UPDATE_EVERY_S)
    except KeyboardInterrupt:
        print("Leaving: saving, and saying goodbye to the others ...")
        peer.stop()
    show(peer)
    peer.wait()


def _notebook_display():
    """Return a function that shows or replaces the panel, or None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display

    handle, shown = display(HTML(""), display_id=True), ""

    def show(peer: Peer) -> None:
        nonlocal shown
        html = panel_html(peer)
        if html != shown:
            handle.update(HTML(html))
            shown = html

    return show


def terminal_display():
    """Return a function that prints the epochs of a peer that it has not printed yet."""
    printed = 0

    def show(peer: Peer) -> None:
        nonlocal printed
        epochs = epochs_of(peer)
        for row in epochs.iloc[printed:].itertuples():
            print(f"epoch {row.epoch:3d}  {row.time:5.0f} s  loss {row.loss:.3f}  {row.peers} peers", file=sys.stderr)
        printed = len(epochs)

    return show


def _state(peer: Peer, events: list[dict]) -> str:
    seen = {event["event"] for event in events}
    if "failed" in seen:
        return "Ended by an error."
    if "left" in seen:
        return "Left the swarm; progress is saved."
    return "Training." if "joined" in seen else "Joining: looking for the other peers and loading their state."


def _progress(status: SwarmStatus) -> str:
    share = 100 * min(1.0, status.epoch / status.total_epochs)
    return (
        f"<div>epoch {status.epoch} of {status.total_epochs}</div>"
        f'<div class="bar"><div style="width:{share:.1f}%"></div></div>'
    )


def _figures(status: SwarmStatus, epochs, own_samples: int) -> str:
    speed = sum(peer.samples_per_s for peer in status.peers)
    figures = {
        "loss": f"{epochs['loss'].iloc[-1]:.3f}" if len(epochs) else "–",
        "samples/s": f"{speed:.0f}",
        "peers": str(len(status.peers)),
        "time left": _time_left(status, epochs),
        "your samples": f"{own_samples:,}",
    }
    return '<div class="figures">' + "".join(f"<div><b>{v}</b>{k}</div>" for k, v in figures.items()) + "</div>"


def _time_left(status: SwarmStatus, epochs) -> str:
    if len(epochs) < 2:
        return "–"
    seconds = epochs["seconds"].iloc[-5:].mean() * max(0, status.total_epochs - status.epoch)
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def _table(status: SwarmStatus, you: str | None) -> str:
    rows = "".join(
        f"<tr><td>{escape(peer.name)}{' (you)' if peer.peer_id == you else ''}</td><td>{peer.epoch}</td>"
        f"<td>{peer.samples:,}</td><td>{peer.samples_per_s:.0f}</td>"
        f"<td>{'–' if peer.loss is None else f'{peer.loss:.3f}'}</td></tr>"
        for peer in status.peers
    )
    return f"<table><tr><th>peer</th><th>epoch</th><th>samples</th><th>samples/s</th><th>loss</th></tr>{rows}</table>"
