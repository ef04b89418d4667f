"""The gradient that a peer computes: in pieces, where memory runs out, and with a loss scale."""

import errno
from dataclasses import replace

import pytest
import torch
from small_models import ODD, gradients, largest_error, random_batch, random_model

from dalle_lib.machine import NotEnoughRoom
from dalle_lib.model import DALLE
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.computer import Computer, Gradient, Interrupted
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.peer.computing.room import is_out_of_memory
from dalle_lib.swarm.peer.computing.scale import FIRST, GROWS_AFTER, LARGEST, LossScale
from dalle_lib.swarm.peer.computing.work import Work
from dalle_lib.troubles import trouble_in

CPU = torch.device("cpu")
RAM_RAN_OUT = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def batch_of(samples: int) -> Batch:
    text, codes = random_batch(batch=samples)
    return Batch(text, codes, codes.flip(0))


def whole_gradient(model: DALLE, batch: Batch) -> dict[str, torch.Tensor]:
    return {name: grad.clone() for name, grad in gradients(model, batch.text, batch.codes, batch.input_codes).items()}


def error_of(model: DALLE, expected: dict[str, torch.Tensor]) -> float:
    return largest_error({name: p.grad for name, p in model.named_parameters()}, expected)


def with_room_for(model: DALLE, samples: int, error: Exception, *, in_backward: bool = False) -> None:
    """Let the memory of a model's device run out as soon as more samples are computed at a time."""
    forward = model.forward

    def run_out(_gradient: torch.Tensor) -> None:
        raise error

    def limited(text, *others):
        if len(text) > samples and not in_backward:
            raise error
        output = forward(text, *others)
        if len(text) > samples:
            output.image_logits.register_hook(run_out)
        return output

    model.forward = limited


def test_the_gradient_of_pieces_and_of_several_batches_is_that_of_all_their_samples():
    model, whole = random_model(), batch_of(7)
    expected, loss = whole_gradient(model, whole), model(whole.text, whole.codes, whole.input_codes).loss.item()
    computer = Computer(model, CPU)
    computer.use(replace(computer.way, batch=3))
    found = computer.gradient([whole])
    assert error_of(model, expected) < 1e-12
    assert found.losses == pytest.approx([loss], rel=1e-12)
    two = whole.split(5)
    losses = computer.gradient(two).losses
    assert error_of(model, expected) < 1e-12
    assert (5 * losses[0] + 2 * losses[1]) / 7 == pytest.approx(loss, rel=1e-12)
    norm = torch.nn.utils.get_total_norm(list(expected.values()))
    assert found.norm == pytest.approx(float(norm), rel=1e-12)


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), RAM_RAN_OUT, MemoryError()])
def test_memory_that_runs_out_loses_no_sample_and_halves_what_is_computed_at_a_time(error, in_backward):
    model, batches, told = random_model(), [batch_of(2), batch_of(8)], []
    whole = Batch(*(torch.cat(ids) for ids in zip(*((b.text, b.codes, b.input_codes) for b in batches), strict=True)))
    expected = whole_gradient(model, whole)
    with_room_for(model, 3, error, in_backward=in_backward)
    computer = Computer(model, CPU, lambda way, why: told.append((way.batch, why)))
    computer.use(replace(computer.way, batch=64))
    found = computer.gradient(batches)
    assert found.is_finite
    assert error_of(model, expected) < 1e-12
    assert [batch for batch, _ in told] == [4, 2]
    assert "memory ran out with 8 at a time" in told[0][1]
    assert trouble_in(told[0][1]).title == "Fewer at a time"
    computer.gradient(batches)
    assert len(told) == 2


def test_a_sample_for_which_there_is_no_room_makes_layers_reversible_and_then_ends_with_advice():
    model, told = random_model(is_reversible=False), []
    with_room_for(model, 0, RAM_RAN_OUT)
    computer = Computer(model, CPU, lambda way, why: told.append(way))
    computer.use(replace(computer.way, batch=2))
    with pytest.raises(NotEnoughRoom, match=r"room for one sample at a time.*--device") as error:
        computer.gradient([batch_of(2)])
    assert [(way.batch, way.is_reversible) for way in told] == [(1, False), (1, True)]
    assert trouble_in(str(error.value)).title == "Out of memory"


def test_a_batch_for_which_no_memory_can_be_pinned_is_sent_by_the_step(monkeypatch):
    computer, batch = Computer(random_model(), CPU), batch_of(2)
    computer.device = torch.device("cuda")
    for error in RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("CUDA out of memory."):
        with_pinning(monkeypatch, error)
        assert computer.sent(batch) is batch
    with_pinning(monkeypatch, RuntimeError("no driver"))
    with pytest.raises(RuntimeError, match="no driver"):
        computer.sent(batch)


def with_pinning(monkeypatch, error: Exception) -> None:
    """Let pinning memory fail."""

    def fail(_tensor: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    model = random_model()
    with_room_for(model, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        Computer(model, CPU).gradient([batch_of(2)])
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("is_reversible", [True, False])
def test_a_peer_that_is_to_leave_begins_no_further_layer(is_reversible):
    model, batch, looks = random_model(is_reversible=is_reversible), batch_of(2), []
    computer, layers = Computer(model, CPU), 2 * ODD.depth
    computer.is_over = lambda: looks.append(None) or len(looks) > most
    most = layers + 3  # in the backward pass, where layers run again
    if is_reversible:
        with pytest.raises(Interrupted):
            computer.gradient([batch])
        assert len(looks) == most + 1
        looks.clear()
    most = 3
    with pytest.raises(Interrupted):
        computer.gradient([batch])
    assert len(looks) == most + 1
    most, expected = 10 * layers, whole_gradient(random_model(), batch)
    computer.gradient([batch])
    assert error_of(model, expected) < 1e-12


def test_no_trial_goes_on_where_the_peer_is_to_leave():
    computer, told = Computer(random_model().float(), CPU), []
    work = Work(computer.model, CPU, Pace(64, None, steps_itself=False), lambda **fields: told.append(fields))
    with pytest.raises(Interrupted):
        work.choose_way(1, 600.0, lambda: True)
    assert told == []


def test_a_scaled_gradient_in_fp16_is_that_of_float64_and_without_the_scale_small_ones_are_lost():
    exact, batch = random_model(), batch_of(2)
    expected = whole_gradient(exact, batch)
    model = random_model().float()
    computer = Computer(model, CPU)
    computer.use(replace(computer.way, precision="float16"))
    while not (found := computer.gradient([batch])).is_finite:
        assert found.is_overflow
    assert found.scale > 1
    assert error_of(model, expected) < 0.05
    with_scale = [float((p.grad == 0).float().mean()) for p in model.parameters()]
    computer.scale = LossScale(is_fixed=True)
    computer.scale.value = 2.0**-12
    computer.gradient([batch])
    without = [float((p.grad == 0).float().mean()) for p in model.parameters()]
    assert sum(without) > sum(with_scale)


def test_an_overflow_halves_the_scale_and_a_broken_model_does_not():
    model = random_model().float()
    computer = Computer(model, CPU)
    computer.use(replace(computer.way, precision="float16"))
    computer.scale.value = 2.0**30
    found = computer.gradient([batch_of(2)])
    assert (found.is_finite, found.is_overflow, found.scale) == (False, True, 2.0**30)
    assert computer.scale.value == 2.0**29
    with torch.no_grad():
        model.head.bias.fill_(float("nan"))
    found = computer.gradient([batch_of(2)])
    assert (found.is_finite, found.is_overflow) == (False, False)
    assert computer.scale.value == 2.0**29
    assert not Gradient([1.0], float("inf"), scale=1.0).is_overflow


def test_the_scale_grows_as_pytorchs_own_after_many_gradients_in_a_row():
    own, theirs = LossScale(is_fixed=False), torch.amp.GradScaler("cpu", init_scale=FIRST, growth_interval=GROWS_AFTER)
    for overflowed in [False] * 5 + [True, True] + [False] * GROWS_AFTER:
        own.note(overflowed)
        value = torch.full((1,), float("inf") if overflowed else 1.0)
        parameter = torch.nn.Parameter(torch.zeros(1))
        theirs.scale(torch.zeros(()))
        parameter.grad = value
        theirs.unscale_(optimizer := torch.optim.SGD([parameter], lr=0.0))
        theirs.step(optimizer)
        theirs.update()
    assert own.value == theirs.get_scale() == FIRST / 2
    own.value = LARGEST
    for _ in range(GROWS_AFTER):
        own.note(False)
    assert own.value == LARGEST


def test_a_way_in_use_tells_what_is_on():
    computer = Computer(random_model(ODD), CPU)
    way = replace(computer.way, batch=8, threads=2, samples_per_s=21.2, is_reversible=False)
    assert way.in_words() == "float32, 8 samples at a time, 2 threads, 21 samples/s"
    all_on = replace(way, precision="float16", is_compiled=True, is_recorded=True, samples_per_s=0.123)
    assert all_on.in_words("cuda") == (
        "fp16 with a loss scale, 8 samples at a time, compiled layers, recorded steps, 0.12 samples/s"
    )
    assert "layers run again" in replace(way, is_reversible=True).in_words()
