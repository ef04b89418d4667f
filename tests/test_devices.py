"""One gradient on several devices: processors stand for GPUs here, each further one with a worker of its own."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
import torch
from conftest import living
from small_models import ODD, random_model
from test_computing import CPU, RAM_RAN_OUT, batch_of, error_of

from dalle_lib.machine import name_of
from dalle_lib.swarm.peer.computing import devices as computing_devices
from dalle_lib.swarm.peer.computing import workers
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.devices import Devices
from dalle_lib.swarm.peer.computing.shared import Job, SharedFloats
from dalle_lib.swarm.process.killed_for_memory import WORKER_KILLED
from dalle_lib.troubles import trouble_in

PATIENCE_S = 120.0
TOLD: list[str] = []
"""What the devices have told."""


@pytest.fixture(scope="module")
def devices() -> Iterator[Devices]:
    """This process and two workers, which are ready, two samples at a time."""
    threads = torch.get_num_threads()
    made = Devices(Computer(random_model().float(), CPU, lambda _, why: TOLD.append(why)), [CPU, CPU], TOLD.append)
    made.share_threads()
    made.first.use(replace(made.first.way, batch=2, samples_per_s=10.0))
    made.start(4, 60.0)
    try:
        until(lambda: all(worker.way is not None for worker in made.workers), made)
        yield made
    finally:
        made.close()
        torch.set_num_threads(threads)


def until(is_over: Callable[[], bool], devices: Devices) -> None:
    """Compute until something is so."""
    ends_at = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < ends_at, TOLD
        devices.gradient([batch_of(2)])
        time.sleep(1.0)


def own_rows(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the number of samples goes of each gradient that this process computes from now on."""
    rows, gradient = [], devices.first.gradient

    def counted(batches):
        rows.append(sum(map(len, batches)))
        return gradient(batches)

    monkeypatch.setattr(devices.first, "gradient", counted)
    return rows


def is_right(devices: Devices, *sizes: int) -> None:
    """Require the gradient and the losses of batches of these sizes to be those of a single device."""
    batches, model = [batch_of(size) for size in sizes], devices.first.model
    alone = Computer(model, CPU)
    alone.use(replace(alone.way, batch=1024))
    losses = alone.gradient(batches)
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found = devices.gradient(batches)
    assert error_of(model, expected) < 1e-3
    assert found.losses == pytest.approx(losses.losses, rel=1e-5)
    assert found.norm == pytest.approx(losses.norm, rel=1e-4)


def test_the_gradient_of_three_devices_is_that_of_one_also_after_an_update(devices, monkeypatch):
    assert devices.name == f"3 x {name_of(CPU)}"[:60]
    assert devices.way.batch == 6
    assert TOLD == ["cpu computes a share", ""] * 2
    scores = [Path(f"/proc/{worker.pid}/oom_score_adj").read_text() for worker in devices.workers]
    assert scores == ["1000\n"] * 2, "where memory runs out, a worker ends, and this process goes on"
    rows = own_rows(devices, monkeypatch)
    is_right(devices, 3, 8)
    assert rows == [1 + 3]
    with torch.no_grad():
        for parameter in devices.first.model.parameters():
            parameter.mul_(0.7)
    for size, own in (9, 3), (2, 1), (1, 1):
        is_right(devices, size)
        assert rows[-1] == own
    for worker, speed in zip(devices.workers, (30.0, 0.1), strict=True):
        monkeypatch.setattr(worker, "speed", speed)
    is_right(devices, 16, 8)
    assert rows[-1] == 4 + 2, "the first two share all rows: so slow a third one only holds them up"


def test_infinity_of_one_device_is_told_with_its_loss_scale_and_changes_nothing_else(devices, monkeypatch):
    second, answer = devices.workers[0], devices.workers[0].answer

    def overflowed(*given):
        answered = answer(*given)
        devices._memory.like(second.part, devices.first.parameters)[3].fill_(math.inf)
        return replace(answered, found=replace(answered.found, norm=math.inf, scale=65536.0))

    with monkeypatch.context() as patched:
        patched.setattr(second, "answer", overflowed)
        found = devices.gradient([batch_of(8)])
    assert not found.is_finite
    assert found.is_overflow
    is_right(devices, 8)


def test_memory_that_runs_out_while_gradients_are_added_costs_one_step(devices, monkeypatch):
    def run_out(*_):
        raise RAM_RAN_OUT

    batch = devices.first.way.batch
    with monkeypatch.context() as patched:
        patched.setattr(devices, "_sum", run_out)
        is_right(devices, 8)
    assert "memory ran out" in TOLD[-1]
    assert devices.first.way.batch == batch // 2
    is_right(devices, 8)


@pytest.mark.parametrize(("device", "batch"), [("cpu", 4), ("cuda:1", 8)])
def test_a_worker_that_is_killed_for_ram_computes_less_at_a_time_only_where_samples_take_it(device, batch):
    way = replace(Computer(random_model().float(), CPU).way, batch=8)
    worker = workers.Worker(Job(ODD, device, 1, 1.0, way, 8, 60.0), SharedFloats(1, 1), 1)
    worker._line, theirs = Pipe()
    worker._process = subprocess.Popen(["/bin/sleep", "600"])
    os.kill(worker.pid, signal.SIGKILL)
    theirs.close()
    with pytest.raises(workers.WorkerFailed, match="exit code -9"):
        worker.answer(math.inf, lambda: False)
    worker.fail()
    assert worker.job.way.batch == batch


def test_devices_that_drop_out_cost_one_step_and_nothing_of_theirs_is_taken_for_later_rows(devices, monkeypatch):
    """The last test here: it ends both workers."""
    monkeypatch.setattr(computing_devices, "PATIENCE_S", 0.5)
    monkeypatch.setattr(workers, "PAUSE_S", math.inf)  # however long the steps here take
    second, _ = devices.workers
    ended, stopped = (psutil.Process(worker.pid) for worker in devices.workers)
    stopped.suspend()
    ended.suspend()

    def kill_and_answer(*given):
        os.kill(ended.pid, signal.SIGKILL)
        assert not living([ended])  # it is waited for only 0.5 s, in which a busy machine may not end it
        return answer(*given)

    answer = second.answer
    with monkeypatch.context() as patched:
        patched.setattr(second, "answer", kill_and_answer)
        is_right(devices, 3, 8)
    assert TOLD[-2:] == [
        "cpu dropped out (ended with exit code -9), and starts again",
        "cpu dropped out (does not answer), and starts again",
    ]
    assert all(trouble_in(line).title == "Device dropped out" for line in TOLD[-2:])
    assert [WORKER_KILLED in line for line in TOLD[-2:]] == [True, False]
    assert not living([ended, stopped])
    is_right(devices, 8)
    assert second.pid is None, "it starts after a while"
    assert second.job.way.batch == 1, "its memory may have been too small for two"

    monkeypatch.setattr(computing_devices, "PATIENCE_S", PATIENCE_S)
    second._starts_at = 0.0
    until(lambda: second.way is not None, devices)
    rows = own_rows(devices, monkeypatch)
    is_right(devices, 8)
    assert rows == [4]

    def fail(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(devices.first, "gradient", fail)
        with pytest.raises(KeyboardInterrupt):
            devices.gradient([batch_of(4)])
    second._starts_at = math.inf
    is_right(devices, 8)
    assert rows[-1] == 8
    assert len(second.failures) == 1, "it did not fail"
