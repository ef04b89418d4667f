"""How should peers average their parameters: all of them every few epochs, a part in each, and in how many bits?

Simulates four peers in one process, with the codec and the optimizer of a run and a small model that learns the
embedded young run's data from random weights. In each epoch all get the average gradient as reducers answer it: the
average minus this peer's gradient, in the sender's compression, to which the peer adds its own exact gradient, so that
each has an error of its own; or the same bytes for all. Then they average parameters in one of these ways:

- never;
- all of them every 5, 10 or 20 epochs, or one part of 5, 10 or 20 in each epoch, in 8 or in 16 bits a value.

It does so in three lives: nothing fails; in some epochs the peers find each other in two halves, of which nobody
knows, as every round is whole; and in some epochs one peer misses the round, applies its own gradient and knows it, so
that all average all of their parameters after the next update, with weight zero for that peer; in 8 bits, unless they
average all in 16 otherwise too.

The gradients of all are computed once, at the parameters of a peer that averages without any codec: what is measured is
how the peers' parameters come to differ, not how these differences change gradients. Prints JSON: `spread`, the peers'
distance from their average over the norm of that average, as the mean over ends of epochs after the first quarter
(figure: all every 20 epochs; reference: every 5; their ratio); and for each life and way also the largest spread, that
at the end, the bits that a peer sends for each parameter and epoch, and the mean loss of the four peers on fresh
samples, to be compared within a life. Takes about ten minutes on one core.
"""

import json
import platform
import random
import statistics
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
import tyro
from failed_round import Peer, embedded_run
from failed_round import Study as Small
from torch import Tensor
from tqdm import tqdm

from dalle_lib.compression import dequantize, quantize
from dalle_lib.optimizer import LAMB8bit, parameter_groups

PEERS = 4


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to simulate."""

    epochs: int = 40
    batch_size: int = 8
    """Samples of each peer in each epoch."""
    rate: float = 0.1
    """How often a round splits, or a peer misses it, in the lives where that happens."""
    eight_bit_from: int = 2**13
    """Elements from which a tensor travels in 8 bits: the small model's tensors are smaller than a run's."""
    lrs: tuple[float, ...] = (1e-2, 2.5e-3)
    """Learning rates after the warm-up, from which they fall to 0: the embedded young run's, and the paper's."""
    seed: int = 0


class Way(NamedTuple):
    """One way to average parameters; with the default, never."""

    bits: int = 8
    """Bits a value of large tensors; the others travel in 16."""
    every: int | None = None
    """Epochs between two rounds."""
    parts: int = 1
    """Parts of the parameters that take turns."""

    def __str__(self) -> str:
        if self.every is None:
            return "never"
        what = f"1/{self.parts} in each epoch" if self.parts > 1 else f"all every {self.every} epochs"
        return f"{what}, {self.bits} bits"


class Life(NamedTuple):
    """What happens to rounds of gradients."""

    name: str
    splits: bool = False
    misses: bool = False
    same: bool = False
    """Whether the answer is the same bytes for all."""


TODAY, RARE = Way(8, 5), Way(8, 20)
"""The ways of which the figure and its reference are."""
WAYS = (
    *(Way(), TODAY, Way(8, 1, 5), Way(8, 1, 10), RARE, Way(8, 1, 20)),
    *(Way(16, 10), Way(16, 1, 10), Way(16, 1, 20)),
)
LIVES = (
    Life("nothing fails, own errors"),
    Life("rounds split, same answers", splits=True, same=True),
    Life("a peer misses rounds, same answers", misses=True, same=True),
)


class Exchange:
    """What a round does to tensors, with the bits that it takes."""

    def __init__(self, eight_bit_from: int) -> None:
        self.eight_bit_from = eight_bit_from

    def coded(self, values: Tensor, bits: int, size: int) -> Tensor:
        """Return what arrives of values that belong to a tensor of `size` elements."""
        if bits == 16 or size < self.eight_bit_from:
            return values.half().float()
        levels, codebook = quantize(values.reshape(-1))
        return dequantize(levels.numpy(), torch.from_numpy(codebook)).view(values.shape)

    def averaged(self, tensors: list[Tensor], weights: list[float], bits: int, size: int, same: bool) -> list[Tensor]:
        """Return what each peer has after a round, given what each brings."""
        sent = [self.coded(tensor, bits, size) for tensor in tensors]
        average = sum(w * tensor for w, tensor in zip(weights, sent, strict=True)) / sum(weights)
        if same:
            return [self.coded(average, bits, size)] * len(tensors)
        return [own + self.coded(average - its, bits, size) for own, its in zip(tensors, sent, strict=True)]


class Rounds:
    """The rounds of gradients of one life."""

    def __init__(self, life: Life, study: Study) -> None:
        self.life, self.exchange, self.rate = life, Exchange(study.eight_bit_from), study.rate
        self.luck = random.Random(study.seed)

    def next(self, gradients: list[list[Tensor]]) -> tuple[list[list[Tensor]], int | None]:
        """Return the gradient that each peer applies in an epoch, and who has missed the round, if anybody."""
        happens, unlucky = self.luck.random() < self.rate, self.luck.randrange(PEERS)
        groups, late = [list(range(PEERS))], None
        if happens and self.life.splits:
            groups = [[0, 1], [2, 3]]
        elif happens and self.life.misses:
            groups, late = [[peer for peer in range(PEERS) if peer != unlucky], [unlucky]], unlucky
        applied = [list(of_peer) for of_peer in gradients]
        for group in groups:
            for place, of_peers in enumerate(zip(*(gradients[peer] for peer in group), strict=True)):
                weights, size = [1.0] * len(group), of_peers[0].numel()
                averaged = self.exchange.averaged(list(of_peers), weights, 8, size, self.life.same)
                for peer, average in zip(group if len(group) > 1 else (), averaged, strict=False):
                    applied[peer][place] = average
        return applied, late


class Swarm:
    """Four peers that average parameters in one way."""

    def __init__(self, way: Way, peer: Peer, study: Study) -> None:
        self.way, self.exchange, self.schedule = way, Exchange(study.eight_bit_from), peer.schedule
        models = [deepcopy(peer.model) for _ in range(PEERS)]
        self.peers = [(model, optimizer_of(model)) for model in models]
        self.late, self.bits, self.spreads = None, 0.0, []

    def parameters(self, peer: int) -> list[Tensor]:
        """Return one peer's parameters."""
        return list(self.peers[peer][0].parameters())

    def update(self, epoch: int, gradients: list[list[Tensor]], late: int | None) -> None:
        """Make the update of an epoch, and average parameters if that is due; who was late has no weight then."""
        was_late, self.late = self.late, late
        for peer, (_model, optimizer) in enumerate(self.peers):
            for options in optimizer.param_groups:
                options["lr"] = self.schedule.get_last_lr()[0]
            for parameter, gradient in zip(self.parameters(peer), gradients[peer], strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        if was_late is not None:
            bits = self.way.bits if self.way.parts == 1 else 8
            self._average_parameters(0, 1, [float(peer != was_late) for peer in range(PEERS)], bits)
        elif self.way.every is not None and (epoch + 1) % self.way.every == 0:
            self._average_parameters(epoch % self.way.parts, self.way.parts, [1.0] * PEERS, self.way.bits)
        self.spreads.append(self.spread())

    @torch.no_grad()
    def _average_parameters(self, part: int, parts: int, weights: list[float], bits: int) -> None:
        for slices in zip(*(slices_of(self.parameters(peer), part, parts) for peer in range(PEERS)), strict=True):
            size = slices[0][1]
            values = [values for values, _size in slices]
            after = self.exchange.averaged(values, weights, bits, size, same=False)
            for own, its in zip(values, after, strict=True):
                own.copy_(its)
            width = bits if size >= self.exchange.eight_bit_from else 16
            self.bits += width * values[0].numel()

    def summary(self, fresh: list) -> dict[str, float]:
        """Return how far the peers came apart, what that took, and their mean loss on fresh batches."""
        later = self.spreads[len(self.spreads) // 4 :]
        return {
            "spread": statistics.mean(later),
            "largest": max(later),
            "end": later[-1],
            "bits": self.bits / sum(p.numel() for p in self.parameters(0)) / len(self.spreads),
            "loss": statistics.mean(loss_of(model, fresh) for model, _optimizer in self.peers),
        }

    @torch.no_grad()
    def spread(self) -> float:
        """Return the peers' distance from their average, root mean square, over the norm of the average."""
        flat = torch.stack([torch.cat([p.flatten() for p in self.parameters(peer)]) for peer in range(PEERS)])
        average = flat.mean(0)
        return float((flat - average).norm(dim=1).square().mean().sqrt() / average.norm())


def optimizer_of(model: torch.nn.Module) -> LAMB8bit:
    """Return the card's optimizer of a model."""
    lamb = embedded_run().optimizer
    groups = parameter_groups(model, lamb.weight_decay)
    return LAMB8bit(groups, lr=lamb.lr, betas=lamb.betas, eps=lamb.eps, bits=lamb.bits)


def slices_of(tensors: list[Tensor], part: int, parts: int) -> Iterator[tuple[Tensor, int]]:
    """Iterate over the views that a part of all values, in their order, has of tensors, with the tensors' sizes."""
    total, begin = sum(tensor.numel() for tensor in tensors), 0
    first, last = part * total // parts, (part + 1) * total // parts
    for tensor in tensors:
        size = tensor.numel()
        if (view := tensor.view(-1)[max(0, first - begin) : max(0, last - begin)]).numel():
            yield view, size
        begin += size


@torch.no_grad()
def loss_of(model: torch.nn.Module, batches: list) -> float:
    """Return the mean loss over some batches."""
    return statistics.mean(float(model(batch.text, batch.codes, batch.input_codes).loss) for batch in batches)


def simulate(study: Study, lr: float) -> dict:
    """Return what became of each way in each life, at a learning rate of `lr` after the warm-up."""
    peer = Peer(Small(epochs=study.epochs, batch_size=study.batch_size), study.seed, 0)
    peer.schedule.base_lrs = [lr] * len(peer.schedule.base_lrs)
    swarms = {Rounds(life, study): [Swarm(way, peer, study) for way in WAYS] for life in LIVES}
    for epoch in tqdm(range(study.epochs), desc=f"lr {lr:g}"):
        gradients = []
        for _ in range(PEERS):
            peer.compute()
            samples = peer.samples
            gradients.append([gradient / samples for gradient in peer.take_gradients()])
        for rounds, of_life in swarms.items():
            applied, late = rounds.next(gradients)
            for swarm in of_life:
                swarm.update(epoch, applied, late)
        peer.apply([sum(of_peers) / PEERS for of_peers in zip(*gradients, strict=True)])
        peer.schedule.step()
    fresh = [next(peer.batches) for _ in range(8)]
    return {
        rounds.life.name: {str(swarm.way): swarm.summary(fresh) for swarm in of_life}
        for rounds, of_life in swarms.items()
    }


def main(study: Study) -> None:
    """Simulate all lives and ways, and print how far the peers came apart."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = {f"lr {lr:g}": simulate(study, lr) for lr in study.lrs}
    spread = {lr: {way: of["spread"] for way, of in lives[LIVES[0].name].items()} for lr, lives in found.items()}
    figure, reference = ({lr: ways[str(way)] for lr, ways in spread.items()} for way in (RARE, TODAY))
    report = {
        "figure": figure,
        "reference": reference,
        "ratio": {lr: figure[lr] / reference[lr] for lr in figure},
        "ways": found,
        "study": vars(study) | {"lrs": list(study.lrs)},
        "machine": f"{platform.machine()}, torch {torch.__version__}",
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Study))
