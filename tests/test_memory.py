"""The memory calculator, compared with real models, with itself and with published formulas."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from command_line import answer
from small_configs import SMALL

from dalle_lib.cli import main
from dalle_lib.measurement import build_model
from dalle_lib.memory import GPUS, PRESETS, Training, advise, estimate, gpu_named, largest_batch
from dalle_lib.memory.decoders import GPT2
from dalle_lib.memory.estimate import ASSUMED
from dalle_lib.memory.hardware import RECOMPUTED_SLACK, SEGMENT, SLACK, gpu_of, summing_bytes
from dalle_lib.memory.presets import FAMILIES, describe

PUBLISHED = {"dalle-paper": 125_894_244, "gpt2-large": 774_030_080, "t5-3b": 2_851_598_336}
"""Parameters of models that others have published."""


def shapes_of(parameters) -> list[list[int]]:
    """Return the sizes of each parameter in an order that does not tell a weight from its transpose, as in GPT-2."""
    return sorted(sorted(size for size in parameter.shape if size > 1) for parameter in parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_with_one_size_has_the_parameters_of_the_real_model(family):
    layers = {"bert": "num_hidden_layers", "gptj": "n_layer", "gpt2": "n_layer", "t5": "num_layers", "dalle": "depth"}
    config = {"model_type": family, layers.get(family, "num_hidden_layers"): 2}
    with torch.device("meta"):
        real = build_model(config, Training())
    assert describe(config).parameter_count == sum(p.numel() for p in real.parameters())


@pytest.mark.parametrize("model", [*PRESETS, *SMALL])
def test_parameters_have_the_shapes_of_the_real_model(model):
    with torch.device("meta"):
        real = build_model(SMALL.get(model, model), Training())
    described = describe(SMALL.get(model, model))
    assert described.table_bytes == pytest.approx(sum(table.nbytes for table in real.buffers()), abs=10_000)
    assert estimate(SMALL.get(model, model)).parameters == sum(p.numel() for p in real.parameters())
    assert shapes_of(described.parameters) == shapes_of(real.parameters())
    if model in PUBLISHED:
        assert sum(p.numel() for p in real.parameters()) == PUBLISHED[model]


@pytest.mark.parametrize("size", [("llama", "num_key_value_heads", -1), ("gpt2", "n_inner", 10**18), ("t5", "d_ff", 0)])
def test_a_size_that_no_model_has_is_refused(size):
    family, name, value = size
    with pytest.raises(ValueError, match=f"{name} is a whole number up to 10,000,000, but it is {value}"):
        describe({"model_type": family, name: value})
    described = describe({"model_type": "llama", "num_key_value_heads": None, "num_hidden_layers": 1})
    assert described.parameter_count > 0


def test_gpt3_and_dalle_12b_are_gpt2_with_the_sizes_of_their_papers():
    for name, billions in {"gpt3-175b": 175, "gpt3-6.7b": 6.7, "dalle-12b": 12}.items():
        assert isinstance(describe(name), GPT2)
        assert describe(name).parameter_count == pytest.approx(billions * 1e9, rel=0.03)


def test_a_layer_in_16_bits_keeps_the_bytes_of_the_published_formula():
    """34·s·b·h + 5·a·s²·b bytes: arXiv:2205.05198 leaves out the statistics of norms, 16 bytes a position here."""
    batch, length, heads, hidden = 2, 96, 4, 64
    config = {"model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": 3, "activation_function": "gelu"}
    training = Training(batch=batch, sequence=length, precision="pure-bf16", dropout=True, attention="eager")
    layer = sum(size for _, _, size in estimate(config, training).layer)
    statistics = 2 * 2 * 2 * batch * length
    assert layer - statistics == 34 * length * batch * hidden + 5 * heads * length**2 * batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_formulas_of_a_layer_give_its_bytes(attention):
    batch, length, heads, hidden = 2, 128, 4, 64  # b·a·s² is a multiple of b·s·h, too
    config = {"model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": 3}
    units = {"b·s·h": batch * length * hidden, "b·a·s²": batch * heads * length**2,
             "b·a·s": batch * length * heads, "b·s": batch * length}  # fmt: skip
    found = set()
    for _, text, size in estimate(config, Training(batch=batch, sequence=length, attention=attention)).layer:
        *count, formula = text.split(" × ")
        factor, unit = formula.split("·", 1)
        assert size == int(*count or [1]) * int(factor) * units[unit], text
        found.add(unit)
    assert ("b·a·s²" in found) == (attention == "eager")


def test_memory_does_not_grow_with_depth_in_reversible_layers():
    def kept(depth: int, **options) -> int:
        result = estimate(PRESETS["dalle-emoji"] | {"depth": depth}, Training(batch=64, **options))
        return result.allocated - result.gpu["weights"] - result.gpu["optimizer state"]

    assert kept(64, reversible=True) < 1.05 * kept(8, reversible=True)
    assert kept(64, checkpointing=True) > 1.5 * kept(8, checkpointing=True)
    assert kept(64) > 5 * kept(8)


def test_sharing_weights_saves_weights_and_nothing_else():
    own, shared = (estimate("bert-large", Training(batch=2, distinct_layers=n), "cpu") for n in (None, 1))
    layer = 12 * 1024**2 + 13 * 1024
    assert own.parameters - shared.parameters == 23 * layer
    assert own.layer == shared.layer


def test_the_sum_of_the_terms_is_the_peak():
    result = estimate("gpt2-large", Training(batch=2, precision="fp16"))
    assert sum(result.tensors.values()) == result.allocated
    assert result.gpu_range[0] < sum(result.gpu.values()) < result.gpu_range[1]


def test_a_swarm_keeps_gradients_buffers_and_a_snapshot():
    count = estimate("gpt2").parameters
    alone, swarm = (estimate("gpt2", Training(optimizer="lamb8bit", accumulates=True, swarm=s)) for s in (False, True))
    assert swarm.allocated == alone.allocated - alone.gpu["optimizer state"] + 4 * count
    assert swarm.ram["snapshot"] == 4 * count + swarm.ram["offloaded state"]
    assert swarm.unmeasured == ["swarm"]


def test_paged_statistics_leave_scales_and_small_tensors_on_the_gpu():
    kept = estimate("gpt2-large", Training(optimizer="adamw8bit", offload="statistics", checkpointing=True))
    all_of_it = estimate("gpt2-large", Training(optimizer="adamw8bit", checkpointing=True))
    scales = 8 * sum(p.count for p in describe("gpt2-large").parameters if not p.is_embedding) / 256
    assert kept.gpu["optimizer state"] == pytest.approx(scales, rel=0.25)
    assert kept.gpu["optimizer state"] < 0.02 * all_of_it.gpu["optimizer state"]


def test_what_a_gpu_takes_beside_tensors_is_its_familys_and_without_a_gpu_spans_all():
    biased, plain = SMALL["gpt2"], SMALL["t5"]
    for gpu, space in (GPUS["H100"], 2**25), (GPUS["T4"], 8320 * 2**10):
        said = estimate(biased, Training(), gpu=gpu)
        assert said.gpu["library workspaces"] == 2 * space + 2**20
        assert estimate(biased, Training(checkpointing=True), gpu=gpu).gpu["library workspaces"] == 2 * (space + 2**20)
        assert estimate(plain, Training(), gpu=gpu).gpu["library workspaces"] == 2 * space
        assert said.gpu["CUDA context"] == sum(gpu.context) // 2
        spanned, own = estimate(biased).gpu_range, said.gpu_range
        assert spanned[0] <= own[0] < own[1] <= spanned[1]
    assert estimate(biased, gpu=gpu_named("24")) == estimate(biased)
    assert "library workspaces" not in estimate(biased, device="cpu").gpu


def test_layers_that_run_again_leave_more_to_the_allocator():
    def share(**options) -> float:
        said = estimate("gpt2", Training(sequence=64, **options), gpu=GPUS["H100"])
        return (said.gpu_range[1] - said.allocated - GPUS["H100"].context[1] - SEGMENT) / said.allocated

    assert share() == pytest.approx(SLACK[1], abs=1e-6)
    assert share(checkpointing=True) == pytest.approx(RECOMPUTED_SLACK[1], abs=1e-6)
    assert share(reversible=True) == share(checkpointing=True)


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [
        (32128, 512, 131_596_288), (1296, 1536, 16_515_072), (1281, 8192, 88_080_384), (10248, 1024, 84_410_368),
        (5124, 1024, 42_467_328), (1024, 8192, 67_108_864), (1000, 8192, 0), (10**6, 64, 0),
    ],
)  # fmt: skip
def test_working_memory_of_sums_over_rows_is_what_a_gpu_recorded(rows, columns, size):
    assert summing_bytes(rows, columns) == size


def test_llamas_that_share_keys_store_their_scores_in_fp32_on_a_gpu_alone():
    shared, own = SMALL["llama"] | {"num_key_value_heads": 1}, SMALL["llama"] | {"num_key_value_heads": None}

    def stores_scores(model: dict, precision: str, device: str = "cuda") -> bool:
        return "softmax" in [name for name, _, _ in estimate(model, Training(precision=precision), device).layer]

    assert stores_scores(shared, "fp32")
    assert not stores_scores(own, "fp32")
    assert not stores_scores(shared, "bf16")
    assert not stores_scores(shared, "pure-bf16")
    assert not stores_scores(shared, "fp32", "cpu")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("Tesla V100-SXM2-16GB", "V100 16GB"), ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"), ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"), ("NVIDIA L40S", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_torch_gives_it(device, name):
    assert gpu_of(device) == GPUS.get(name)


def test_an_estimate_that_a_caller_changes_does_not_change_the_next():
    estimate("gpt2").gpu.clear()
    assert estimate("gpt2").gpu["weights"] == 4 * 124_439_808


@pytest.mark.parametrize("size", [10**9, 1_234_567_890, 3 * 10**9])
def test_the_largest_batch_fits_and_one_more_does_not(size):
    training = Training(precision="fp16", optimizer="adamw8bit", checkpointing=True)
    batch = largest_batch(SMALL["gpt2"], training, size)
    assert estimate(SMALL["gpt2"], replace(training, batch=batch)).fits(size)
    assert not estimate(SMALL["gpt2"], replace(training, batch=batch + 1)).fits(size)
    assert largest_batch(SMALL["gpt2"], training, size, max_batch=batch - 1) == batch - 1
    assert largest_batch("gpt2-large", training, size) == 0


def test_advice_ends_with_a_training_that_fits_and_each_step_helps():
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


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("gpt5", {}, "unknown model 'gpt5'"),
        ({"model_type": "resnet"}, {}, "model_type is one of"),
        ("gpt2", {"sequence": 2048}, "takes sequences of 1 to 1024, but the training has 2048"),
        ("dalle-paper", {"sequence": 100}, "takes sequences of 1280 to 1280, but the training has 100"),
        ("t5-small", {"attention": "sdpa"}, "with attention eager"),
        ("gpt2", {"batch": 0}, "whole number of at least 1"),
        ("gpt2", {"offload": "statistics", "optimizer": "lamb8bit"}, "needs AdamW"),
        ("dalle-paper", {"dropout": True}, "has no dropout"),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, {}, "whose tie_word_embeddings is True"),
        ({"model_type": "gpt2", "n_layer": 10**6}, {}, "at most 1000 layers"),
        ("gpt2", {"checkpointing": True, "reversible": True}, "switch one of them off"),
    ],
)
def test_impossible_options_are_refused(model, options, says):
    with pytest.raises(ValueError, match=says):
        estimate(model, Training(**options))


def test_an_unknown_choice_is_refused_even_without_type_checks():
    training = Training()
    object.__setattr__(training, "offload", "ram")
    with pytest.raises(ValueError, match="offload must be one of none, statistics, optimizer, but is 'ram'"):
        training.__post_init__()


def test_the_calculator_needs_only_the_standard_library():
    code = "import sys; before = set(sys.modules); import dalle_lib.memory; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"dalle_lib"}


def test_the_command_line_prints_the_result_of_estimate(capsys, monkeypatch, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(SMALL["gpt2"]))
    options = ["--optimizer", "adamw8bit", "--batch", "2", "--teraflops", "8", "--json"]
    monkeypatch.setattr("sys.argv", ["dalle-lib", "memory", str(tmp_path / "mine.json"), *options])
    main()
    said, expected = (
        json.loads(capsys.readouterr().out),
        estimate(SMALL["gpt2"], Training(batch=2, optimizer="adamw8bit"), gpu=GPUS["T4"]),
    )
    assert said["gpu"] == expected.gpu
    assert said["largest_batch"] > 100
    assert said["samples_per_second"] == expected.samples_per_second(8e12)
    monkeypatch.setattr("sys.argv", ["dalle-lib", "memory", "gpt2-large", "--batch", "4"])
    main()
    text = capsys.readouterr().out
    assert "774,030,080 parameters" in text
    assert "It does not fit: T4 has 15.8 GB. Not even a batch of 1 surely fits." in text
    assert "with gradient checkpointing" in text
    assumed = [line for line in text.splitlines() if "middle of a range" in line]
    assert [line[7:29].strip() for line in assumed] == list(ASSUMED)
    monkeypatch.setattr("sys.argv", ["dalle-lib", "memory", "dalle-paper", "--swarm"])
    main()
    assert "Computed, but not compared with a measurement: swarm." in capsys.readouterr().out


def test_models_and_gpus_are_known_by_name_in_any_case_and_gpus_by_size():
    assert estimate("GPT2") == estimate("gpt2")
    assert gpu_named("t4") == gpu_named("T4") == GPUS["T4"]
    assert gpu_named("24").size == 24 * 2**30
    assert gpu_named("24").name == "a GPU with 24 GiB"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gpt2_large"], "unknown model 'gpt2_large': did you mean gpt2-large? Otherwise, expected one of bert-base"),
        (["llama"], "unknown model 'llama': expected one of"),
        (["gpt2", "--gpu", "a100"], "unknown GPU 'a100': did you mean A100 40GB or A100 80GB? Otherwise"),
        (["gpt2", "--gpu", "16 GB"], "its memory in GiB as a number, such as 16"),
        (["gpt2", "--gpu", "-4"], "unknown GPU '-4': expected one of"),
        (["none.json"], "no file none.json"),
        (["half.json"], "half.json: expected a config.json's text, but it is not whole"),
    ],
)
def test_the_command_line_names_what_was_meant(capsys, monkeypatch, tmp_path, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.json").write_text('{"model_type": ')
    assert told in answer(monkeypatch, "memory", *arguments)
