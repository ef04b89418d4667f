"""One gradient on several devices: two processors stand for two GPUs here, the second with a worker of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import living
from small_models import largest_error, random_model
from test_computing import CPU, RAM_RAN_OUT, batch_of, error_of, whole_gradient, with_room_for

from dalle_lib.machine import name_of
from dalle_lib.swarm import CannotJoin, PeerSettings
from dalle_lib.swarm.peer import workplace
from dalle_lib.swarm.peer.computing import devices as computing_devices
from dalle_lib.swarm.peer.computing import worker
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.devices import Devices, cut, shares_of
from dalle_lib.swarm.peer.computing.shared import Job, Order, SharedFloats, copy_into, rows_of
from dalle_lib.swarm.peer.computing.workers import STARTS
from dalle_lib.swarm.peer.main import _prepare
from dalle_lib.swarm.peer.workplace import devices_of
from dalle_lib.swarm.process.events import EventLog
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


def until(is_over: Callable[[], bool], devices: Devices) -> None:
    """Compute until something is so."""
    ends_at = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < ends_at
        devices.gradient([batch_of(2)])
        time.sleep(0.1)


def until_ready(devices: Devices) -> None:
    """Compute until the worker takes part."""
    until(lambda: devices.workers[0].is_ready, devices)


def own_rows(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the number of samples goes of each gradient that this process computes from now on."""
    rows, gradient = [], devices.first.gradient

    def counted(batches):
        rows.append(sum(map(len, batches)))
        return gradient(batches)

    monkeypatch.setattr(devices.first, "gradient", counted)
    return rows


def is_right(devices: Devices, *sizes: int) -> None:
    """Require the gradient and the losses of batches of these sizes, or 3 and 8, to be those of a single device."""
    batches, model = [batch_of(size) for size in sizes or (3, 8)], devices.first.model
    alone = Computer(model, CPU)
    losses = alone.gradient(batches)
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found = devices.gradient(batches)
    assert error_of(model, expected) < 1e-3
    assert found.losses == pytest.approx(losses.losses, rel=1e-5)
    assert found.norm == pytest.approx(losses.norm, rel=1e-4)


def test_a_peer_computes_on_all_gpus_or_on_the_devices_that_are_named(monkeypatch):
    monkeypatch.setattr(workplace, "check_gpu", lambda _: SimpleNamespace(problem=None))
    monkeypatch.setattr(workplace, "working_gpus", lambda: ["cuda:0", "cuda:1"])
    for named, expected in ("auto", ["cuda:0", "cuda:1"]), ("cuda:1", ["cuda:1"]), ("cpu,cpu", ["cpu", "cpu"]):
        assert devices_of(PeerSettings(run="r", device=named)) == list(map(torch.device, expected))
    monkeypatch.setattr(workplace, "working_gpus", list)
    assert devices_of(PeerSettings(run="r")) == [CPU]
    for wrong in "cpu,auto", "cuda:0,", "cuda:0 cuda:1":
        with pytest.raises(ValueError, match="several with commas"):
            PeerSettings(run="r", device=wrong)


def test_a_gpu_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    missing = SimpleNamespace(problem="no NVIDIA driver.\nInstall one")
    monkeypatch.setattr(workplace, "check_gpu", lambda _: missing)
    settings = PeerSettings(run="emoji-mini", device="cpu,cuda")
    with pytest.raises(CannotJoin, match=r"^cuda does not compute here: no NVIDIA driver\. Install one[^\n]*$"):
        _prepare(tmp_path, settings, None, EventLog(tmp_path))


def test_rows_are_shared_by_speed_and_each_is_computed_once():
    assert shares_of(8, [1.0, 1.0]) == [4, 4]
    assert shares_of(64, [10.0, 30.0]) == shares_of(64, [10.0, 29.0]) == [16, 48], "few sizes, as each compiles anew"
    assert shares_of(64, [10.0, 11.0]) == [32, 32]
    assert shares_of(9, [None, 2.0, 1.0]) == [3, 4, 2]
    assert shares_of(1, [1.0, 9.0]) == [1, 0]
    assert shares_of(2, [None, None, None]) == [1, 0, 1]
    batches = [batch_of(3), batch_of(8)]
    for counts in [5, 6], [3, 8], [1, 0, 10], [11, 0]:
        shares = cut(batches, counts)
        assert [len(share) for share in shares] == counts
        pieces = [piece for share in shares for piece in share.pieces]
        for number, batch in enumerate(batches):
            text = torch.cat([piece.text for of, piece in pieces if of == number])
            codes = torch.cat([piece.codes for of, piece in pieces if of == number])
            shown = torch.cat([piece.input_codes for of, piece in pieces if of == number])
            assert torch.equal(text, batch.text)
            assert torch.equal(codes, batch.codes)
            assert torch.equal(shown, batch.input_codes)


def test_the_gradient_of_two_devices_is_that_of_one_also_after_an_update(devices, told, monkeypatch):
    assert devices.name == f"2 x {name_of(CPU)}"[:60]
    assert devices.way.batch == 4
    assert any("cpu computes a share" in line for line in told)
    is_right(devices)
    with torch.no_grad():
        for parameter in devices.first.model.parameters():
            parameter.mul_(0.7)
    is_right(devices)
    rows = own_rows(devices, monkeypatch)
    devices.workers[0].rate = devices.own_rate = 1.0
    devices.gradient([batch_of(8)])
    assert rows == [4], "the worker computed its half"
    assert devices.workers[0].starts == 1


def test_a_worker_that_is_killed_costs_its_share_of_the_time_and_is_started_again(devices, told, monkeypatch):
    (second,), killed = devices.workers, devices.workers[0].pid
    answer = second.answer

    def kill_and_answer(ends_at):
        os.kill(killed, signal.SIGKILL)
        return answer(ends_at)

    with monkeypatch.context() as patched:
        patched.setattr(second, "ask", lambda _: None)  # so that no answer was quicker
        patched.setattr(second, "answer", kill_and_answer)
        is_right(devices)
    assert told[-1] == "cpu ended with exit code -9: cpu computed its share, and it starts again"
    assert trouble_in(told[-1]).title == "Device dropped out"
    assert not psutil.pid_exists(killed)
    until_ready(devices)
    is_right(devices)


def test_a_worker_that_stands_still_is_given_up_after_a_while_also_with_more_rows_than_a_pipe_holds(
    devices, told, monkeypatch
):
    monkeypatch.setattr(computing_devices, "PATIENCE_S", 1.0)
    monkeypatch.setattr(computing_devices, "TIMES", 0.0)
    devices.first.use(replace(devices.first.way, batch=512))
    devices.workers[0].rate = devices.own_rate = 1.0
    os.kill(devices.workers[0].pid, signal.SIGSTOP)
    is_right(devices, 1200)
    assert told[-1] == "cpu does not answer: cpu computed its share, and it starts again"


def test_a_worker_without_memory_costs_its_share_of_the_time(devices, told):
    devices.first.use(replace(devices.first.way, batch=512))
    devices.workers[0].rate = devices.own_rate = 1.0
    second = psutil.Process(devices.workers[0].pid)
    second.rlimit(psutil.RLIMIT_AS, (second.memory_info().vms, psutil.RLIM_INFINITY))
    is_right(devices, 1200)
    assert "memory" in told[-1].lower(), told[-1]


def test_a_worker_that_fails_again_and_again_is_not_used_any_more(devices, told):
    (second,) = devices.workers
    for start in range(1, STARTS + 1):
        assert second.starts == start
        os.kill(second.pid, signal.SIGKILL)
        until(lambda start=start: second.starts > start or second.is_given_up, devices)
    assert "cpu ended with exit code -9" in told[-1]
    assert told[-1].endswith("is not used any more")
    assert devices.name == name_of(CPU)
    is_right(devices)


def test_a_worker_takes_less_at_a_time_where_memory_runs_out_and_tells_when_it_has_none(monkeypatch):
    models = []

    def with_little_room(config):
        models.append(random_model(config).float())
        with_room_for(models[0], 2, RAM_RAN_OUT)
        return models[0]

    monkeypatch.setattr(worker, "DALLE", with_little_room)
    model, (ours, theirs) = random_model().float(), Pipe()
    count = sum(parameter.numel() for parameter in model.parameters())
    given, gradient = SharedFloats(count), SharedFloats(count)
    copy_into(given.like(list(model.parameters())), list(model.parameters()))
    with ThreadPoolExecutor() as pool, ours:
        served = pool.submit(worker.serve, theirs, given.file, gradient.file)
        ours.send(Job(model.config, "cpu", torch.get_num_threads(), 1.0))
        ours.send(Order(replace(Computer(model, CPU).way, batch=4), 4, 60.0))
        assert ours.recv().way.batch == 2
        expected = whole_gradient(model, batch_of(3))
        ours.send(rows_of([batch_of(3)]))
        answer = ours.recv()
        found = gradient.like(list(model.parameters()))
        assert largest_error(dict(zip(expected, found, strict=True)), expected) < 1e-4
        assert len(answer.losses) == 1
        with_room_for(models[0], 0, RAM_RAN_OUT)
        ours.send(rows_of([batch_of(3)]))
        assert "room for one sample at a time" in ours.recv().problem
        served.result(timeout=60)


def test_a_gradient_that_is_not_finite_on_one_device_is_not_handed_on(devices):
    with torch.no_grad():
        devices.first.model.head.bias.fill_(float("nan"))
    assert not devices.gradient([batch_of(8)]).is_finite


def test_a_worker_ends_with_a_trainer_that_is_killed():
    code = (
        "import torch; from dalle_lib.model import DALLE; from small_models import ODD;"
        "from dalle_lib.swarm.peer.computing.computer import Computer;"
        "from dalle_lib.swarm.peer.computing.devices import Devices;"
        "cpu = torch.device('cpu'); devices = Devices(Computer(DALLE(ODD), cpu), [cpu]); devices.start();"
        "print(devices.workers[0].pid, flush=True); import time; time.sleep(600)"
    )
    words, here = [sys.executable, "-c", code], Path(__file__).parent
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=here) as trainer:
        second = psutil.Process(int(trainer.stdout.readline()))
        trainer.kill()
    assert not living([second])
