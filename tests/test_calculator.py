"""The calculator's face: bars as data, knobs that recompute, sentences that say what the numbers say."""

import json
from dataclasses import replace

import pytest

from dalle_lib.dashboard.bars import COLOURS, RAM_TERMS, bars_html, bytes_text, memory_bars
from dalle_lib.dashboard.calculator import (
    OWN,
    Calculator,
    advice_html,
    details,
    layer_html,
    read_config,
    samples_per_second,
    summary,
    terms_html,
)
from dalle_lib.memory import GPUS, Training, advise, estimate, largest_batch
from dalle_lib.memory.estimate import TERMS
from dalle_lib.memory.hardware import GPU

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 500}


MOST = 8


@pytest.fixture
def calculator(monkeypatch) -> Calculator:
    monkeypatch.setattr("dalle_lib.dashboard.calculator.MOST", MOST)  # looking for a larger batch takes seconds
    return Calculator(SMALL, "T4", Training(batch=2, sequence=64))


def test_bars_carry_every_term_in_the_order_of_the_terms():
    needed = estimate(SMALL, Training(swarm=True))
    spec = memory_bars([("here", needed.gpu), ("there", {"weights": 2 * 10**9, "gradients": 0})]).to_dict()
    bars = spec["layer"][0]
    values = bars["data"]["values"]
    assert {v["term"]: v["value"] for v in values if v["label"] == "here"} == {
        term: pytest.approx(size / 1e9) for term, size in needed.gpu.items()
    }
    assert [v["term"] for v in values if v["label"] == "there"] == ["weights"]
    scale = bars["encoding"]["color"]["scale"]
    assert scale["domain"] == [term for term in TERMS if term in needed.gpu]
    assert scale["range"] == [COLOURS[term] for term in scale["domain"]]
    assert all(v["formula"] == TERMS[v["term"]] for v in values)


def test_each_term_has_a_colour_and_a_formula():
    needed = estimate(SMALL, Training(swarm=True, offload="optimizer"))
    assert set(TERMS) <= set(COLOURS)
    assert set(needed.ram) <= {*RAM_TERMS, *TERMS}
    assert len({COLOURS[term] for term in TERMS}) == len(TERMS)


def test_a_term_that_is_not_the_calculators_has_a_colour_and_megabytes_are_shown_as_such():
    bars = memory_bars([("measured", {"measured peak": 3 * 10**6, "weights": 10**6})]).to_dict()["layer"][0]
    assert bars["encoding"]["color"]["scale"]["domain"] == ["weights", "measured peak"]
    assert len(set(bars["encoding"]["color"]["scale"]["range"])) == 2
    assert bars["encoding"]["x"]["title"] == "MB"
    assert [v["value"] for v in bars["data"]["values"]] == [3, 1]


def test_limits_are_lines_and_pieces_say_what_they_are_without_a_script():
    chart = memory_bars([("a", {"weights": 10**9})], [("T4", GPUS["T4"].size)])
    lines = [layer["data"]["values"] for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "rule"]
    assert all(values[0]["value"] == pytest.approx(15.83, abs=0.01) for values in lines)
    svg = bars_html(chart)
    assert "<title>a, weights: 1.00 GB. parameters × bytes of a weight" in svg
    assert "T4: 15.8 GB" in svg
    assert "<script" not in svg


@pytest.mark.parametrize(
    ("size", "text"),
    [(7, "7 bytes"), (1500, "1.50 kB"), (327_100_000, "327 MB"), (11_410_000_000, "11.4 GB"), (2799e9, "2,799 GB")],
)
def test_bytes_are_written_in_three_digits(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(("fits", "verdict"), [(True, "fits"), (False, "does not fit"), (None, "may fit")])
def test_the_verdict_is_that_of_the_range(fits, verdict):
    needed, gpu = estimate(SMALL, Training()), GPUS["T4"]
    ranges = {True: (1, gpu.size), False: (gpu.size + 1, gpu.size + 2), None: (gpu.size, gpu.size + 1)}
    found = summary(replace(needed, gpu_range=ranges[fits]), gpu)
    assert found["verdict"] == verdict
    assert verdict in found["sentence"]


def test_speed_is_told_only_where_the_peak_is_known():
    lean = estimate(SMALL, Training(precision="fp16"))
    assert samples_per_second(lean, GPUS["T4"], 0.5) == pytest.approx(0.5 * 65e12 / lean.flops)
    assert samples_per_second(estimate(SMALL, Training(precision="bf16")), GPUS["T4"], 0.5) is None
    assert samples_per_second(estimate(SMALL, Training(precision="bf16")), GPUS["L4"], 0.5) is not None
    assert "not estimated" in " ".join(details(estimate(SMALL, Training()), GPUS["T4"], 1, 0.5, 50))
    assert f"{lean.sent * 8 / 50e6:,.1f} s at 50 Mbit/s" in " ".join(details(lean, GPUS["T4"], 0, 0.5, 50))


def test_the_knobs_say_what_they_were_given_and_show_its_numbers(calculator):
    training = Training(batch=2, sequence=64)
    needed, gpu = estimate(SMALL, training), GPUS["T4"]
    assert calculator.training == training
    assert calculator.result == needed
    assert summary(needed, gpu)["sentence"] in calculator.verdict.value
    assert largest_batch(SMALL, training, gpu.size, MOST) == MOST
    assert f"surely fits: at least {MOST}." in calculator.verdict.value
    assert all(bytes_text(size) in calculator.bars.value for size in (*needed.gpu.values(), *needed.ram.values()))
    assert calculator.formulas.value == terms_html(needed) + layer_html(needed)


def test_each_knob_recomputes(calculator, monkeypatch):
    monkeypatch.setattr("dalle_lib.dashboard.calculator.result_html", lambda result, gpu: str(result.gpu))
    changes = {
        "batch": 7, "sequence": 96, "optimizer": "adamw8bit", "precision": "fp16", "offload": "optimizer",
        "attention": "eager", "distinct_layers": 1, "checkpointing": True, "accumulates": True, "dropout": True,
        "swarm": True, "reversible": True, "embeddings_32bit": False,
    }  # fmt: skip
    assert set(changes) == set(Training.__dataclass_fields__)
    for knob, value in changes.items():
        widget, before = calculator.knobs[knob], calculator.training
        was, widget.value = widget.value, value
        expected = estimate(SMALL, replace(before, **{knob: None if knob == "sequence" else value}))
        assert calculator.result == expected, knob
        assert calculator.result.training != before, knob
        assert summary(expected, GPUS["T4"])["sentence"] in calculator.verdict.value
        assert calculator.bars.value == str(expected.gpu)
        widget.value = was


def test_gpu_utilisation_and_link_change_the_sentences(calculator):
    calculator.knobs["precision"].value = "fp16"
    calculator.gpu.value, calculator.utilisation.value, calculator.mbit_per_s.value = "L4", 40, 10
    assert "L4 has" in calculator.verdict.value
    assert "40% of 121 TFLOP/s" in calculator.verdict.value
    assert "at 10 Mbit/s" in calculator.verdict.value
    assert "L4: " in calculator.bars.value


def test_what_contradicts_is_said_and_is_undone(calculator):
    calculator.knobs["checkpointing"].value = calculator.knobs["reversible"].value = True
    assert "switch one of them off" in calculator.verdict.value
    assert calculator.result is None
    assert not calculator.bars.value
    calculator.knobs["reversible"].value = False
    assert calculator.result.training.checkpointing
    assert calculator.bars.value


def test_another_model_brings_its_own_lengths(calculator):
    calculator.model.value = "dalle-emoji"
    assert calculator.knobs["sequence"].disabled
    assert calculator.result == estimate("dalle-emoji", Training(batch=2))
    calculator.model.value = OWN
    assert not calculator.knobs["sequence"].disabled
    assert calculator.training.sequence is None
    assert calculator.knobs["sequence"].max == SMALL["n_positions"]


def test_a_pasted_config_is_read_and_a_wrong_one_is_explained(calculator):
    calculator.model.value = "dalle-emoji"
    assert calculator.own.layout.display == "none"
    calculator.model.value = OWN
    assert calculator.own.layout.display is None
    whole = SMALL | {"task_specific_params": {"a": [1]}, "architectures": ["GPT2LMHeadModel"], "n_layer": 3}
    calculator.own.value = json.dumps(whole)
    assert calculator.result == estimate(SMALL | {"n_layer": 3}, Training(batch=2))
    for wrong, said in [
        ("{", "double quotes"), ("gpt2", "owner/name"), ('{"model_type": "opt"}', "model_type"),
        (json.dumps(SMALL | {"n_layer": "many"}), "whole number"),
    ]:  # fmt: skip
        calculator.own.value = wrong
        assert calculator.result is None
        assert said in calculator.verdict.value
    calculator.model.value = "dalle-emoji"
    assert calculator.result == estimate("dalle-emoji", Training(batch=2))


def test_a_config_comes_from_the_hub(hub):
    hub.files["someone/small/config.json"] = json.dumps(SMALL).encode()
    assert read_config("someone/small") == SMALL
    with pytest.raises(ConnectionError, match="paste it instead"):
        read_config("someone/else")


def test_advice_is_drawn_when_it_is_unfolded(calculator):
    assert not calculator.advice.value
    calculator.more.selected_index = 0
    assert "It fits as it is" in calculator.advice.value
    half = estimate(SMALL, Training()).gpu_range[1] // 2
    small = GPU("small", half / 2**30, True, 1)
    drawn = advice_html(SMALL, Training(), small)
    assert "as it is, weights" in drawn
    assert "larger GPU" in drawn


def test_advice_names_each_thing_that_was_switched_on():
    wide = SMALL | {"n_embd": 256, "vocab_size": 20000, "n_positions": 512}
    least = advise(wide, Training(), 0)
    assert len(least) > 2
    drawn = advice_html(wide, Training(), GPU("any", 1e-9, True, 1))
    assert all(f"+ {step.name}, weights" in drawn for step in least[1:])
