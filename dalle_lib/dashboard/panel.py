"""The live panel of one peer. Each update is complete HTML, so that a reload or an exported page still shows it."""

from html import escape

from dalle_lib.amounts import duration
from dalle_lib.dashboard.charts import SERIES, run_chart, to_html
from dalle_lib.dashboard.lately import last_round
from dalle_lib.dashboard.run_view import RunView
from dalle_lib.dashboard.start import start_html
from dalle_lib.dashboard.tables import table_html
from dalle_lib.dashboard.words import (
    computing_line,
    last_looked,
    name_of,
    proof_line,
    reach_line,
    state_in_words,
)
from dalle_lib.swarm.process.events import read_starts
from dalle_lib.swarm.process.folder import SETTINGS
from dalle_lib.swarm.process.history import epochs_of
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.standing import LOOKS_ON, Standing
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.troubles import trouble_in

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


def panel_html(peer: Peer, view: RunView | None = None) -> str:
    """Return the panel of a peer as it is now, as HTML; `view` adds what is known of the run beside the peer."""
    starts, standing, epochs = read_starts(peer.folder), Standing.of(peer), epochs_of(peer)
    events = starts[-1]
    joined = next((event for event in events if event["event"] == "joined"), None)
    parts = [_linked(f"{state_in_words(standing)}.", is_bold=True)]
    if view is not None and (message := view.message()):
        parts.append(f"<p>The organiser says: {escape(message)}</p>")
    if (computing := computing_line(events)) is not None:
        parts.append(_linked(f"{computing}."))
    elif joined is not None:
        parts.append(_linked(f"Computing on {joined['device']}."))
    if (line := reach_line(events)) is not None:
        parts.append(_linked(f"{line}."))
    if (proof := proof_line(standing)) is not None:
        parts.append(f"<p>{proof}.</p>")
    if standing.role == "trainer":
        parts.append(start_html(standing, starts, PeerSettings.load(peer.folder / SETTINGS).start_after_s))
    if standing.swarm is not None:
        you = joined and joined["peer_id"]
        if standing.role == "trainer" and (looked := last_looked(standing)) is not None:  # a helper's state tells it
            parts.append(f"<p>{looked}.</p>")
        parts += [_progress(standing), _figures(standing, view, you)]
        if standing.swarm.peers:
            parts += [] if _is_live(standing) else ["<p>The peers, as yours saw them last:</p>"]
            parts.append(_table(standing.swarm, you))
    parts += map(_linked, last_round(events, standing.swarm))
    if len(epochs):
        parts.append(to_html(run_chart(epochs)))
    return f'{_STYLE}<div class="dalle-panel">{"".join(parts)}</div>'


def _linked(line: str, is_bold: bool = False) -> str:
    """Return a line as a paragraph, with a link to what it means where docs/troubleshooting.md has an entry."""
    told = f"<b>{escape(line)}</b>" if is_bold else escape(line)
    if (trouble := trouble_in(line)) is not None:
        told += f' <a href="{escape(trouble.link)}" target="_blank">What it means</a>'
    return f"<p>{told}</p>"


def _is_live(standing: Standing) -> bool:
    """Return whether what the peer saw of the swarm is still so."""
    return standing.state in LOOKS_ON


def _progress(standing: Standing) -> str:
    total = standing.swarm.total_epochs
    epoch = max(standing.swarm.epoch, standing.epoch or 0)  # a peer's own last epoch may be newer than its last look
    share = 100 * min(1.0, epoch / total)
    return (
        f"<div>epoch {epoch} of {total}</div>"
        f'<div class="bar"><div style="background:{SERIES[0]};width:{share:.1f}%"></div></div>'
    )


def _figures(standing: Standing, view: RunView | None, you: str | None) -> str:
    figures = {"loss": "–" if standing.loss is None else f"{standing.loss:.3f}"}
    if _is_live(standing) and standing.swarm.peers:  # a newcomer sees not even itself in the first seconds
        figures["samples/s"] = f"{sum(peer.samples_per_s for peer in standing.swarm.at_work):.0f}"
        figures["peers"] = str(len(standing.swarm.at_work))
        if (spread := standing.swarm.spread) is not None:
            figures["parameters apart"] = f"{spread.most:.2%}"
    figures["your samples"] = f"{standing.totals.samples:,}"
    if view is not None:
        figures |= view.facts(standing, you)
    if standing.seconds_left is not None:
        figures["time left"] = duration(standing.seconds_left)
    return '<div class="figures">' + "".join(f"<div><b>{v}</b>{k}</div>" for k, v in figures.items()) + "</div>"


def _table(status: SwarmStatus, you: str | None) -> str:
    rows = [
        (
            escape(name_of(peer)) + (" (you)" if peer.peer_id == you and peer.name != "you" else ""),
            str(peer.epoch),
            f"{peer.samples:,}",
            f"{peer.samples_per_s:.0f}",
            "–" if peer.loss is None else f"{peer.loss:.3f}",
        )
        for peer in status.peers
    ]
    return table_html(["peer", "epoch", "samples", "samples/s", "loss"], rows)
