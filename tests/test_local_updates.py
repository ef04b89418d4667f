"""Local updates: each peer makes its own steps, and the common step follows the average of where they led."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hivemind.utils.crypto import RSAPrivateKey
from one_hot import one_hot_card

from dalle_lib.auth import Identity
from dalle_lib.optimizer import linear_warmup_schedule
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.local_updates import LocalUpdateOptimizer
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import shared_options

STEPS, BATCH = 4, 64


@pytest.fixture
def card(mini) -> RunCard:
    return one_hot_card(mini, target_batch_size=STEPS * BATCH, strategy="local")


def ends_of_epochs(card: RunCard, epochs: int, **outer) -> list[float]:
    """Return the parameter of a single peer after each epoch; each of its own steps lowers it by 1."""
    import hivemind

    place = torch.nn.Parameter(torch.zeros(3))
    inner = torch.optim.SGD([place], lr=1.0)
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    optimizer = LocalUpdateOptimizer(
        params=[{"params": [place]}],
        inner=inner,
        inner_schedule=linear_warmup_schedule(inner, 0, 10**9),
        **outer,
        **shared_options(card, dht, Trust.of(card, identity=Identity(RSAPrivateKey()))),
    )
    places = []
    while len(places) < epochs:
        place.grad = torch.ones_like(place)
        epoch = optimizer.local_epoch
        optimizer.step(batch_size=BATCH)
        if optimizer.local_epoch > epoch:
            places.append(float(place.detach()[0]))
    optimizer.shutdown()
    dht.shutdown()
    return places


class Stepping(LocalUpdateOptimizer):
    """One without processes and other peers."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.inner_schedule = inner, linear_warmup_schedule(inner, 4, 10)
        self.state_averager = SimpleNamespace()

    def __del__(self) -> None:
        """Nothing has to end."""


def test_the_learning_rate_of_a_peers_own_steps_follows_it_back(monkeypatch):
    monkeypatch.setattr(CollaborativeOptimizer, "step", lambda *_, **__: None)
    place = torch.nn.Parameter(torch.zeros(3))
    place.grad = torch.ones_like(place)
    peer, rates = Stepping(torch.optim.SGD([place], lr=1.0)), {}
    for epoch in 0, 1, 2, 3, 7:
        peer.state_averager.local_epoch = epoch
        peer.step(batch_size=BATCH)
        rates[epoch] = peer.learning_rate
    for epoch in 2, 3, 1, 1, 7, 0:
        peer.state_averager.local_epoch = epoch
        peer.step(batch_size=BATCH)
        assert peer.learning_rate == rates[epoch]
    assert len({*rates.values()}) > 3


# An epoch lowers the parameter by 4. With Nesterov momentum m the first common step is lr (1 + m) times that, the
# second lr (1 + m + m^2) times.
OUTER = [
    {"outer_lr": 1.0, "outer_momentum": 0.0},
    {"outer_lr": 0.5, "outer_momentum": 0.0},
    {"outer_lr": 0.5, "outer_momentum": 0.5},
]
EXPECTED = [[-4.0, -8.0], [-2.0, -4.0], [-3.0, -6.5]]


def test_the_common_step_is_that_of_the_outer_optimizer(card, swarm_folder):
    card.save(swarm_folder)
    command = [sys.executable, "-W", "ignore", __file__, str(swarm_folder)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    for ends, expected in zip(json.loads(told), EXPECTED, strict=True):
        assert ends == pytest.approx(expected, abs=1e-3)


def test_a_card_refuses_what_does_not_fit(card):
    with pytest.raises(ValueError, match="cannot be delayed"):
        card.with_changes(averaging={**card.averaging.model_dump(), "delayed": "step"})
    with pytest.raises(ValueError, match="needs `members`"):
        card.with_changes(averaging={**card.averaging.model_dump(), "reducers": "vouched"})


if __name__ == "__main__":
    run = RunCard.load(Path(sys.argv[1]))
    print(json.dumps([ends_of_epochs(run, 2, **outer) for outer in OUTER]), flush=True)
    os._exit(0)
