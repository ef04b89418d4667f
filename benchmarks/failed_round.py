"""What should a peer do with its gradient when a round of averaging fails: apply it, keep it, or neither?

Simulates four peers in one process on the embedded young run's data, with a small model that starts from random
weights: each epoch is a round, which fails for all peers or leaves one out, as often as said. A peer that was not
averaged then answers in one of these ways:

- local: it applies its own gradient now, so its parameters slip from the others' until parameters are averaged;
- keep: it applies nothing, and its gradient counts in the next round, with the samples of both;
- zero: it applies a zero gradient, as hivemind 1.1.12 does, and its samples are lost;
- catch up: it keeps its gradient, and copies another peer's parameters and statistics, where there is one to copy.

All see the same number of samples, and for one seed the same samples and failures. Prints JSON: the mean held-out image
loss of each answer (figure), without failures (reference), their ratio, the spread over seeds, and how far the loss of
the same seed rose, with the standard error of that mean; also how far apart the peers were before their parameters were
averaged. Takes about ten minutes on one core with the defaults.
"""

import json
import platform
import random
import statistics
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from dalle_lib.evaluation import image_loss
from dalle_lib.model import DALLE
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.swarm import PeerSettings

ANSWERS = {"all": ("local", "keep", "zero"), "one of four": ("local", "keep", "zero", "catch up")}
"""The answers of a peer that are compared, for each kind of failure."""
SMALL = {"dim": 64, "depth": 3, "heads": 2}
"""Sizes in which the small model differs from the run's."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to simulate."""

    rates: tuple[float, ...] = (0.1, 0.3)
    seeds: int = 5
    epochs: int = 60
    batch_size: int = 8
    """Samples of each peer in each epoch."""
    bits: int = 8
    young: bool = False
    """Continue to train the embedded young model, instead of the small one: about ten times slower."""


class Arm(NamedTuple):
    """One way in which rounds fail, with what a peer does then."""

    who: str
    rate: float
    answer: str


class Outcome(NamedTuple):
    """How one training ended."""

    loss: float
    apart: float
    """Mean distance of a peer's parameters from the average before averaging, over the norm of the average."""


@cache
def embedded_run() -> RunCard:
    """Return the card whose data and recipe are used."""
    return RunCard.load("emoji-mini")


def small_model(card: RunCard, seed: int) -> DALLE:
    """Return a model with random weights that depend on `seed` alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DALLE(replace(card.model, **SMALL))


class Peer:
    """One trainer: its model, its optimizer, and the sum of its samples' gradients."""

    def __init__(self, study: Study, seed: int, number: int) -> None:
        card = embedded_run()
        self.model = initial_model(card) if study.young else small_model(card, seed)
        lamb = card.optimizer
        groups = parameter_groups(self.model, lamb.weight_decay)
        self.optimizer = LAMB8bit(groups, lr=lamb.lr, betas=lamb.betas, eps=lamb.eps, bits=study.bits)
        self.schedule = linear_warmup_schedule(self.optimizer, lamb.warmup_epochs, study.epochs)
        own_seed = 100 * (seed + 1) + number
        settings = PeerSettings(run=card.name, batch_size=study.batch_size, seed=own_seed)
        self.batches = batches_of(card, settings.batch_size, seed=0)
        self.samples = 0

    @property
    def parameters(self) -> list[Tensor]:
        """The model's parameters."""
        return list(self.model.parameters())

    def compute(self) -> None:
        """Add the gradients of another batch."""
        batch = next(self.batches)
        (self.model(batch.text, batch.codes, batch.input_codes).loss * len(batch)).backward()
        self.samples += len(batch)

    def take_gradients(self) -> list[Tensor]:
        """Return the sum of all samples' gradients, and reset it."""
        gradients = [p.grad for p in self.parameters]
        self.optimizer.zero_grad(set_to_none=True)
        self.samples = 0
        return gradients

    def apply(self, gradients: list[Tensor]) -> None:
        """Make one step with copies of `gradients`, which replace the peer's own."""
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient.clone()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def copy(self, other: "Peer") -> None:
        """Take another peer's parameters and statistics, keeping the gradients."""
        torch._foreach_copy_(self.parameters, other.parameters)
        self.optimizer.load_state_dict(other.optimizer.state_dict())


def average_gradients(peers: list[Peer]) -> None:
    """Have `peers` apply the mean gradient of all their samples."""
    samples = sum(peer.samples for peer in peers)
    gradients = [sum(of_peers) / samples for of_peers in zip(*(peer.take_gradients() for peer in peers), strict=True)]
    for peer in peers:
        peer.apply(gradients)


@torch.no_grad()
def average_parameters(peers: list[Peer]) -> float:
    """Give all peers their mean parameters, and return how far they were from it, over its norm."""
    means = [torch.stack(of_peers).mean(0) for of_peers in zip(*(peer.parameters for peer in peers), strict=True)]
    norm = torch.nn.utils.get_total_norm(means)
    distances = [torch.nn.utils.get_total_norm(torch._foreach_sub(peer.parameters, means)) for peer in peers]
    for peer in peers:
        torch._foreach_copy_(peer.parameters, means)
    return float(torch.stack(distances).mean() / norm)


def answer_failure(peer: Peer, answer: str, averaged: list[Peer]) -> None:
    """Have a peer that was not averaged act as the arm of the study says."""
    if answer == "local":
        average_gradients([peer])
    elif answer == "zero":
        peer.apply([torch.zeros_like(gradient) for gradient in peer.take_gradients()])
    elif answer == "catch up" and averaged:
        peer.copy(averaged[0])


def train(study: Study, arm: Arm, seed: int) -> Outcome:
    """Return the outcome of a swarm whose rounds fail as `arm` says."""
    peers, luck, apart = [Peer(study, seed, number) for number in range(4)], random.Random(seed), []
    every = embedded_run().averaging.state_every
    for epoch in range(1, study.epochs + 1):
        failed, unlucky = luck.random() < arm.rate, peers[luck.randrange(len(peers))]
        left_out = [] if not failed else peers if arm.who == "all" else [unlucky]
        averaged = [peer for peer in peers if peer not in left_out]
        for peer in peers:
            peer.compute()
        if averaged:
            average_gradients(averaged)
        for peer in left_out:
            answer_failure(peer, arm.answer, averaged)
        for peer in peers:
            peer.schedule.step()
        if epoch % every == 0 or epoch == study.epochs:
            apart.append(average_parameters(peers))
    return Outcome(held_out_loss(peers[0].model), statistics.mean(apart))


def held_out_loss(model: DALLE) -> float:
    """Return the image loss on the run's held-out pictures."""
    card = embedded_run()
    rows = read_codes(Path(card.data_source(card.data.held_out)) / "codes.parquet")
    return image_loss(model, rows, CaptionTokenizer(card.path(card.tokenizer), card.model.text_length))


def summary(outcomes: list[Outcome], undisturbed: list[Outcome]) -> dict[str, float | list[float]]:
    """Return the statistics of one arm over its seeds."""
    losses = [outcome.loss for outcome in outcomes]
    rises = [outcome.loss - other.loss for outcome, other in zip(outcomes, undisturbed, strict=True)]
    reference = statistics.mean(other.loss for other in undisturbed)
    return {
        "loss": statistics.mean(losses),
        "spread": statistics.stdev(losses),
        "ratio": statistics.mean(losses) / reference,
        "rise": statistics.mean(rises),
        "error of the rise": statistics.stdev(rises) / len(rises) ** 0.5,
        "apart": statistics.mean(outcome.apart for outcome in outcomes),
        "losses": losses,
    }


def main(study: Study) -> None:
    """Simulate all and print the comparison."""
    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # a peer may have nothing to apply yet
    torch.set_num_threads(1)
    arms = [Arm(who, rate, answer) for who, answers in ANSWERS.items() for rate in study.rates for answer in answers]
    never = Arm("all", 0.0, "local")
    outcomes = {
        arm: [train(study, arm, seed) for seed in range(study.seeds)] for arm in tqdm([never, *arms], desc="arms")
    }
    figures = {arm: summary(results, outcomes[never]) for arm, results in outcomes.items()}
    named = {f"{arm.who}, {arm.rate:.0%}, {arm.answer}": figures[arm] for arm in arms}
    print(
        json.dumps(
            {
                "figure": named,
                "reference": figures[never],
                "ratio": {name: row["ratio"] for name, row in named.items()},
                "study": vars(study) | {"rates": list(study.rates)},
                "machine": f"{platform.machine()}, torch {torch.__version__}",
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Study))
