"""The memory calculator, compared with measurements of real models and with what PyTorch keeps."""

import gc
import subprocess
import sys

import pytest
import torch
from small_configs import DALLE, SMALL
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from dalle_lib.measurement import build_model, measure, worker
from dalle_lib.memory import Training, estimate
from dalle_lib.memory.accuracy import MACHINES, POINTS, WORST
from dalle_lib.memory.hardware import gpu_of


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("bert", Training(batch=3, dropout=True, optimizer="lamb8bit")),
        ("gated t5", Training(batch=3, sequence=70, optimizer="adafactor", precision="bf16", accumulates=True)),
        ("gptj", Training(batch=2, offload="optimizer", optimizer="adamw8bit", checkpointing=True)),
        ("qwen2", Training(batch=3, attention="eager", offload="statistics", precision="bf16")),
        ("dalle", Training(batch=3, optimizer="adamw8bit")),
    ],
)
def test_the_predicted_peak_is_the_measured_peak(model, training):
    config = {**SMALL, "dalle": DALLE}[model]
    measured = measure(config, training, steps=1, device="cpu")
    assert measured.fits, measured.error
    assert abs(measured.prediction_error) < 0.02
    predicted = estimate(config, training, "cpu")
    state = predicted.gpu.get("optimizer state", predicted.ram.get("offloaded state"))
    assert state == pytest.approx(measured.statistics, rel=0.01, abs=5000)
    assert predicted.gpu.get("gradients", 0) == pytest.approx(measured.gradients, abs=0.02 * measured.peak)
    assert (predicted.moment == "optimizer step") == measured.peaks_in_optimizer_step


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure-bf16"])
def test_saved_bytes_are_those_that_pytorch_saves(model, precision):
    training = Training(batch=2, sequence=70, precision=precision)
    real = build_model(SMALL[model], training)
    with torch.autocast("cpu", torch.bfloat16, enabled=training.half is not None):
        saved = _really_saved(real, "cpu")
    assert estimate(SMALL[model], training, "cpu").saved == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "pure-bf16"])
@pytest.mark.parametrize("dropout", [False, True])
def test_saved_bytes_are_those_that_pytorch_would_save_on_cuda(model, precision, dropout, request):
    """PyTorch runs the real model with fake tensors, which claim to be on a GPU and hold no numbers."""
    training = Training(batch=2, sequence=70, precision=precision, attention="eager", dropout=dropout)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            real = build_model(SMALL[model], training)
        if training.half:  # torch.autocast switches itself off without a GPU
            request.addfinalizer(lambda: torch.set_autocast_enabled("cuda", False))
            request.addfinalizer(torch.clear_autocast_cache)
            torch.set_autocast_dtype("cuda", torch.float16)
            torch.set_autocast_enabled("cuda", True)
        saved = _really_saved(real, "cuda")
    assert estimate(SMALL[model], training, "cuda").saved == pytest.approx(saved, rel=0.01)


def _really_saved(real: torch.nn.Module, device: str) -> int:
    """Return the bytes that PyTorch saves in a forward pass over [2, 70] ids, without weights."""
    weights = {StorageWeakRef(p.untyped_storage()) for p in [*real.parameters(), *real.buffers()]}
    saved, held = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if StorageWeakRef(storage) not in weights:
            saved[StorageWeakRef(storage)] = storage.nbytes()
            held.append(tensor)
        return tensor

    ids = torch.randint(0, 700, (2, 70), device=device)
    options = {} if real.config.model_type == "bert" else {"use_cache": False}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _loss = real(input_ids=ids, labels=ids, **options).loss
    return sum(saved.values())


def test_floating_point_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    real = build_model(SMALL["gpt2"], Training(attention="eager"))
    ids = torch.randint(0, 700, (2, 70))
    with FlopCounterMode(display=False) as counter:
        real(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    predicted = estimate(SMALL["gpt2"], Training(batch=2, sequence=70, attention="eager"))
    assert predicted.flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_the_published_table_has_the_predictions_of_today():
    assert len(POINTS) >= 70
    assert max(WORST.values()) < 0.05
    gpu = gpu_of(MACHINES["cuda"].split(",")[0])
    for point in POINTS:
        today = estimate(point["model"], Training(**point["training"]), point["device"], gpu)
        if point["device"] == "cuda":
            assert point["predicted"] == pytest.approx(point["requested"], rel=0.01), point
        assert today.allocated == pytest.approx(point["predicted"], rel=1e-4), point
        assert today.saved == pytest.approx(point["saved"], rel=0.05), point


def test_a_training_that_does_not_fit_is_a_result(monkeypatch):
    monkeypatch.setattr("dalle_lib.measurement.measuring.free_bytes", lambda device: 10**6)
    measured = measure(SMALL["gpt2"], Training(), device="cpu")
    assert not measured.fits
    assert measured.predicted > measured.available == 10**6
    assert "does not fit" in measured.error


@pytest.mark.parametrize(
    ("training", "says"),
    [
        (Training(distinct_layers=1), "distinct_layers"),
        (Training(swarm=True), "swarm"),
        (Training(reversible=True), "reversible"),
        (Training(precision="fp16"), "fp16 without a GPU"),
        (Training(offload="optimizer", accumulates=True), "accumulates"),
    ],
)
def test_options_that_no_real_model_here_has_are_not_measured(training, says):
    with pytest.raises(ValueError, match=says):
        measure(SMALL["gpt2"], training, device="cpu")


def test_blocks_of_another_shape_than_the_training_are_refused():
    with pytest.raises(ValueError, match=r"\[steps, 3, 80\].*\[4, 2, 80\]"):
        measure(SMALL["gpt2"], Training(batch=3), blocks=torch.zeros(4, 2, 80, dtype=torch.long), device="cpu")


def test_bitsandbytes_is_loaded_without_a_warning():
    """On processors with 16-bit arithmetic it warns of a package that it lacks, in red in a notebook."""
    code = "from dalle_lib.measurement.workload import load_bitsandbytes; load_bitsandbytes()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_gradients_on_a_gpu_count_from_when_each_is_complete(monkeypatch):
    """CUDA's statistics are played, as there is no GPU here; the training is real."""
    job = {"seed": 0, "device": "cpu", "folder": ".", "model": SMALL["gpt2"], "training": {}, "from_file": False}
    training = worker.MeasuredTraining(job | {"lr": 1e-3, "length": 8})
    sizes, asked = [p.nbytes for p in training.model.parameters()], []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    for highest_after, expected in ((len(sizes) + 1, sum(sizes)), (3, None)):
        asked.clear()

        def highest(last=highest_after):
            asked.append(1)
            return min(len(asked), last)

        monkeypatch.setattr(torch.cuda, "max_memory_allocated", highest)
        found = training.peak_on_gpu()
        assert len(asked) == len(sizes) + 1
        assert found["peaks_in_optimizer_step"] == (expected is not None)
        assert found["gradients"] == expected if expected else 0 < found["gradients"] < sum(sizes) / 2


def test_counting_what_is_kept_keeps_nothing():
    """A peak that is measured afterwards on a GPU holds whatever is alive, this count's own tensors too."""
    job = {"seed": 0, "device": "cpu", "folder": ".", "model": SMALL["gpt2"], "training": {}, "from_file": False}
    training = worker.MeasuredTraining(job | {"lr": 1e-3, "length": 8})
    training.step()
    gc.collect()
    before = _tensors()
    assert training.saved() > 0
    gc.collect()
    assert _tensors() == before


def _tensors() -> int:
    """Return how many tensors are alive."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_a_failed_measurement_says_why():
    with pytest.raises(RuntimeError, match="num_heads"):
        measure(SMALL["gpt2"] | {"n_head": 5}, Training(), device="cpu")
