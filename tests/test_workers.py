"""What goes wrong with the processes on a trainer's further devices, and which devices a peer computes on."""

import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import living
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import ODD, largest_error, random_model
from test_computing import CPU, RAM_RAN_OUT, batch_of, whole_gradient, with_room_for
from test_devices import is_right

from dalle_lib.machine import name_of
from dalle_lib.swarm import CannotJoin, Peer, PeerSettings
from dalle_lib.swarm.peer import workplace
from dalle_lib.swarm.peer.computing import devices as computing_devices
from dalle_lib.swarm.peer.computing import shared, worker, workers
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.devices import Devices
from dalle_lib.swarm.peer.computing.shared import Job, SharedFloats, copy_into, rows_of
from dalle_lib.swarm.peer.computing.workers import FAILURES, Worker, WorkerFailed
from dalle_lib.swarm.peer.main import _prepare
from dalle_lib.swarm.peer.workplace import devices_of
from dalle_lib.swarm.process import local
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.troubles import trouble_in

SHARED_MODEL = random_model().float()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def devices(told):
    """This process, and a worker that no test here has started yet."""
    threads = torch.get_num_threads()
    made = Devices(Computer(random_model().float(), CPU, lambda _, why: told.append(why)), [CPU], told.append)
    made.share_threads()
    yield made
    made.close()
    torch.set_num_threads(threads)


@pytest.fixture
def silent(tmp_path, monkeypatch) -> None:
    """Let workers be programs that never answer."""
    program = tmp_path / "silent"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(workers.sys, "executable", str(program))


def fail_at_once(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(workers, "PAUSE_S", 0.0)
    monkeypatch.setattr(workers.sys, "executable", program)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.one_of(st.none(), st.floats(1e-3, 1e3)), min_size=1, max_size=5),
)
def test_each_row_is_computed_once_and_no_device_gets_a_batch_without_rows(sizes, speeds):
    devices, (own, *others), memory = Devices(Computer(SHARED_MODEL, CPU)), speeds, SharedFloats(1, 1)
    devices._speed = own
    job = Job(ODD, "cpu", 1, 1.0, devices.first.way, 4, 60.0)
    for part, speed in enumerate(others, start=1):
        devices.workers.append(Worker(job, memory, part))
        devices.workers[-1].way, devices.workers[-1].speed = devices.first.way, speed
    batches = [batch_of(size) for size in sizes]
    asked, shares = devices._shares(batches)
    assert len(shares) == len(asked) + 1
    assert all(len(piece) > 0 for share in shares for piece in share)
    for number, batch in enumerate(batches):
        for field in "text", "codes", "input_codes":
            pieces = [getattr(share[number], field) for share in shares]
            assert torch.equal(torch.cat(pieces), getattr(batch, field))
    if len({*speeds}) == 1 and min(sizes) >= len(speeds):
        counts = [len(share[0]) for share in shares]
        assert len(counts) == len(speeds)
        assert max(counts) - min(counts) <= 1
    memory.close()


@pytest.mark.usefixtures("silent")
@pytest.mark.timeout(100)
def test_a_worker_that_stands_still_is_not_waited_for_long_and_hardly_by_a_peer_that_leaves(devices, told, monkeypatch):
    over: list[bool] = []
    devices.start(4, 60.0, lambda: bool(over))
    (second,) = devices.workers
    second.way = second.job.way  # as if it had become ready
    second.ask([batch_of(2000)])  # more than the line holds
    second.end()
    devices.gradient([batch_of(1)])
    for patience_s, leaves_s in (0.5, math.inf), (math.inf, 0.5):
        monkeypatch.setattr(computing_devices, "PATIENCE_S", patience_s)
        monkeypatch.setattr(workers, "LEAVES_S", leaves_s)
        second.way = second.job.way
        is_right(devices, 8)
        assert told.pop() == "cpu dropped out (does not answer), and starts again"
        assert not told
        second._starts_at = 0.0
        devices.gradient([batch_of(1)])
        over.append(True)


@pytest.mark.usefixtures("silent")
@pytest.mark.timeout(100)
def test_compiled_layers_have_time_to_compile_for_a_new_size(devices, monkeypatch):
    monkeypatch.setattr(workers, "LEAVES_S", 0.0)
    devices.start(4, 60.0)
    (second,) = devices.workers
    compiled = replace(second.job.way, is_compiled=True, batch=3)
    second._line, theirs = Pipe()
    theirs.send(compiled)
    assert second.look(), "it has got ready, by now for batches of 3"
    for way, sizes, looks in (
        (compiled, [3, 3], 1),
        (compiled, [3, 2], 3),
        (compiled, [3, 2], 1),
        (replace(compiled, is_compiled=False), [4], 1),
    ):
        second.way, looked = way, []
        second.ask(list(map(batch_of, sizes)))
        with pytest.raises(WorkerFailed, match="does not answer"):
            second.answer(0.0, lambda looked=looked: looked.append(1) or len(looked) >= 3)
        assert len(looked) == looks
    assert second.job.rows == 4, "for which it gets ready when it is started again"


def test_a_worker_that_fails_four_times_in_an_hour_is_not_used_any_more(devices, told, monkeypatch):
    fail_at_once(monkeypatch, "/bin/false")
    devices.start(4, 60.0)
    (second,) = devices.workers
    ends_at = time.monotonic() + 60
    while len(told) < FAILURES - 1 and time.monotonic() < ends_at:
        devices.gradient([batch_of(2)])
    second.failures[0] -= workers.FORGETS_S  # that was long ago
    while not second.is_given_up and time.monotonic() < ends_at:
        devices.gradient([batch_of(2)])
    assert told[-1] == "cpu dropped out (ended with exit code 1), and is not used any more"
    assert told[:-1] == ["cpu dropped out (ended with exit code 1), and starts again"] * FAILURES
    assert devices.name == name_of(CPU)
    is_right(devices, 8)
    assert second.pid is None
    batches = []
    monkeypatch.setattr(devices.first, "sent", lambda batch: batches.append(batch) or batch)
    devices.sent(batch_of(1))
    assert len(batches) == 1, "it goes to the only device ahead of its turn"


def test_a_worker_that_cannot_be_started_is_told(devices, told, monkeypatch):
    fail_at_once(monkeypatch, "/nowhere/python")
    devices.start(4, 60.0)
    is_right(devices, 8)
    assert told[0].startswith("cpu dropped out (does not start: [Errno 2] No such file")
    assert trouble_in(told[0]).title == "Device dropped out"


def test_memory_is_shared_by_a_python_that_does_not_know_how_and_else_one_device_computes(devices, told, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    here = SharedFloats(2, 3)
    there = SharedFloats(2, 3, here.file)
    here.like(1, [torch.empty(1, 2)])[0].fill_(7.0)
    assert there.values.tolist() == [[0.0, 0.0, 0.0], [7.0, 7.0, 0.0]]
    here.close()

    def missing():
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(shared, "_unnamed_file", missing)
    devices.start(4, 60.0)
    assert told == ["cpu computes alone, as no memory can be shared: [Errno 38] Function not implemented"]
    assert trouble_in(told[0]).title == "Device dropped out"
    assert (devices.count, devices.name) == (1, name_of(CPU))
    is_right(devices, 8)


def test_a_worker_takes_less_at_a_time_where_memory_runs_out_and_tells_when_it_has_none(monkeypatch, capfd):
    models, biases = [], []

    def with_little_room(config):
        models.append(random_model(config).float())
        with_room_for(models[0], 2, RAM_RAN_OUT)
        models[0].register_forward_pre_hook(lambda model, _: biases.append(model.head.bias.detach().clone()))
        return models[0]

    monkeypatch.setattr(worker, "DALLE", with_little_room)
    model, (ours, theirs) = random_model().float(), Pipe()
    with torch.no_grad():
        model.head.bias.mul_(0.5)
    parameters = list(model.parameters())
    memory = SharedFloats(2, sum(parameter.numel() for parameter in parameters))
    copy_into(memory.like(0, parameters), parameters)
    with ThreadPoolExecutor() as pool, ours:
        served = pool.submit(worker.serve, theirs, memory.file, 1)
        way = replace(Computer(model, CPU).way, batch=4)
        ours.send(Job(model.config, "cpu", torch.get_num_threads(), 1.0, way, 4, 60.0))
        assert ours.recv().batch == 2
        assert torch.equal(biases[0], model.head.bias), "a loss scale is found for the run's parameters"
        expected = whole_gradient(model, batch_of(3))
        ours.send(rows_of([batch_of(3)]))
        assert len(ours.recv().found.losses) == 1
        assert largest_error(dict(zip(expected, memory.like(1, parameters), strict=True)), expected) < 1e-4
        with_room_for(models[0], 0, RAM_RAN_OUT)
        ours.send(rows_of([batch_of(3)]))
        assert "room for one sample at a time" in ours.recv().problem
        served.result(timeout=60)
    assert "Traceback" in capfd.readouterr().err
    memory.close()


def test_a_worker_ends_with_its_trainer_though_its_line_stays_open():
    memory, (ours, theirs) = SharedFloats(2, 1), Pipe()
    words = [sys.executable, "-m", "dalle_lib.swarm.peer.computing.worker", *map(str, (theirs.fileno(), memory.file))]
    start = '"$@" 1 $$ & echo $!; read forever'
    trainer = subprocess.Popen(
        ["/bin/sh", "-c", start, "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(theirs.fileno(), memory.file),
        cwd=Path(__file__).parents[1],
    )
    theirs.close()
    with trainer, ours:
        second = psutil.Process(int(trainer.stdout.readline()))
        trainer.kill()
        assert not living([second], timeout_s=120)
    memory.close()


def test_a_peer_computes_on_all_gpus_or_on_the_devices_that_are_named(monkeypatch):
    tried = []

    def check(gpu):
        tried.append(gpu)
        return SimpleNamespace(problem="it multiplies matrices wrongly" if gpu == "cuda:0" else None)

    monkeypatch.setattr(workplace, "check_gpu", check)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for named, expected in (
        ("auto", ["cuda:1", "cuda:2", "cuda:3"]),
        ("first", ["cuda:1"]),
        ("cuda:1,cuda:3", ["cuda:1", "cuda:3"]),
        ("cpu,cpu", ["cpu", "cpu"]),
    ):
        assert devices_of(PeerSettings(run="r", device=named)) == list(map(torch.device, expected))
    assert {*tried} == {"cuda:0", "cuda:1"}, "what is tried takes memory of this process, which a worker does there"
    with pytest.raises(ValueError, match="torch finds 4 GPUs"):
        devices_of(PeerSettings(run="r", device="cuda:1,cuda:4"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert devices_of(PeerSettings(run="r")) == devices_of(PeerSettings(run="r", device="first")) == [CPU]


def test_a_device_list_names_no_gpu_twice():
    for wrong in "cpu,auto", "cuda:0,", "cuda:0 cuda:1", "first,cpu":
        with pytest.raises(ValueError, match="several with commas"):
            PeerSettings(run="r", device=wrong)
    for wrong in "cuda:1,cuda:1", "cuda,cpu,cuda:0":
        with pytest.raises(ValueError, match="each GPU once"):
            PeerSettings(run="r", device=wrong)
    assert PeerSettings(run="r", device="cpu,cpu,cuda:0,cuda:1").devices == ["cpu", "cpu", "cuda:0", "cuda:1"]


def test_each_of_several_peers_of_a_machine_computes_on_one_device(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(local, "join", lambda settings, folder: started.append(settings.device) or Peer(folder))
    swarm = local.LocalSwarm(tmp_path, "run", bootstrap=Peer(tmp_path))
    swarm.add(PeerSettings(run="", name="ada"))
    swarm.add(PeerSettings(run="", name="bob", device="cpu,cpu"))
    assert started == ["first", "cpu,cpu"]


def test_a_gpu_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(workplace, "check_gpu", lambda _: SimpleNamespace(problem="no NVIDIA driver.\nInstall one"))
    peer = PeerSettings(run="emoji-mini", device="cuda,cpu")
    with pytest.raises(CannotJoin, match=r"^cuda does not compute here: no NVIDIA driver\. Install one[^\n]*$"):
        _prepare(tmp_path, peer, None, EventLog(tmp_path))
