"""Memory that runs out while batches are made, in the hand-over of a gradient, and in copies: the peer goes on."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cramped_sgd import CrampedSGD
from small_models import ODD, random_model

from dalle_lib.machine import NotEnoughRoom
from dalle_lib.run import RunCard
from dalle_lib.streaming import stream_codes
from dalle_lib.streaming.batches import Batch, TrainingBatches
from dalle_lib.streaming.tokenizer import CaptionTokenizer
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.peer.computing.shared import Job, SharedFloats
from dalle_lib.swarm.peer.computing.work import Work
from dalle_lib.swarm.peer.computing.workers import Worker
from dalle_lib.swarm.peer.snapshot import take_snapshot

RAM_RAN_OUT = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def batches_of(card: RunCard) -> TrainingBatches:
    return TrainingBatches(
        stream_codes(card.data_source(card.data.train), seed=0),
        CaptionTokenizer(card.path(card.tokenizer), 12),
        batch_size=8,
        codebook_size=1024,
        code_corruption=0.15,
        caption_dropout=0.1,
    )


def work_of(batch: int, told: list | None = None, further: Sequence[torch.device] = ()) -> Work:
    """Return the work of a peer that computes so many samples at a time, and that an epoch asks for four times."""
    tell = (lambda **fields: told.append((fields["batch"], fields["why"]))) if told is not None else lambda **_: None
    work = Work(
        random_model(),
        torch.device("cpu"),
        Pace(4 * batch * (1 + len(further)), None, steps_itself=False),
        tell,
        further,
    )
    work.computer.use(replace(work.computer.way, batch=batch))
    return work


def test_batches_for_all_devices_are_halved_until_there_is_memory_for_them(mini):
    batches, told = batches_of(mini), []
    work = work_of(32, told, further=[torch.device("cpu")])
    job = Job(ODD, "cpu", 1, 1.0, work.computer.way, 32, 60.0)
    work.devices.workers.append(Worker(job, SharedFloats(1, 1), 1))
    work.devices.workers[0].way = job.way

    def sent(batch):
        if len(batch) > 2:
            raise MemoryError
        return batch

    batches._ready = sent
    assert [len(batch) for batch in work.next_batches(batches, 1)] == [2]
    assert [batch for batch, why in told if "ran out" in why] == [32, 16, 8, 4, 2]
    batches._ready = lambda batch: error()
    with pytest.raises(NotEnoughRoom, match="one sample at a time"):
        work.next_batches(batches, 1)


def error() -> Batch:
    raise MemoryError


@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize("error", [MemoryError(), RAM_RAN_OUT, torch.OutOfMemoryError("CUDA out of memory.")])
def test_a_batch_for_which_there_is_no_memory_is_halved_and_its_rows_come_again(mini, error, is_ahead):
    batches, told = batches_of(mini), []
    work, whole = work_of(16, told), batches_of(mini)

    def sent(batch):
        if len(batch) > 4:
            raise error
        return batch

    if is_ahead:
        batches.prefetch(sent)
    else:
        batches._ready = sent
    made = [batch for _ in range(3) for batch in work.next_batches(batches, 1)]
    batches.close()
    halved = [(batch, why) for batch, why in told if why]
    assert [batch for batch, _ in halved] == [8, 4]
    assert "memory ran out with 16 at a time" in halved[0][1]
    assert [len(batch) for batch in made] == [4, 4, 4]
    whole.batch_size = 12
    assert torch.cat([batch.codes for batch in made]).equal(next(whole).codes), "a row was lost, or came twice"


def test_a_sample_for_which_there_is_no_memory_ends_the_peer_with_advice(mini):
    batches = batches_of(mini)

    def sent(_batch):
        raise MemoryError

    batches.prefetch(sent)
    with pytest.raises(NotEnoughRoom, match="room for one sample at a time"):
        work_of(4).next_batches(batches, 1)
    batches.close()
    assert batches.state_dict()["position"] == 0, "nobody has trained on a row"


WITHIN_A_LIMIT = """
import resource, torch
from dalle_lib.run import RunCard
from test_no_memory import batches_of, work_of

torch.set_num_threads(1)  # a new thread would end the process
batches, work = batches_of(RunCard.load("emoji-mini")), work_of(2**16)
batches.prefetch()
next(batches)
used = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, resource.RLIM_INFINITY))
work.next_batches(batches, 1)  # it was made ahead, of the size before
(made,) = work.next_batches(batches, 1)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
batches.close()
print(len(made), made.receipt.start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read as Linux tells it")
def test_a_process_that_may_not_grow_by_16_mb_goes_on_with_the_largest_batch_that_fits():
    command, here = [sys.executable, "-c", WITHIN_A_LIMIT], Path(__file__).parent
    told = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=600)
    assert told.returncode == 0, told.stderr[-2000:]
    size, start = map(int, told.stdout.split())
    assert (start, 16 <= size < 2**16) == (16, True)


@pytest.mark.parametrize("error", [MemoryError(), RAM_RAN_OUT])
def test_a_gradient_that_cannot_be_handed_over_is_dropped_and_fewer_are_computed_at_a_time(error):
    work, dropped = work_of(16), []
    batches = [Batch(*[torch.zeros(size, 4, dtype=torch.long)] * 3) for size in (2, 16)]
    with work.less_without_memory(batches, dropped.append):
        raise error
    assert "memory ran out" in dropped[0]
    assert work.computer.way.batch == 8
    work = work_of(1)
    work.computer.use(replace(work.computer.way, is_reversible=True))
    with work.less_without_memory([Batch(*[torch.zeros(1, 4, dtype=torch.long)] * 3)], dropped.append):
        raise error
    assert len(dropped) == 2, "a sample fits, and the next hand-over may find more"
    with pytest.raises(ValueError, match="other"), work.less_without_memory(batches, dropped.append):
        raise ValueError("other")
    assert len(dropped) == 2


def test_a_batch_whose_size_is_part_of_the_recipe_is_made_in_no_other(mini):
    batches, tries = batches_of(mini), []

    def sent(batch):
        tries.append(len(batch))
        raise MemoryError

    batches._ready = sent
    work = Work(random_model(), torch.device("cpu"), Pace(64, None, steps_itself=True), lambda **_: None)
    with pytest.raises(MemoryError):
        work.next_batches(batches, 1)
    assert tries == [16]


class Averager(RunStateAverager):
    """What a snapshot is taken of: a parameter with a momentum, and no process."""

    local_epoch = 3

    def __init__(self) -> None:
        self.parameter = torch.nn.Parameter(torch.ones(1000))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1, momentum=0.9)
        self.lock_averaged_tensors, self.lock_optimizer = threading.Lock(), threading.Lock()
        self.finished_optimizer_step, self.finished_averaging_round = threading.Event(), threading.Event()
        self.scheduler, self.reuse_tensors = None, False

    def __del__(self) -> None:
        """Nothing has to end."""

    def step(self, wait_for_delayed_updates: bool) -> None:
        """No update is under way."""

    def update(self) -> None:
        self.parameter.grad = torch.ones(1000)
        self.optimizer.step()


def test_a_later_snapshot_takes_the_memory_of_the_one_before_and_so_never_lacks_any(monkeypatch):
    averager = Averager()
    averager.update()
    before = take_snapshot(averager)
    kept = SimpleNamespace(parameter=before.parameters[0], momentum=before.statistics["state"][0]["momentum_buffer"])
    averager.update()

    def none_left(*_args, **_kwargs):
        raise MemoryError

    for name in "clone", "__deepcopy__":
        monkeypatch.setattr(torch.Tensor, name, none_left)
    after = take_snapshot(averager, before)
    momentum = after.statistics["state"][0]["momentum_buffer"]
    assert (after.parameters[0] is kept.parameter, momentum is kept.momentum) == (True, True)
    assert after.parameters[0].equal(averager.parameter)
    assert momentum.equal(averager.optimizer.state[averager.parameter]["momentum_buffer"])
    assert after.statistics["param_groups"] == averager.optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("broken", ["parameter", "momentum"])
def test_a_copy_that_would_not_be_finite_leaves_the_one_before_as_it_is(broken):
    averager = Averager()
    averager.update()
    before = take_snapshot(averager)
    averager.update()
    momentum = averager.optimizer.state[averager.parameter]["momentum_buffer"]
    {"parameter": averager.parameter.data, "momentum": momentum}[broken][7] = torch.inf
    assert take_snapshot(averager, before) is before
    assert before.is_finite
    assert before.parameters[0].eq(0.9).all(), "of one update"


def test_an_update_without_memory_is_known_though_a_later_one_was_made():
    averager, lacks = Averager(), []
    averager.optimizer, averager.parameter.grad = CrampedSGD([averager.parameter], lr=1.0), torch.ones(1000)
    averager.optimizer.epoch, averager.optimizer.no_memory_in = 0, [2]
    averager.optimizer.register_step_post_hook(averager._was_made)
    nothing_else = dict.fromkeys(["zero_grad", "averaging_round", "averaging_control", "grad_scaler", "set_to_none"])
    for _ in range(3):
        averager._do(None, optimizer_step=True, **nothing_else)
        lacks.append(averager.lacks_update)
    assert lacks == [False, True, True]
