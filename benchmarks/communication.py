"""What does each way to communicate less cost, and what does it save?

Swarms of two trainers continue to train the young embedded model, each way over the same number of samples. Prints
JSON with a row for each way: held-out image loss, bytes that a peer sends for each sample of the run, samples a second,
epochs. The figure is the loss of the way that sends least, the reference the loss of the way that waits for everything.
Takes about a quarter of an hour on two cores with the defaults.
"""

import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass

import torch
import tyro
from swarm_vs_single import held_out_loss
from tqdm import tqdm

from dalle_lib.checkpoint import load_model
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.peer.state import MODEL
from dalle_lib.swarm.process.history import samples_of


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to compare."""

    samples: int = 6144
    epoch_samples: int = 192
    rare: int = 4
    """Local updates are averaged after this many of these epochs."""
    local_lr: float = 5e-4
    """Learning rate of a peer's own steps. It is below the card's rate, which is for a whole epoch's samples: a step of
    a peer sees one batch, and the outer step's momentum makes it several times as long. At 2e-3 the loss rose."""
    batch_size: int = 16


def ways(benchmark: Benchmark) -> dict[str, RunCard]:
    """Return the run's card for each way."""
    card = RunCard.load("emoji-mini")

    def changed(times: int = 1, lr: float = card.optimizer.lr, **averaging) -> RunCard:
        size = benchmark.epoch_samples * times
        epochs = {"total_epochs": benchmark.samples // size, "warmup_epochs": 4 // times, "lr": lr}
        return card.with_changes(
            optimizer=card.optimizer.model_dump() | epochs,
            averaging=card.averaging.model_dump() | {"target_batch_size": size, "delayed": False} | averaging,
        )

    return {
        "wait for everything": changed(),
        "delayed step": changed(delayed="step"),
        "delayed averaging": changed(delayed="averaging"),
        f"{benchmark.rare} times larger epochs": changed(benchmark.rare),
        f"local updates, {benchmark.rare} times larger epochs": changed(
            benchmark.rare, lr=benchmark.local_lr, strategy="local", state_every=1000
        ),
    }


def run(card: RunCard, benchmark: Benchmark) -> dict:
    """Return the results of a private swarm of `card`."""
    trainers = [PeerSettings(run="", name=f"peer{i}", batch_size=benchmark.batch_size, seed=i) for i in (1, 2)]
    with tempfile.TemporaryDirectory() as folder, local_swarm(card, folder, trainers) as running:
        peers = list(running.peers.values())
        started = time.monotonic()
        for peer in peers:
            peer.wait(timeout_s=3600)
        seconds = time.monotonic() - started
        rounds = [event for peer in peers for event in peer.events() if event["event"] == "averaged"]
        samples = sum(samples_of(peer) for peer in peers)
        return {
            "loss": held_out_loss(card, load_model(peers[0].folder / MODEL)),
            "bytes a peer sends a sample": sum(event["bytes_sent"] for event in rounds) / len(peers) / samples,
            "samples a second": samples / seconds,
            "rounds not whole": sum(event["error"] is not None for event in rounds),
            "epochs": card.optimizer.total_epochs,
        }


def main(benchmark: Benchmark) -> None:
    """Run all and print the table."""
    rows = {name: run(card, benchmark) for name, card in tqdm(ways(benchmark).items())}
    least = min(rows.values(), key=lambda row: row["bytes a peer sends a sample"])
    reference = rows["wait for everything"]["loss"]
    result = {"figure": least["loss"], "reference": reference, "ratio": least["loss"] / reference, "ways": rows}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    print(json.dumps(result | {"samples": benchmark.samples, "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
