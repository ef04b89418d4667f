"""What does each way to communicate less cost, and what does it save?

Swarms of two trainers continue to train the young embedded model, each way over the same number of samples. Prints
JSON with a row for each way: held-out image loss, bytes that a peer sends for each sample of the run, samples a second,
epochs. The figure is the loss of the way that sends least, the reference the loss of the way that waits for everything.
Takes about a quarter of an hour on two cores with the defaults.

With `--upload-bits 8 4` it compares numbers of bits in their place: swarms of `--peers` trainers, of whom every second
computes a third of the time in smaller batches, and with `--churn` one is killed after a third of the epochs, and a
newcomer comes; `--seeds` of each. A row has the loss; bytes that a peer sends and receives for each sample of the run;
rounds that were not whole; and the spread at the end: the largest distance of a peer's parameters from the peers' mean,
over the way that the mean has gone. The figure is the mean loss with the fewest bits, the reference that with the most.
"""

import contextlib
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Literal

import torch
import tyro
from swarm_vs_single import held_out_loss
from tqdm import tqdm

from dalle_lib.checkpoint import load_model
from dalle_lib.run import RunCard, initial_model
from dalle_lib.swarm import PeerFailed, PeerSettings, local_swarm
from dalle_lib.swarm.peer.state import MODEL
from dalle_lib.swarm.process.events import STARTED
from dalle_lib.swarm.process.history import samples_of
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.local import LocalSwarm


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
    upload_bits: tuple[Literal[8, 4], ...] = ()
    """Bits a value on the way to reducers, to be compared in place of the ways to communicate."""
    peers: tuple[int, ...] = (2, 4, 8)
    """Sizes of the swarms in which bits are compared."""
    churn: bool = False
    """Whether the last peer of these swarms is killed, and another one joins."""
    seeds: int = 3


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
        return results(card, peers, peers, time.monotonic() - started)


def results(card: RunCard, peers: list[Peer], everybody: list[Peer], seconds: float) -> dict:
    """Return the results of a swarm of `everybody`, of whom `peers` were there to the end."""
    rounds = [event for peer in everybody for event in peer.events() if event["event"] == "averaged"]
    samples = sum(map(samples_of, everybody))
    sent, received = (sum(event[f"bytes_{way}"] for event in rounds) for way in ("sent", "received"))
    return {
        "loss": held_out_loss(card, load_model(peers[0].folder / MODEL)),
        "bytes a peer sends a sample": sent / len(peers) / samples,
        "bytes a peer receives a sample": received / len(peers) / samples,
        "samples a second": samples / seconds,
        "rounds not whole": sum(event["error"] is not None for event in rounds),
        "epochs": card.optimizer.total_epochs,
        "spread": spread_of(card, peers),
    }


def spread_of(card: RunCard, peers: list[Peer]) -> float:
    """Return the largest distance of a peer's parameters from their mean, over the way that the mean has gone."""
    models = [initial_model(card), *(load_model(peer.folder / MODEL) for peer in peers)]
    start, *ends = (torch.nn.utils.parameters_to_vector(model.parameters()).detach() for model in models)
    mean = torch.stack(ends).mean(0)
    return max(float((end - mean).norm() / (mean - start).norm()) for end in ends)


def uneven(benchmark: Benchmark, index: int, seed: int) -> PeerSettings:
    """Return the settings of a peer; those of odd index are slow."""
    slow = {"duty": 1 / 3, "batch_size": benchmark.batch_size // 2} if index % 2 else {}
    settings = {"batch_size": benchmark.batch_size, "seed": 1000 * (seed + 1) + index, **slow}
    return PeerSettings(run="", name=f"peer{index}", **settings)


def replace_last(swarm: LocalSwarm, newcomer: PeerSettings, after_epochs: int) -> Peer:
    """Kill the last peer after so many epochs of the first, let `newcomer` join, and return the one that is gone."""
    first = swarm.peers["peer0"]
    last = swarm.peers.pop([*swarm.peers][-1])
    while sum(event["event"] == "epoch" for event in first.events()) < after_epochs:
        time.sleep(0.5)
        if not first.is_running:
            raise PeerFailed(f"the first peer left early. Its log ends:\n{first.log_tail()}")
    os.killpg(last.wait_for(STARTED)["pid"], signal.SIGKILL)
    with contextlib.suppress(PeerFailed):
        last.wait(timeout_s=60)
    swarm.add(newcomer)
    return last


def compare_bits(benchmark: Benchmark) -> dict:
    """Return a row for each number of bits and of peers, and each seed."""
    card, rows = ways(benchmark)["delayed step"], {}
    for seed, count, bits in tqdm([*itertools.product(range(benchmark.seeds), benchmark.peers, benchmark.upload_bits)]):
        changed = card.with_changes(averaging=card.averaging.model_dump() | {"upload_bits": bits})
        trainers = [uneven(benchmark, index, seed) for index in range(count)]
        with tempfile.TemporaryDirectory() as folder, local_swarm(changed, folder, trainers) as running:
            started, everybody = time.monotonic(), list(running.peers.values())
            if benchmark.churn:
                newcomer = uneven(benchmark, count, seed)
                replace_last(running, newcomer, changed.optimizer.total_epochs // 3)
                everybody.append(running.peers[newcomer.name])
            for peer in running.peers.values():
                peer.wait(timeout_s=3600)
            row = results(changed, [*running.peers.values()], everybody, time.monotonic() - started)
        rows[name := f"{bits} bits, {count} peers, seed {seed}"] = row
        tqdm.write(f"{name}: {json.dumps(row)}", file=sys.stderr)  # so that who interrupts it has these
    return rows


def main(benchmark: Benchmark) -> None:
    """Run all and print the table."""
    if benchmark.upload_bits:
        rows = compare_bits(benchmark)
        mean = {
            bits: statistics.mean(row["loss"] for name, row in rows.items() if name.startswith(f"{bits} bits"))
            for bits in benchmark.upload_bits
        }
        figure, reference = mean[min(mean)], mean[max(mean)]
    else:
        rows = {name: run(card, benchmark) for name, card in tqdm(ways(benchmark).items())}
        figure = min(rows.values(), key=lambda row: row["bytes a peer sends a sample"])["loss"]
        reference = rows["wait for everything"]["loss"]
    result = {"figure": figure, "reference": reference, "ratio": figure / reference, "ways": rows}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    print(json.dumps(result | {"samples": benchmark.samples, "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
