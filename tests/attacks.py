"""The task that the peers of tests/attack_peer.py learn, and the attacks of those who attack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.compression import CompressionInfo
from hivemind.optim.grad_averager import GradientAverager
from hivemind.proto import runtime_pb2
from hivemind.utils import MSGPackSerializer
from sklearn.datasets import load_digits
from torch import Tensor

from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.introductions import Introduction, signed
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.own_parts import RESULT_BOUND
from dalle_lib.swarm.averaging.reducing import Reducer

STEP_SAMPLES, STEPS_PER_EPOCH = 16, 3
"""Samples of a step, and steps of each peer in an epoch, about."""
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Settings of one run, the same for all its peers."""

    number: int
    card: str
    """File of the run's card."""
    honest: int
    attackers: int
    """Number of attackers, who are as honest as the others if `attack` is None."""
    attack: str | None = None
    """Name in `ATTACKS`."""
    is_stock: bool = False
    """Whether all peers are hivemind's own, without the kit."""
    worker_momentum: bool = False
    """Whether peers send the momentum of their gradients, not gradients whose average gets momentum."""
    are_strangers: bool = False
    """Whether the attackers have no access token, in a run for members."""

    @property
    def peers(self) -> int:
        """Number of all peers, strangers included."""
        return self.honest + self.attackers


class Digits:
    """Logistic regression on scikit-learn's handwritten digits; each peer has all of them."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data / digits.data.max(), dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        self.choice = torch.Generator().manual_seed(seed)
        self.model = torch.nn.Linear(self.images.shape[1], 10)

    def forget(self) -> None:
        """Set the parameters to zero."""
        for parameter in self.model.parameters():
            torch.nn.init.zeros_(parameter)

    def gradients(self, samples: int) -> list[Tensor]:
        """Return the gradients of a random minibatch, one tensor for each parameter."""
        chosen = torch.randint(len(self.images), (samples,), generator=self.choice)
        loss = torch.nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        return list(torch.autograd.grad(loss, tuple(self.model.parameters())))

    @torch.no_grad()
    def loss(self) -> float:
        """Return the mean loss over all digits."""
        return float(torch.nn.functional.cross_entropy(self.model(self.images), self.labels))


class Momentum:
    """Momentum, sent in place of gradients: honest peers' momenta differ less, so liars have less room."""

    def __init__(self) -> None:
        self.values: list[Tensor] | None = None

    def __call__(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the momentum, updated with these gradients."""
        if self.values is None:
            self.values = [torch.zeros_like(gradient) for gradient in gradients]
        for value, gradient in zip(self.values, gradients, strict=True):
            value.mul_(MOMENTUM).add_(gradient, alpha=1 - MOMENTUM)
        return self.values


class ALittle:
    """Sends values within the spread of honest ones, as far against their mean as goes unseen (arXiv:1902.06156).

    The attackers estimate mean and spread from simulated honest peers.
    """

    simulated = 12

    def __init__(self, task: Digits, scenario: Scenario) -> None:
        self.task = task
        self.sent = [Momentum() if scenario.worker_momentum else list for _ in range(self.simulated)]
        # The honest peers that lie further out than the lie must be enough to make a majority with the attackers.
        beyond = scenario.peers // 2 + 1 - scenario.attackers
        self.deviations = NormalDist().inv_cdf(1 - beyond / scenario.honest)

    def __call__(self, _own: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors to send."""
        simulated = [sent(self.task.gradients(STEP_SAMPLES * STEPS_PER_EPOCH)) for sent in self.sent]
        lies = []
        for values in map(torch.stack, zip(*simulated, strict=True)):
            mean, deviation = values.mean(0), values.std(0)
            lies.append(mean - self.deviations * deviation * mean.sign())
        return lies


class SendsOther:
    """Mix-in for an averager of gradients: sends what `replace` makes of them."""

    replace: Callable[[Sequence[Tensor]], list[Tensor]]

    def load_accumulators_into_averager_(self) -> None:
        """Load the replaced gradients as what is sent."""
        super().load_accumulators_into_averager_()
        with self.get_tensors() as gradients:
            for gradient, other in zip(gradients, self.replace(gradients), strict=True):
                gradient.copy_(other)


class Reverses:
    """Mix-in for an averager of gradients: sends lies, and takes over the average."""

    claims: Mapping[str, Any] = {}
    """Options of the all-reduce in this peer only."""

    def lie(self, gradient: Tensor) -> Tensor:
        """Return the tensor to send in place of a gradient."""
        return -gradient

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        sent = [self.lie(tensor) for tensor in tensors]
        await super()._run_allreduce_inplace_(sent, group_info, group_id, **{**kwargs, **self.claims})
        for tensor, average in zip(tensors, sent, strict=True):
            tensor.copy_(average)


class FlipsSigns(Reverses):
    """Sends the reversed gradient, 100 times as long."""

    def lie(self, gradient: Tensor) -> Tensor:
        return -100 * gradient


class SendsNoise(Reverses):
    """Sends noise, 1000 times as loud as the gradient."""

    def lie(self, gradient: Tensor) -> Tensor:
        return 1000 * gradient.square().mean().sqrt() * torch.randn_like(gradient)


class ClaimsMuch(FlipsSigns):
    """Reverses gradients, and claims to have computed more samples than all others."""

    claims: Mapping[str, Any] = {"weight": 1e12}


class NotANumber(codec.Float16):
    """Writes NaN, which the kit's codec refuses to write."""

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
    """Answers each sender with its own part reversed, as long as an average may be to be believed.

    A round's answers are what is added to the sender's part, or the average itself where uploads have 4 bits.
    """

    async def accumulate_part(self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float) -> Tensor:
        average = await super().accumulate_part(sender_index, part_index, tensor_part, weight)
        return average if sender_index == self.own else -0.9 * RESULT_BOUND * tensor_part


class LyingRunner(Runner):
    """An all-reduce of a peer that lies about the parts it reduces."""

    reducer_type = LyingReducer

    async def _answer(self, part_index: int, average: Tensor) -> runtime_pb2.Tensor:
        return await self._encode(part_index, average)  # each sender gets a lie of its own


class BlamesNobody(MemberMatchmaking):
    """Matchmaking of a liar, which would go on to take part with those who refuse its lies."""

    def note_round(self, *_args) -> None:
        """Keep no account of who fails."""


class MakesClients(BlamesNobody):
    """Matchmaking of a leader that tells each follower that no other reduces, so that it is the only reducer."""

    async def leader_assemble_group(self) -> GroupInfo:
        for request in self.current_followers.values():
            told = signed(Introduction(is_reducer=False), self._prefix, self.trust.identity)
            request.gather = MSGPackSerializer.dumps([0.0, AveragingMode.CLIENT.value, MSGPackSerializer.dumps(told)])
        return await Matchmaking.leader_assemble_group(self)  # an honest leader reads again what it passes on


LIARS = {"reversed": Reverses, "sign flip": FlipsSigns, "noise": SendsNoise, "NaN": SendsNaN, "weight": ClaimsMuch}
A_LITTLE, REDUCER, LEADER = "a little", "reducer", "leader"
ATTACKS = (*LIARS, A_LITTLE, REDUCER, LEADER)


def averager_type(scenario: Scenario, task: Digits, is_honest: bool) -> type[GradientAverager]:
    """Return the class of averager that sends a peer's gradients in a scenario."""
    attack = None if is_honest else scenario.attack
    base = GradientAverager if scenario.is_stock else RunGradientAverager
    name = GradientAverager.__name__  # hivemind's averagers call each other by the name of their class
    if attack == LEADER:
        return type(name, (base,), {"matchmaking_type": MakesClients})
    if attack in LIARS:
        base = type(name, (LIARS[attack], base), {} if scenario.is_stock else {"matchmaking_type": BlamesNobody})
    if attack == A_LITTLE:
        return type(name, (SendsOther, base), {"replace": ALittle(task, scenario)})
    return type(name, (SendsOther, base), {"replace": Momentum()}) if scenario.worker_momentum else base
