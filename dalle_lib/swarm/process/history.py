"""A peer's events as tables."""

from collections.abc import Iterable

import pandas as pd

from dalle_lib.swarm.process.events import own_id, rounds_with_others, samples_in
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.status import SwarmStatus

EPOCH_COLUMNS = ["epoch", "time", "loss", "samples", "seconds", "peers", "lr"]


def epochs_of(peer: Peer) -> pd.DataFrame:
    """Return a row for each epoch of a peer.

    `time` is the end of the epoch in seconds since the peer started, `loss` the mean over the peer's own batches,
    `samples` and `seconds` what it computed and how long that took, `peers` how many took part, `lr` the learning rate.
    """
    events = peer.events()
    rows = [{**event, "time": event["time"] - events[0]["time"]} for event in events if event["event"] == "epoch"]
    return pd.DataFrame(rows, columns=EPOCH_COLUMNS)


def counted_by(peer: Peer, names: dict[str, str]) -> pd.DataFrame:
    """Return how many samples each peer's gradient counted for: a row for each round that `peer` was in.

    The columns are peers, by their name in `names` or else by the end of their id.
    """
    return _counted_in([event for event in peer.events() if event["event"] == "averaged"], names)


def _counted_in(rounds: list[dict], names: dict[str, str]) -> pd.DataFrame:
    rows = {
        event["epoch"]: {names.get(peer_id, peer_id[-6:]): samples for peer_id, samples in event["counted"].items()}
        for event in rounds
    }
    return pd.DataFrame.from_dict(rows, orient="index", dtype=float).rename_axis("epoch").sort_index()


def counted_rounds(you: Peer, peers: Iterable[Peer]) -> pd.DataFrame:
    """Return what `counted_by` does for the rounds with others in which your gradient counted; 0 for who was in none.

    Names are those that `peers` know.
    """
    events = you.events()
    return _counted_in(rounds_with_others(events, own_id(events)), names_of(list(peers))).fillna(0.0)


def shares_in(counted: pd.DataFrame) -> pd.DataFrame:
    """Return each peer's share of each round of `counted_rounds`. Your mean share is that of your receipt."""
    return counted.div(counted.sum(axis=1), axis=0)


def names_of(peers: list[Peer]) -> dict[str, str]:
    """Return the names of these peers, and of those in their last status, by peer id."""
    names = {}
    for peer in peers:
        if (status := SwarmStatus.read(peer.folder)) is not None:
            names.update({other.peer_id: other.name for other in status.peers})
        names.update({e["peer_id"]: e["name"] for e in peer.events() if e["event"] == "joined"})
    return names


def samples_of(peer: Peer) -> int:
    """Return how many samples a peer has computed since it joined."""
    return samples_in(peer.events())
