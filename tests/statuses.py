"""What a peer posts about itself, for tests that need some."""

from dalle_lib.swarm.process.status import PeerStatus

USUAL = {
    "epoch": 5, "samples": 96, "samples_per_s": 2.0, "loss": 1.5, "started_at": 1.7e9, "compute_s": 40.0,
    "counted": 64.0, "sent_bytes": 0, "received_bytes": 0,
    "hardware": "Tesla T4", "kit": "0.2.0", "team": "", "anonymous": False,
    "witnessed": "", "trained": "", "held": "", "sketch": "",
}  # fmt: skip


def peer_status(peer_id: str, name: str, **told) -> PeerStatus:
    """Return a usual status of a peer, with other values of some fields."""
    return PeerStatus(**{**USUAL, "peer_id": peer_id, "name": name, **told})
