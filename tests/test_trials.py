"""Trials at a peer's start, the sizes of its batches, and its threads."""

import os
from dataclasses import replace

import psutil
import pytest
import torch
from small_models import ODD, random_model
from test_computing import CPU, RAM_RAN_OUT, batch_of, with_room_for

from dalle_lib.model import ModelConfig
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.computing import devices as computing_devices
from dalle_lib.swarm.peer.computing import trials
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.devices import Devices, rows_each
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.peer.computing.room import fits, forecast
from dalle_lib.swarm.peer.computing.shared import Job, SharedFloats
from dalle_lib.swarm.peer.computing.trials import Trials, compiling_pays, power_of_two
from dalle_lib.swarm.peer.computing.work import Work
from dalle_lib.swarm.peer.computing.workers import Worker
from dalle_lib.swarm.process import threads
from dalle_lib.swarm.process.threads import threads_here, threads_of


def computer_of(is_reversible: bool = False) -> Computer:
    return Computer(random_model(is_reversible=is_reversible).float(), CPU)


def test_the_batch_grows_while_memory_allows_and_never_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(trials, "SLOWER", 0.0)  # a busy machine says nothing about sizes
    computer = computer_of()
    with_room_for(computer.model, 4, RAM_RAN_OUT)
    found = Trials(computer, 64, budget_s=60.0)
    way = found.find()
    assert way.batch <= 4
    assert [(trial.way.batch, bool(trial.problem)) for trial in found.done if trial.way.batch == 8] == [(8, True)]
    assert all(not p.grad.any() for p in computer.parameters)
    limited = Trials(computer_of(), 3, budget_s=60.0)
    assert limited.find().batch <= 2
    assert max(trial.way.batch for trial in limited.done) <= 2


def test_a_machine_too_busy_for_trials_computes_as_many_samples_at_a_time_as_are_usual():
    computer = computer_of()
    found = Trials(computer, 64, budget_s=60.0)
    found._ends_at = 0.0
    assert found.find().batch == trials.USUAL
    assert [trial.way.batch for trial in found.done] == [1]
    limited = Trials(computer_of(), 9, budget_s=60.0)
    limited._ends_at = 0.0
    assert limited.find().batch == 8


def test_the_fastest_way_that_was_tried_is_taken(monkeypatch):
    monkeypatch.setattr(trials, "has_bf16_instructions", lambda: True)
    computer = computer_of(is_reversible=True)
    found = Trials(computer, 4, budget_s=60.0)
    way = found.find()
    tried = {(trial.way.precision, trial.way.is_reversible) for trial in found.done}
    assert tried == {("float32", False), ("bfloat16", False)}, "layers run again only to save memory"
    assert way.samples_per_s * trials.BETTER >= max(trial.way.samples_per_s for trial in found.done)
    assert computer.way == way


def test_what_does_not_work_here_is_told_and_not_taken():
    computer = computer_of()

    def no_compiler() -> None:
        raise ValueError("no compiler\nis here")

    computer.model.transformer.compile_layers = no_compiler
    found = Trials(computer, 2, budget_s=60.0)
    way = found.find()
    assert found._better(way, {"is_compiled": True}) == way
    assert found.done[-1].problem == "no compiler is here"
    assert not way.is_compiled


def failing_in_16_bits(computer: Computer, error: Exception | None) -> None:
    """Let passes in 16 bits raise an error, or, without one, have no finite gradient whatever the loss scale is."""
    plain = computer.model.forward

    def failing(*batch):
        output = plain(*batch)
        if torch.is_autocast_enabled("cpu"):
            if error is not None:
                raise error
            output.image_logits.register_hook(lambda gradient: gradient * float("inf"))
        return output

    computer.model.forward = failing


@pytest.mark.parametrize("error", [None, RuntimeError("no kernel for this on a GPU of 2016")])
def test_a_first_way_in_16_bits_that_does_not_work_is_told_and_float32_is_taken(monkeypatch, error):
    monkeypatch.setattr(trials, "has_bf16_instructions", lambda: False)  # its trial would fail, too
    computer = computer_of()
    failing_in_16_bits(computer, error)
    computer.use(replace(computer.way, precision="float16"))
    found = Trials(computer, 2, budget_s=60.0)
    way = found.find()
    assert way.precision == computer.way.precision == "float32"
    assert (found.done[0].way.precision, found.done[0].problem) == (
        "float16",
        str(error or "no finite gradient in 16 steps"),
    )
    assert not any(trial.problem for trial in found.done[1:])
    assert computer.once([batch_of(2)]).is_finite


def test_another_precision_that_does_not_work_ends_no_peer_and_an_error_in_float32_does(monkeypatch):
    monkeypatch.setattr(trials, "has_bf16_instructions", lambda: True)
    computer = computer_of()
    failing_in_16_bits(computer, RuntimeError("no kernel for this"))
    found = Trials(computer, 2, budget_s=60.0)
    assert found.find().precision == "float32"
    assert [trial.problem for trial in found.done if trial.way.precision == "bfloat16"] == ["no kernel for this"]
    with_room_for(computer.model, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        Trials(computer, 2, budget_s=60.0).find()


def test_a_way_whose_speed_is_not_known_gives_way_to_one_that_was_measured():
    computer = computer_of(is_reversible=True)
    unknown = replace(computer.way, samples_per_s=None)
    assert not Trials(computer, 2, budget_s=60.0)._better(unknown, {"is_reversible": False}).is_reversible


def test_a_model_of_which_one_sample_takes_longer_than_all_trials_is_not_tried():
    computer = computer_of()
    found = Trials(computer, 64, budget_s=1e-9)
    assert found.find() == replace(computer.way, batch=1)
    assert found.done == []


def test_no_room_for_one_sample_at_the_start_makes_layers_reversible():
    computer = computer_of()
    model, plain = computer.model, computer.model.forward

    def limited(*batch):
        if not model.transformer.is_reversible:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(*batch)

    model.forward = limited
    assert Trials(computer, 4, budget_s=60.0).find().is_reversible


def test_forecasts_of_room_follow_the_calculator(monkeypatch):
    way, paper = computer_of().way, ModelConfig.paper()
    kept, reversible = (forecast(paper, replace(way, batch=4, is_reversible=each))[0] for each in (False, True))
    assert 4 * reversible < kept
    from dalle_lib.swarm.peer.computing import room

    monkeypatch.setattr(room, "free_memory", lambda: 2 * kept)
    assert not fits(paper, replace(way, batch=4, is_reversible=False), CPU)
    assert fits(paper, replace(way, batch=2, is_reversible=False), CPU)


def test_compiling_is_tried_only_where_it_can_pay():
    assert compiling_pays(trials.PAYS_WITHIN_S)
    assert not compiling_pays(300.0)


def test_a_batch_is_never_more_than_a_share_of_an_epoch_nor_than_some_seconds():
    way = replace(computer_of().way, batch=32, samples_per_s=20.0)
    pace = Pace(192, None, steps_itself=False)
    assert pace.most == 48
    assert [pace.sizes(way, peers)[0] for peers in (0, 1, 3, 6, 1000)] == [32, 32, 16, 8, 1]
    assert Pace(192, 5, steps_itself=False).sizes(way, 1) == (4, 1)
    assert Pace(10**6, None, steps_itself=False).most == 64
    assert Pace(192, None, steps_itself=True).sizes(way, 3) == (16, 1)
    assert Pace(192, 24, steps_itself=True).sizes(way, 3) == (24, 1)


def test_several_batches_come_between_slow_looks_at_the_swarm(monkeypatch):
    way, pace = replace(computer_of().way, batch=8), Pace(4096, None, steps_itself=False)
    pace.computed(8, 0.1)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    pace.looked(100.0 - 1e-3)
    assert pace.sizes(way, 4) == (8, 1)
    slow = Pace(4096, None, steps_itself=False)
    slow.computed(8, 0.1)
    slow.looked(100.0 - 0.05)
    assert slow.sizes(way, 4) == (8, 10)
    slow.looked(100.0 - 60.0)  # it waited for others
    assert slow.sizes(way, 4)[1] == 11
    assert slow.sizes(way, 64) == (8, 2)
    very = Pace(10**6, None, steps_itself=False)
    very.computed(8, 0.1)
    very.looked(100.0 - 60.0)
    assert very.sizes(way, 1) == (8, 50)  # five seconds


def test_work_tells_each_change_of_the_way_and_keeps_the_reason():
    model, told = random_model(is_reversible=False).float(), []
    work = Work(model, CPU, Pace(192, None, steps_itself=False), lambda **fields: told.append(fields))
    work.computer.use(replace(work.computer.way, threads=9))  # a peer may compute on others from then on
    work.choose_way(1, trains_for_s=60.0, is_over=lambda: False)
    assert told[0]["threads"] == torch.get_num_threads()
    assert told[0]["told"].startswith("float32, ")
    assert len(told[0]["tried"]) > 1
    work.computer.use(replace(work.computer.way, batch=8))
    with_room_for(model, 2, RAM_RAN_OUT)
    work.gradient([batch_of(8)])
    work.gradient([batch_of(2)])
    assert [event["batch"] for event in told[1:]] == [4, 2, 2]
    assert [event["samples_per_s"] is None for event in told[1:]] == [True, True, False]
    assert "memory ran out with 4 at a time" in told[-1]["why"]
    assert work.sizes(1000) == (1, 1)
    assert told[-1]["batch"] == 1
    work.sizes(1000)
    assert len(told) == 5


def test_a_device_for_which_no_batch_has_a_sample_gets_no_process():
    told = []
    work = Work(random_model().float(), CPU, Pace(64, 1, steps_itself=False), lambda **f: told.append(f), [CPU, CPU])
    work.choose_way(1, trains_for_s=60.0, is_over=lambda: False)
    assert (work.devices.count, work.devices.workers) == (1, [])
    assert told[-1]["why"] == "cpu, cpu left out: 1 sample at a time, at most"


@pytest.mark.parametrize(
    ("names", "most", "each"),
    [("aa", 64, 32), ("aaa", 64, 32), ("aaaa", 64, 16), ("aaa", 16, 8), ("ab", 64, 64), ("aab", 16, 16), ("a", 48, 48)],
)
def test_a_device_tries_what_its_share_of_the_largest_batch_may_be(monkeypatch, names, most, each):
    devices = Devices(computer_of(), [torch.device(f"cuda:{number}") for number in range(1, len(names))])
    monkeypatch.setattr(computing_devices, "name_of", lambda device: names[device.index or 0])
    assert devices.most_each(most) == each
    way = replace(devices.first.way, batch=power_of_two(each), samples_per_s=1.0)
    devices.first.use(way)
    for part in range(1, len(names)):
        devices.workers.append(Worker(Job(ODD, "cpu", 1, 1.0, way, each, 60.0), SharedFloats(1, 1), part))
        devices.workers[-1].way, devices.workers[-1].speed = way, 1.0
    batch = Pace(4 * most, None, steps_itself=False).sizes(devices.way, 1)[0]
    assert batch == power_of_two(most)
    assert devices.way.batch <= trials.MAX_AT_ONCE, "a run's monitor recomputes no larger batches"
    assert max(rows_each(batch, [1.0] * len(names))) <= way.batch


@pytest.mark.parametrize(
    ("cores", "processors", "bound", "quota", "expected"),
    [
        (4, 8, 8, "max 100000", 4),
        (8, 8, 8, "max 100000", 7),
        (2, 2, 2, "max 100000", 1),
        (1, 2, 2, "max 100000", 1),
        (1, 1, 1, "max 100000", 1),
        (32, 64, 64, "400000 100000", 2),
        (32, 64, 6, "max 100000", 3),
        (None, 4, 4, "max 100000", 3),
    ],
)
def test_threads_are_the_cores_but_what_answering_needs(
    monkeypatch, tmp_path, cores, processors, bound, quota, expected
):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: processors if logical else cores)
    assert threads_here() == expected
    assert threads_of(PeerSettings(run="r")) == expected
    assert threads_of(PeerSettings(run="r", role="bootstrap")) == 1
    assert threads_of(PeerSettings(run="r", threads=5)) == 5
