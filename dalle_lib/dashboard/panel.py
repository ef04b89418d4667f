"""The live panel of one peer. Each update is complete HTML, so that a reload or an exported page still shows it."""

from html import escape

from dalle_lib.dashboard.charts import SERIES, run_chart, to_html
from dalle_lib.dashboard.tables import table_html
from dalle_lib.swarm.process.history import epochs_of, last_round, samples_of
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.status import SwarmStatus

_STYLE = """
<style>
.dalle-panel { font-family: system-ui, sans-serif; max-width: 640px; }
.dalle-panel .bar { background: rgba(128,128,128,0.3); border-radius: 4px; height: 10px; margin-top: 4px; }
.dalle-panel .bar div { border-radius: 4px; height: 10px; }
.dalle-panel .figures { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 12px 0; }
.dalle-panel .figures b { display: block; font-size: 1.4em; }
.dalle-panel table.dalle-table { width: 100%; }
</style>
"""


def panel_html(peer: Peer) -> str:
    """Return the panel of a peer as it is now, as HTML."""
    events, status, epochs = peer.events(), SwarmStatus.read(peer.folder), epochs_of(peer)
    joined = next((event for event in events if event["event"] == "joined"), None)
    parts = [f"<p><b>{escape(_state(peer, events))}</b></p>"]
    if joined is not None:
        parts.append(f"<p>{escape(_devices(joined))}</p>")
    if status is not None:
        you = joined and joined["peer_id"]
        parts += [_progress(status), _figures(status, epochs, samples_of(peer)), _table(status, you)]
    parts += [f"<p>{escape(line)}</p>" for line in last_round(events)]
    if len(epochs):
        parts.append(to_html(run_chart(epochs)))
    return f'{_STYLE}<div class="dalle-panel">{"".join(parts)}</div>'


def _state(peer: Peer, events: list[dict]) -> str:
    seen = {event["event"] for event in events}
    if "failed" in seen:
        return "Ended by an error."
    if "left" in seen:
        return "Left the swarm; progress is saved."
    return "Training." if "joined" in seen else "Joining: looking for the other peers and loading their state."


def _devices(joined: dict) -> str:
    """Return which device computes, and why another GPU does not."""
    idle = [
        f"{gpu} is idle: a peer computes on one GPU, so only another peer would use it." for gpu in joined["idle_gpus"]
    ]
    return " ".join([f"Computing on {joined['device']}.", *idle])


def _progress(status: SwarmStatus) -> str:
    share = 100 * min(1.0, status.epoch / status.total_epochs)
    return (
        f"<div>epoch {status.epoch} of {status.total_epochs}</div>"
        f'<div class="bar"><div style="background:{SERIES[0]};width:{share:.1f}%"></div></div>'
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
    rows = [
        (
            escape(peer.name) + (" (you)" if peer.peer_id == you and peer.name != "you" else ""),
            str(peer.epoch),
            f"{peer.samples:,}",
            f"{peer.samples_per_s:.0f}",
            "–" if peer.loss is None else f"{peer.loss:.3f}",
        )
        for peer in status.peers
    ]
    return table_html(["peer", "epoch", "samples", "samples/s", "loss"], rows)
