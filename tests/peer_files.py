"""Folders of peers made by hand, as running or finished peers leave them."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock
from statuses import peer_status

from dalle_lib.checkpoint import save_tensors
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer, PeerSettings
from dalle_lib.swarm.process.folder import OPTIMIZER, bind
from dalle_lib.swarm.process.status import SwarmStatus

STARTED = {"event": "started", "pid": 1}
LOADED = {"event": "loaded", "device": "cpu"}
CONNECTED = {"event": "connected", "addresses": ["/ip4/192.0.2.1/tcp/4321/p2p/id0", "/ip4/127.0.0.1/tcp/4321/p2p/id0"]}
JOINED = {"event": "joined", "epoch": 9, "peer_id": "id0", "name": "ada", "device": "cpu", "peers": 3}
BEGINNING = [STARTED, LOADED, CONNECTED, JOINED]
LEFT_OUT = {"event": "left_out", "epoch": 9, "samples": 0, "reason": "others are ahead", "counts_in": None}
LEFT_OUT |= {"is_waiting": False}
LEFT = {"event": "left", "epoch": 12, "samples": 300}


def epoch(number: int, samples: int = 96) -> list[dict]:
    """Return the events of an epoch of six seconds in which this peer's gradient was 31% of the update."""
    averaged = {"event": "averaged", "epoch": number - 1, "peers": 3, "shares": {"id0": 0.31, "id1": 0.69}}
    averaged |= {"seconds": 1.5, "bytes_sent": 5_800_000, "bytes_received": 5_700_000}
    ended = {"event": "epoch", "epoch": number, "loss": 1.43, "samples": samples, "seconds": 6.0, "peers": 3, "lr": 0.1}
    return [averaged | {"error": None, "counted": {"id0": 31.0, "id1": 69.0}}, ended]


def peer_with(folder: Path, events: list[dict], card=None, ago_s: float = 60.0, **settings) -> Peer:
    """Return a peer whose events these are, a second each; the first was `ago_s` seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    PeerSettings(run="emoji-mini", **{"name": "ada", **settings}).save(folder / "settings.json")
    if card is not None:
        bind(folder, card)
    begun = time.time() - ago_s
    lines = [json.dumps({"time": begun + number, **event}) + "\n" for number, event in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(lines))
    return Peer(folder)


@contextmanager
def running(peer: Peer) -> Iterator[Peer]:
    """Make a peer seem to run."""
    with FileLock(peer.folder / "peer.lock"):
        yield peer


def seen(
    folder: Path,
    samples: int | None,
    at_epoch: int,
    names: Sequence[str] = ("ada", "bob", "eve"),
    told: dict | None = None,
    **fields,
) -> None:
    """Write what a peer sees of its swarm now; `told` is what each of the peers tells otherwise."""
    usual = {"epoch": at_epoch, "samples": 96, "samples_per_s": 7.0, "loss": 1.5, **(told or {})}
    others = [peer_status(f"id{i}", name, **usual) for i, name in enumerate(names)]
    now = {"time": time.time(), "total_epochs": 60, "target_batch_size": 192, **fields}
    SwarmStatus(epoch=at_epoch, samples_in_epoch=samples, peers=others, **now).write(folder)


def save_progress(folder: Path, card: RunCard, epoch: int) -> None:
    """Write to `folder` what a peer of `card` leaves behind, as far as it matters here."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"fingerprint": card.fingerprint, "epoch": str(epoch), "param_groups": "[]"}
    save_tensors(folder / OPTIMIZER, {"parameter.0": torch.full((3,), float(epoch))}, metadata)
    PeerSettings(run=card.name).save(folder / "settings.json")
