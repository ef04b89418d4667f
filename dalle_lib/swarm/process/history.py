"""A peer's events as tables."""

import pandas as pd

from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.status import SwarmStatus

RECENT_EVENTS = 12
EPOCH_COLUMNS = ["epoch", "time", "loss", "samples", "seconds", "peers", "lr"]


def epochs_of(peer: Peer) -> pd.DataFrame:
    """Return one row an epoch: seconds since the peer started, its mean loss, its samples, peers, learning rate."""
    events = peer.events()
    rows = [{**event, "time": event["time"] - events[0]["time"]} for event in events if event["event"] == "epoch"]
    return pd.DataFrame(rows, columns=EPOCH_COLUMNS)


def counted_by(peer: Peer, names: dict[str, str]) -> pd.DataFrame:
    """Return, for each round that this peer was in, the samples that each peer's gradient counted for, by name."""
    rows = {
        event["epoch"]: {names.get(peer_id, peer_id[-6:]): samples for peer_id, samples in event["counted"].items()}
        for event in peer.events()
        if event["event"] == "averaged"
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("epoch").sort_index()


def names_of(peers: list[Peer]) -> dict[str, str]:
    """Return the name of each peer id that these peers know: their own and those in their last status."""
    names = {}
    for peer in peers:
        if (status := SwarmStatus.read(peer.folder)) is not None:
            names.update({other.peer_id: other.name for other in status.peers})
        names.update({e["peer_id"]: e["name"] for e in peer.events() if e["event"] == "joined"})
    return names


def samples_of(peer: Peer) -> int:
    """Return how many samples a peer has computed since it joined."""
    left = [event["samples"] for event in peer.events() if event["event"] == "left"]
    return left[-1] if left else int(epochs_of(peer)["samples"].sum())


def last_round(events: list[dict]) -> list[str]:
    """Return whose gradients the last update holds, then what went wrong lately, a line each; nothing before it."""
    rounds = [event for event in events if event["event"] == "averaged"]
    if not rounds:
        return []
    last, own = rounds[-1], next(event["peer_id"] for event in events if event["event"] == "joined")
    counted = f"The update of epoch {last['epoch']} holds the gradients of {last['peers']} peers"
    lines = [f"{counted}; yours are {last['shares'].get(own, 0.0):.0%} of it."]
    if last["error"]:
        lines.append(f"Epoch {last['epoch']}: {last['error']}.")
    for event in events[-RECENT_EVENTS:]:
        if event["event"] == "left_out":
            count = f"{event['samples']} samples of yours are" if event["samples"] else "You are"
            lines.append(f"{count} not in the others' update of epoch {event['epoch']}: {event['reason']}.")
        if event["event"] == "problem":
            lines.append(f"Peer {event['peer'][-6:]}: {event['problem']}.")
    return lines
