"""The figures of a finished training: who computed what, and what the model gained."""

from dalle_lib.evaluation import Examination
from dalle_lib.swarm import Crew, Peer
from dalle_lib.swarm.process.history import counted_by, epochs_of, names_of, samples_of


def summarize(crew: Crew, you: Peer, before: Examination | None, after: Examination | None) -> dict:
    """Return the figures: time, work of each peer, whose gradients each epoch held, and the gain, if examined."""
    events = you.events()
    peers = crew.peers
    counted = counted_by(you, names_of(list(peers.values()))).fillna(0.0)
    counted = counted[counted.sum(axis=1) > 0]
    shares = counted.div(counted.sum(axis=1), axis=0)
    samples = {name: samples_of(peer) for name, peer in peers.items()}
    epochs = epochs_of(you)
    gained = {}
    if before is not None and after is not None:
        gained = {
            "before": before.figures(),
            "after": after.figures(),
            "gain_seen": after.seen.exact - before.seen.exact,
            "gain_unseen": after.unseen.exact - before.unseen.exact,
        }
    return {
        "seconds": events[-1]["time"] - events[0]["time"],
        "epochs": int(epochs["epoch"].max()) if len(epochs) else 0,
        "samples_by_peer": samples,
        "share_of_samples": {name: count / max(1, sum(samples.values())) for name, count in samples.items()},
        "share_of_gradients": (counted.sum() / max(1.0, counted.to_numpy().sum())).to_dict(),
        "share_of_gradients_by_epoch": {int(epoch): row.to_dict() for epoch, row in shares.iterrows()},
        **gained,
    }
