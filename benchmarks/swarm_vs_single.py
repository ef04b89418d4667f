"""Does a swarm learn as well as one process with the same global batch?

Prints JSON: the mean held-out image loss of swarms of two trainers (figure), of single processes (reference), their
ratio, and each run's loss. Takes about half an hour on two cores with the defaults.
"""

import json
import os
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from tqdm import tqdm

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import image_loss
from dalle_lib.model import DALLE
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.peer.state import MODEL


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to compare."""

    epochs: int = 40
    seeds: int = 3
    batch_size: int = 16
    trainers: int = 2


def card_of(benchmark: Benchmark, delayed: Literal[False, "averaging"]) -> RunCard:
    """Return the embedded run's card, changed to end after the benchmark's epochs."""
    card = RunCard.load("emoji-mini")
    return card.with_changes(
        optimizer={**card.optimizer.model_dump(), "total_epochs": benchmark.epochs},
        averaging={**card.averaging.model_dump(), "delayed": delayed},
    )


def held_out_loss(card: RunCard, model: DALLE) -> float:
    """Return the image loss on the run's held-out pictures."""
    rows = read_codes(Path(card.data_source(card.data.held_out)) / "codes.parquet")
    return image_loss(model, rows, CaptionTokenizer(card.path(card.tokenizer), card.model.text_length))


def single(benchmark: Benchmark, seed: int) -> float:
    """Return the held-out loss after training in this process alone."""
    torch.set_num_threads(1)
    card = card_of(benchmark, delayed=False)
    lamb, model = card.optimizer, initial_model(card)
    optimizer = LAMB8bit(parameter_groups(model, lamb.weight_decay), lr=lamb.lr, betas=lamb.betas, eps=lamb.eps)
    schedule = linear_warmup_schedule(optimizer, lamb.warmup_epochs, lamb.total_epochs)
    batches = batches_of(card, benchmark.batch_size, seed)
    steps = card.averaging.target_batch_size // benchmark.batch_size
    for _ in range(benchmark.epochs):
        for _ in range(steps):
            batch = next(batches)
            (model(batch.text, batch.codes, batch.input_codes).loss / steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return held_out_loss(card, model)


def swarm(benchmark: Benchmark, seed: int, delayed: Literal[False, "averaging"]) -> float:
    """Return the held-out loss of a private swarm that trained for as many epochs."""
    card = card_of(benchmark, delayed)
    trainers = [
        PeerSettings(run="", name=f"peer{i}", batch_size=benchmark.batch_size, seed=100 * (seed + 1) + i)
        for i in range(benchmark.trainers)
    ]
    with tempfile.TemporaryDirectory() as folder, local_swarm(card, folder, trainers) as running:
        first = running.peers["peer0"]
        first.wait(timeout_s=3600)
        return held_out_loss(card, load_model(first.folder / MODEL))


def main(benchmark: Benchmark) -> None:
    """Run all and print the comparison."""
    seeds = range(benchmark.seeds)
    with ProcessPoolExecutor(max_workers=2) as pool:
        reference = list(pool.map(single, [benchmark] * len(seeds), seeds))
    losses = {
        mode: [swarm(benchmark, seed, delayed) for seed in tqdm(seeds, desc=f"{mode} swarms")]
        for mode, delayed in (("synchronous", False), ("delayed", "averaging"))
    }
    single_mean = sum(reference) / len(reference)
    means = {mode: sum(values) / len(values) for mode, values in losses.items()}
    print(
        json.dumps(
            {
                "figure": means,
                "reference": single_mean,
                "ratio": {mode: mean / single_mean for mode, mean in means.items()},
                "runs": {"single": reference, **losses},
                "epochs": benchmark.epochs,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
