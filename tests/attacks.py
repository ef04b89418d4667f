"""What the peers of tests/attack_peer.py learn, and what the attackers among them do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from hivemind.compression import CompressionInfo
from hivemind.optim.grad_averager import GradientAverager
from hivemind.proto import runtime_pb2
from sklearn.datasets import load_digits
from torch import Tensor

from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.all_reduce import RESULT_BOUND, Runner
from dalle_lib.swarm.averaging.averagers import RunGradientAverager
from dalle_lib.swarm.averaging.reducing import Reducer

STEP_SAMPLES, STEPS_PER_EPOCH = 16, 3
"""Of each peer, about."""
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What all peers of one run do."""

    number: int
    card: str
    """Where the run's card is."""
    honest: int
    attackers: int
    """They are as honest as the others if `attack` is None."""
    attack: str | None = None
    """One of `ATTACKS`."""
    is_stock: bool = False
    """Whether all peers are hivemind's own, with nothing of ours."""
    worker_momentum: bool = False
    """Whether peers send the momentum of their gradients, or gradients whose average gets momentum."""

    are_strangers: bool = False
    """Whether the attackers have no token, in a run for members."""

    @property
    def peers(self) -> int:
        """How many there are, strangers too."""
        return self.honest + self.attackers


class Digits:
    """Logistic regression on scikit-learn's handwritten digits, all of which each peer has."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data / digits.data.max(), dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        self.choice = torch.Generator().manual_seed(seed)
        self.model = torch.nn.Linear(self.images.shape[1], 10)

    def forget(self) -> None:
        """Begin anew."""
        for parameter in self.model.parameters():
            torch.nn.init.zeros_(parameter)

    def gradients(self, samples: int) -> list[Tensor]:
        """Return the gradients of a minibatch drawn at random."""
        chosen = torch.randint(len(self.images), (samples,), generator=self.choice)
        loss = torch.nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        return list(torch.autograd.grad(loss, tuple(self.model.parameters())))

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss over all digits."""
        return float(torch.nn.functional.cross_entropy(self.model(self.images), self.labels))


class Momentum:
    """What a peer sends in place of its gradients: they agree more than gradients do, so liars have less room."""

    def __init__(self) -> None:
        self.values: list[Tensor] | None = None

    def __call__(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the momentum with these gradients in it."""
        if self.values is None:
            self.values = [torch.zeros_like(gradient) for gradient in gradients]
        for value, gradient in zip(self.values, gradients, strict=True):
            value.mul_(MOMENTUM).add_(gradient, alpha=1 - MOMENTUM)
        return self.values


class ALittle:
    """Sends what an honest peer might, as far against the mean of honest peers as goes unseen (arXiv:1902.06156).

    What honest peers send the attackers know from peers that they imagine.
    """

    imagined = 12

    def __init__(self, task: Digits, scenario: Scenario) -> None:
        self.task = task
        self.sent = [Momentum() if scenario.worker_momentum else list for _ in range(self.imagined)]
        # So many honest peers lie beyond that the attackers, with them, are more than half of all.
        beyond = scenario.peers // 2 + 1 - scenario.attackers
        self.deviations = NormalDist().inv_cdf(1 - beyond / scenario.honest)

    def __call__(self, _own: Sequence[Tensor]) -> list[Tensor]:
        """Return what to send."""
        imagined = [sent(self.task.gradients(STEP_SAMPLES * STEPS_PER_EPOCH)) for sent in self.sent]
        lies = []
        for values in map(torch.stack, zip(*imagined, strict=True)):
            mean, deviation = values.mean(0), values.std(0)
            lies.append(mean - self.deviations * deviation * mean.sign())
        return lies


class SendsOther:
    """Put before an averager of gradients: sends what `replace` makes of them."""

    replace: Callable[[Sequence[Tensor]], list[Tensor]]

    def load_accumulators_into_averager_(self) -> None:
        """Put something else where hivemind puts the gradients."""
        super().load_accumulators_into_averager_()
        with self.get_tensors() as gradients:
            for gradient, other in zip(gradients, self.replace(gradients), strict=True):
                gradient.copy_(other)


class Reverses:
    """Put before an averager of gradients: lies to the others, and takes over what they find out."""

    claims: Mapping[str, Any] = {}
    """Options of the all-reduce, as its own process alone has them."""

    def lie(self, gradient: Tensor) -> Tensor:
        """Return what is sent in place of a gradient."""
        return -gradient

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        sent = [self.lie(tensor) for tensor in tensors]
        await super()._run_allreduce_inplace_(sent, group_info, group_id, **{**kwargs, **self.claims})
        for tensor, average in zip(tensors, sent, strict=True):
            tensor.copy_(average)


class FlipsSigns(Reverses):
    """Sends the reversed gradient, far too long."""

    def lie(self, gradient: Tensor) -> Tensor:
        return -100 * gradient


class SendsNoise(Reverses):
    """Sends noise, far too loud."""

    def lie(self, gradient: Tensor) -> Tensor:
        return 1000 * gradient.square().mean().sqrt() * torch.randn_like(gradient)


class ClaimsMuch(FlipsSigns):
    """Claims to have computed more than all others."""

    claims: Mapping[str, Any] = {"weight": 1e12}


class NotANumber(codec.Float16):
    """Writes NaN, which ours does not."""

    def compress(self, tensor: Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        message = super().compress(tensor, info)
        message.buffer = np.full(tensor.numel(), np.nan, np.float16).tobytes()
        return message


class SendsNaN(Reverses):
    """Sends NaN in place of each value."""

    claims: Mapping[str, Any] = {"compression": NotANumber()}

    def lie(self, gradient: Tensor) -> Tensor:
        return gradient.clone()


class LyingReducer(Reducer):
    """Tells each sender that the average is its own part reversed, and as long as is believed."""

    async def accumulate_part(self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float) -> Tensor:
        average = await super().accumulate_part(sender_index, part_index, tensor_part, weight)
        return average if sender_index == self.own else -0.9 * RESULT_BOUND * tensor_part


class LyingRunner(Runner):
    """An all-reduce whose own parts are reduced by a liar."""

    reducer_type = LyingReducer


LIARS = {"reversed": Reverses, "sign flip": FlipsSigns, "noise": SendsNoise, "NaN": SendsNaN, "weight": ClaimsMuch}
A_LITTLE, REDUCER = "a little", "reducer"
ATTACKS = (*LIARS, A_LITTLE, REDUCER)


def averager_type(scenario: Scenario, task: Digits, is_honest: bool) -> type[GradientAverager]:
    """Return what sends a peer's gradients."""
    attack = None if is_honest else scenario.attack
    base = GradientAverager if scenario.is_stock else RunGradientAverager
    name = GradientAverager.__name__  # by which hivemind's averagers call each other
    if attack in LIARS:
        base = type(name, (LIARS[attack], base), {})
    if attack == A_LITTLE:
        return type(name, (SendsOther, base), {"replace": ALittle(task, scenario)})
    return type(name, (SendsOther, base), {"replace": Momentum()}) if scenario.worker_momentum else base
