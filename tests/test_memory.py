"""The memory calculator, held against real models, their real memory, and published formulas."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from dalle_lib.cli import main
from dalle_lib.measurement import build_model, measure
from dalle_lib.memory import PRESETS, Training, advise, estimate, largest_batch
from dalle_lib.memory.accuracy import POINTS, WORST
from dalle_lib.memory.decoders import GPT2
from dalle_lib.memory.presets import FAMILIES, build

PUBLISHED = {"dalle-paper": 125_894_244, "gpt2-large": 774_030_080, "t5-3b": 2_851_598_336}
LLAMA = {
    "model_type": "llama", "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 100, "vocab_size": 700, "max_position_embeddings": 90,
}  # fmt: skip
SMALL = {
    "gpt2": {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 80, "vocab_size": 700},
    "bert": {
        "model_type": "bert", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 100, "vocab_size": 700, "max_position_embeddings": 80,
    },
    "t5": {
        "model_type": "t5", "d_model": 48, "d_ff": 100, "num_layers": 3, "num_heads": 3, "d_kv": 20, "vocab_size": 700,
    },
    "gated t5": {
        "model_type": "t5", "d_model": 48, "d_ff": 100, "num_layers": 2, "num_heads": 3, "d_kv": 20, "vocab_size": 700,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "gptj": {
        "model_type": "gptj", "n_embd": 48, "n_layer": 3, "n_head": 3, "rotary_dim": 8, "n_positions": 80,
        "vocab_size": 700,
    },
    "llama": LLAMA,
    "qwen2": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": LLAMA | {"model_type": "mistral", "head_dim": 12},
}  # fmt: skip
DALLE = {
    "model_type": "dalle", "dim": 48, "depth": 3, "heads": 3, "dim_head": 20, "text_length": 20, "text_vocab": 700,
    "image_vocab": 500, "grid": 12,
}  # fmt: skip
"""A picture of three strips, of four lines each."""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_as_in_transformers(family):
    layers = {"bert": "num_hidden_layers", "gptj": "n_layer", "gpt2": "n_layer", "t5": "num_layers", "dalle": "depth"}
    config = {"model_type": family, layers.get(family, "num_hidden_layers"): 2}
    with torch.device("meta"):
        real = build_model(config, Training())
    assert build(config).parameter_count == sum(p.numel() for p in real.parameters())


@pytest.mark.parametrize("model", [*PRESETS, *SMALL])
def test_parameters_are_those_of_the_real_model(model):
    with torch.device("meta"):
        real = build_model(SMALL.get(model, model), Training())
    assert estimate(SMALL.get(model, model), Training(batch=1)).parameters == sum(p.numel() for p in real.parameters())
    if model in PUBLISHED:
        assert sum(p.numel() for p in real.parameters()) == PUBLISHED[model]


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
def test_the_peak_is_what_is_measured(model, training):
    config = {**SMALL, "dalle": DALLE}[model]
    measured = measure(config, training, steps=1, device="cpu")
    assert measured.fits, measured.error
    assert abs(measured.prediction_error) < 0.02
    predicted = estimate(config, training, "cpu")
    state = predicted.gpu.get("optimizer state", predicted.ram.get("offloaded state"))
    assert state == pytest.approx(measured.statistics, rel=0.01, abs=5000)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure-bf16"])
def test_what_is_saved_is_what_pytorch_saves(model, precision):
    training = Training(batch=2, sequence=70, precision=precision)
    real = build_model(SMALL[model], training)
    with torch.autocast("cpu", torch.bfloat16, enabled=training.half is not None):
        saved = _really_saved(real, "cpu")
    assert estimate(SMALL[model], training, "cpu").saved == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "pure-bf16"])
@pytest.mark.parametrize("dropout", [False, True])
def test_what_is_saved_is_what_pytorch_would_save_on_cuda(model, precision, dropout, request):
    """PyTorch runs the real model with tensors that say they are on a GPU but hold no numbers."""
    training = Training(batch=2, sequence=70, precision=precision, attention="eager", dropout=dropout)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            real = build_model(SMALL[model], training)
        if training.half:  # torch.autocast would switch itself off without a GPU
            request.addfinalizer(lambda: torch.set_autocast_enabled("cuda", False))
            request.addfinalizer(torch.clear_autocast_cache)
            torch.set_autocast_dtype("cuda", torch.float16)
            torch.set_autocast_enabled("cuda", True)
        saved = _really_saved(real, "cuda")
    assert estimate(SMALL[model], training, "cuda").saved == pytest.approx(saved, rel=0.01)


def _really_saved(real: torch.nn.Module, device: str) -> int:
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


def test_a_layer_in_16_bits_keeps_what_the_literature_says():
    """34·s·b·h + 5·a·s²·b bytes: arXiv:2205.05198 counts no statistics of norms, which are 16 bytes a token here."""
    batch, length, heads, hidden = 2, 96, 4, 64
    config = {"model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": 3, "activation_function": "gelu"}
    training = Training(batch=batch, sequence=length, precision="pure-bf16", dropout=True, attention="eager")
    layer = sum(size for _, _, size in estimate(config, training).layer)
    statistics = 2 * 2 * 2 * batch * length
    assert layer - statistics == 34 * length * batch * hidden + 5 * heads * length**2 * batch


def test_memory_does_not_grow_with_depth_in_reversible_layers():
    def kept(depth: int, **options) -> int:
        result = estimate(PRESETS["dalle-emoji"] | {"depth": depth}, Training(batch=64, **options))
        return result.allocated - result.gpu["weights"] - result.gpu["optimizer state"]

    assert kept(64, reversible=True) < 1.05 * kept(8, reversible=True)
    assert kept(64, checkpointing=True) > 1.5 * kept(8, checkpointing=True)
    assert kept(64) > 5 * kept(8)


def test_floating_point_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    real = build_model(SMALL["gpt2"], Training(attention="eager"))
    ids = torch.randint(0, 700, (2, 70))
    with FlopCounterMode(display=False) as counter:
        real(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    predicted = estimate(SMALL["gpt2"], Training(batch=2, sequence=70, attention="eager"))
    assert predicted.flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_sharing_weights_saves_weights_and_nothing_else():
    own, shared = (estimate("bert-large", Training(batch=2, distinct_layers=n), "cpu") for n in (None, 1))
    layer = 12 * 1024**2 + 13 * 1024
    assert own.parameters - shared.parameters == 23 * layer
    assert own.layer == shared.layer


@pytest.mark.parametrize("size", [10**9, 1_234_567_890, 3 * 10**9])
def test_the_largest_batch_fits_and_one_more_does_not(size):
    training = Training(precision="fp16", optimizer="adamw8bit", checkpointing=True)
    batch = largest_batch(SMALL["gpt2"], training, size)
    assert estimate(SMALL["gpt2"], replace(training, batch=batch)).fits(size)
    assert not estimate(SMALL["gpt2"], replace(training, batch=batch + 1)).fits(size)
    assert largest_batch(SMALL["gpt2"], training, size, most=batch - 1) == batch - 1
    assert largest_batch("gpt2-large", training, size) == 0


def test_advice_ends_with_what_fits_and_each_step_helps():
    size = 2_700_000_000
    steps = advise("gpt2", Training(batch=4), size, has_bf16=False)
    needs = [step.estimate.gpu_range[1] for step in steps]
    assert not steps[0].fits
    assert steps[-1].fits
    assert len(steps) > 2
    assert needs == sorted(needs, reverse=True)
    assert all(step.estimate.training.precision in ("fp32", "fp16") for step in steps)
    assert advise("gpt2", Training(optimizer="lamb", batch=9), 10**9)[-1].estimate.training.optimizer == "lamb8bit"
    assert not advise("gpt2", Training(), 10**8)[-1].fits


def test_the_published_table_is_what_the_calculator_says_today():
    assert len(POINTS) >= 20
    assert WORST < 0.05
    for point in POINTS:
        today = estimate(point["model"], Training(**point["training"]), point["device"])
        assert today.allocated == pytest.approx(point["predicted"], rel=1e-4), point
        assert today.saved == pytest.approx(point["saved"], rel=0.05), point


def test_the_sum_of_the_terms_is_the_peak():
    result = estimate("gpt2-large", Training(batch=2, precision="fp16"))
    assert sum(result.tensors.values()) == result.allocated
    assert result.gpu_range[0] < sum(result.gpu.values()) < result.gpu_range[1]


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("gpt5", {}, "unknown model 'gpt5'"),
        ({"model_type": "resnet"}, {}, "model_type is one of"),
        ("gpt2", {"sequence": 2048}, "takes 1 to 1024 tokens"),
        ("dalle-paper", {"sequence": 100}, "takes 1280 to 1280 tokens"),
        ("t5-small", {"attention": "sdpa"}, "with attention eager"),
        ("gpt2", {"batch": 0}, "whole number from 1"),
        ("gpt2", {"offload": "statistics", "optimizer": "lamb8bit"}, "only AdamW's statistics"),
        ("dalle-paper", {"dropout": True}, "has no dropout"),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, {}, "whose tie_word_embeddings is True"),
        ({"model_type": "gpt2", "n_layer": 10**6}, {}, "at most 1000 layers"),
        ("gpt2", {"checkpointing": True, "reversible": True}, "switch one of them off"),
    ],
)
def test_what_cannot_be_is_said(model, options, says):
    with pytest.raises(ValueError, match=says):
        estimate(model, Training(**options))


def test_what_does_not_fit_is_a_result(monkeypatch):
    monkeypatch.setattr("dalle_lib.measurement.measuring.free_bytes", lambda device: 10**6)
    measured = measure(SMALL["gpt2"], Training(), device="cpu")
    assert not measured.fits
    assert measured.predicted > measured.available == 10**6
    assert "does not fit" in measured.error


def test_an_unknown_choice_is_said_also_where_no_types_are_checked():
    training = Training()
    object.__setattr__(training, "offload", "ram")
    with pytest.raises(ValueError, match="offload must be one of none, statistics, optimizer, but is 'ram'"):
        training.__post_init__()


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
def test_what_no_real_model_here_does_is_not_measured(training, says):
    with pytest.raises(ValueError, match=says):
        measure(SMALL["gpt2"], training, device="cpu")


def test_blocks_of_another_shape_than_the_training_are_refused():
    with pytest.raises(ValueError, match=r"\[steps, 3, 80\].*\[4, 2, 80\]"):
        measure(SMALL["gpt2"], Training(batch=3), blocks=torch.zeros(4, 2, 80, dtype=torch.long), device="cpu")


def test_a_swarm_keeps_gradients_and_what_it_accumulates_of_them():
    count = estimate("gpt2").parameters
    alone, swarm = (estimate("gpt2", Training(optimizer="lamb8bit", accumulates=True, swarm=s)) for s in (False, True))
    assert swarm.allocated == alone.allocated - alone.gpu["optimizer state"] + 4 * count
    assert swarm.ram["snapshot"] == 4 * count + swarm.ram["offloaded state"]
    assert swarm.unmeasured == ["anything on cuda", "swarms"]


def test_paged_statistics_leave_scales_and_small_tensors_on_the_gpu():
    kept = estimate("gpt2-large", Training(optimizer="adamw8bit", offload="statistics", checkpointing=True))
    all_of_it = estimate("gpt2-large", Training(optimizer="adamw8bit", checkpointing=True))
    scales = 8 * sum(p.count for p in build("gpt2-large").parameters if not p.is_embedding) / 256
    assert kept.gpu["optimizer state"] == pytest.approx(scales, rel=0.25)
    assert kept.gpu["optimizer state"] < 0.02 * all_of_it.gpu["optimizer state"]


def test_an_estimate_that_a_caller_changes_does_not_change_the_next():
    estimate("gpt2").gpu.clear()
    assert estimate("gpt2").gpu["weights"] == 4 * 124_439_808


def test_a_failed_measurement_says_why():
    with pytest.raises(RuntimeError, match="num_heads"):
        measure(SMALL["gpt2"] | {"n_head": 5}, Training(), device="cpu")


def test_the_calculator_needs_the_standard_library_alone():
    code = "import sys; before = set(sys.modules); import dalle_lib.memory; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"dalle_lib"}


def test_gpt3_and_dalle_12b_are_gpt2_with_their_papers_sizes():
    for name, billions in {"gpt3-175b": 175, "gpt3-6.7b": 6.7, "dalle-12b": 12}.items():
        assert isinstance(build(name), GPT2)
        assert build(name).parameter_count == pytest.approx(billions * 1e9, rel=0.03)


def test_the_command_line_says_what_estimate_says(capsys, monkeypatch, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(SMALL["gpt2"]))
    options = ["--optimizer", "adamw8bit", "--batch", "2", "--teraflops", "8", "--json"]
    monkeypatch.setattr("sys.argv", ["dalle-lib", "memory", str(tmp_path / "mine.json"), *options])
    main()
    said, expected = (
        json.loads(capsys.readouterr().out),
        estimate(SMALL["gpt2"], Training(batch=2, optimizer="adamw8bit")),
    )
    assert said["gpu"] == expected.gpu
    assert said["largest_batch"] > 100
    assert said["samples_per_second"] == expected.samples_per_second(8e12)
    monkeypatch.setattr("sys.argv", ["dalle-lib", "memory", "gpt2-large", "--batch", "4"])
    main()
    text = capsys.readouterr().out
    assert "774,030,080 parameters" in text
    assert "It does not fit a T4" in text
    assert "with gradient checkpointing" in text
