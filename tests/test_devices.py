"""One gradient on several devices: two processors stand for two GPUs here, the second with a worker of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest
import torch
from conftest import living
from small_models import random_model
from test_computing import CPU, batch_of, error_of, whole_gradient

from dalle_lib.machine import name_of
from dalle_lib.model import DALLE
from dalle_lib.swarm.peer.computing import devices as computing_devices
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.devices import Devices, cut, shares_of
from dalle_lib.swarm.peer.computing.workers import STARTS
from dalle_lib.troubles import trouble_in

PATIENCE_S = 120.0


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def devices(told) -> Iterator[Devices]:
    """This process and one worker, which is ready, two samples at a time."""
    made = Devices(Computer(random_model().float(), CPU, lambda _, why: told.append(why)), [CPU], told.append)
    made.start()
    try:
        made.first.use(replace(made.first.way, batch=2, samples_per_s=10.0))
        made.order(4, 60.0)
        until_ready(made)
        yield made
    finally:
        made.close()


def until_ready(devices: Devices) -> None:
    """Compute until the worker takes part."""
    ends_at = time.monotonic() + PATIENCE_S
    while not devices.workers[0].is_ready:
        assert time.monotonic() < ends_at, "the worker has not become ready"
        devices.gradient([batch_of(1)])
        time.sleep(0.1)


def own_rows(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the number of samples goes of each gradient that this process computes from now on."""
    rows, gradient = [], devices.first.gradient

    def counted(batches):
        rows.append(sum(map(len, batches)))
        return gradient(batches)

    monkeypatch.setattr(devices.first, "gradient", counted)
    return rows


def is_right(devices: Devices) -> None:
    """Require the gradient and the losses of two batches to be those of a single device."""
    batches, model = [batch_of(3), batch_of(8)], devices.first.model
    expected = whole_gradient(model, batch_of(11))  # their rows differ from the batches', so both are computed
    alone = Computer(model, CPU)
    losses = alone.gradient(batches)
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found = devices.gradient(batches)
    assert error_of(model, expected) < 1e-4
    assert found.losses == pytest.approx(losses.losses, rel=1e-5)
    assert found.norm == pytest.approx(losses.norm, rel=1e-4)
