"""The calculator as a widget: its knobs, what they recompute, and what it says."""

import json
from dataclasses import replace

import nbformat
import pytest

from dalle_lib.dashboard.bars import bytes_text
from dalle_lib.dashboard.calculator import OWN, Calculator
from dalle_lib.dashboard.estimates import advice_html, layer_html, terms_html, verdict_sentence
from dalle_lib.measurement import read_config
from dalle_lib.memory import GPUS, Estimate, Training, estimate, gpu_named, largest_batch
from dalle_lib.memory.hardware import GPU
from dalle_lib.notebook_run import to_html

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 500}
MAX_BATCH = 8
"""Searching for a larger batch takes seconds."""


def on_t4(model: str | dict, training: Training | None = None) -> Estimate:
    return estimate(model, training, gpu=GPUS["T4"])


@pytest.fixture
def calculator() -> Calculator:
    return Calculator(SMALL, "T4", Training(batch=2, sequence=64), max_batch=MAX_BATCH)


def test_the_knobs_are_set_as_asked_and_the_result_is_shown(calculator):
    training = Training(batch=2, sequence=64)
    needed, gpu = on_t4(SMALL, training), GPUS["T4"]
    assert calculator.training == training
    assert calculator.result == needed
    assert verdict_sentence(needed, gpu) in calculator.verdict.value
    assert largest_batch(SMALL, training, gpu.size, MAX_BATCH, gpu) == MAX_BATCH
    assert f"surely fits: at least {MAX_BATCH}." in calculator.verdict.value
    assert all(bytes_text(size) in calculator.bars.value for size in (*needed.gpu.values(), *needed.ram.values()))
    assert calculator.formulas.value == terms_html(needed) + layer_html(needed)


def test_it_starts_at_any_speed_of_link():
    calculator = Calculator(SMALL, training=Training(sequence=64), max_batch=MAX_BATCH, mbit_per_s=30)
    assert " at 30 Mbit/s" in calculator.verdict.value + calculator.bars.value + calculator.advice.value
    assert calculator.mbit_per_s.options[4:7] == (20, 30, 50)


def test_a_saved_page_shows_the_calculator_without_the_widget(calculator):
    calculator.knobs["optimizer"].value, calculator.knobs["checkpointing"].value = "adamw8bit", True
    snapshot = calculator._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in snapshot
    shown = snapshot["text/html"]
    assert calculator.verdict.value in shown
    assert calculator.bars.value in shown
    settings = {"batch": "2", "sequence": "64", "optimizer": "adamw8bit", "gradient checkpointing": "on",
                "dropout": "off", "attention": "most efficient", "GPU": "T4"}  # fmt: skip
    for name, value in settings.items():
        assert f"<span>{name}: <b>{value}</b></span>" in shown
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("Calculator()")])
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", data=snapshot)]
    model = {"model_module": "@jupyter-widgets/controls", "model_name": "HTMLModel", "state": {}}
    kept = {"state": {"id": model}, "version_major": 2, "version_minor": 0}
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": kept}
    page = to_html(notebook)
    assert "as it was when this page was saved" in page
    assert "https://unpkg.com" not in page, "a page needs nobody else"
    assert "widgets" in notebook.metadata


def test_each_knob_changes_the_result(calculator, monkeypatch):
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
        expected = on_t4(SMALL, replace(before, **{knob: None if knob == "sequence" else value}))
        assert calculator.result == expected, knob
        assert calculator.result.training != before, knob
        assert verdict_sentence(expected, GPUS["T4"]) in calculator.verdict.value
        assert calculator.bars.value == str(expected.gpu)
        widget.value = was


def test_gpu_utilisation_and_link_change_the_sentences(calculator):
    calculator.knobs["precision"].value = "fp16"
    calculator.gpu.value, calculator.utilisation.value, calculator.mbit_per_s.value = "L4", 40, 10
    assert "L4 has" in calculator.verdict.value
    assert "at 40% of its 121 TFLOP/s" in calculator.verdict.value
    assert "at 10 Mbit/s" in calculator.verdict.value
    assert "L4: " in calculator.bars.value


def test_knobs_that_contradict_are_explained_until_they_are_set_back(calculator):
    calculator.knobs["checkpointing"].value = calculator.knobs["reversible"].value = True
    assert "switch one of them off" in calculator.verdict.value
    assert calculator.result is None
    assert not calculator.bars.value
    calculator.knobs["reversible"].value = False
    assert calculator.result.training.checkpointing
    assert calculator.bars.value


def test_another_model_sets_its_own_longest_sequence(calculator):
    calculator.model.value = "dalle-emoji"
    assert calculator.knobs["sequence"].disabled
    assert calculator.result == on_t4("dalle-emoji", Training(batch=2))
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
    assert calculator.result == on_t4(SMALL | {"n_layer": 3}, Training(batch=2))
    for wrong, said in [
        ("{", "double quotes"), ("gpt2", "owner/name"), ('{"model_type": "opt"}', "model_type"),
        (json.dumps(SMALL | {"n_layer": "many"}), "whole number"),
    ]:  # fmt: skip
        calculator.own.value = wrong
        assert calculator.result is None
        assert said in calculator.verdict.value
    calculator.model.value = "dalle-emoji"
    assert calculator.result == on_t4("dalle-emoji", Training(batch=2))


def test_a_config_comes_from_the_hub(hub):
    hub.add("someone/small", {"config.json": json.dumps(SMALL).encode()})
    assert read_config("someone/small") == SMALL
    with pytest.raises(ConnectionError, match=r"gave no config\.json of someone/else .* paste its text instead"):
        read_config("someone/else")


def test_without_a_network_the_hub_is_asked_once_and_the_answer_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("this would try for half a minute"))
    with pytest.raises(
        ConnectionError, match="the Hub cannot be asked for someone/model, which is not on this machine"
    ):
        read_config("someone/model")


def test_an_unknown_model_or_gpu_is_refused_with_the_known_ones_and_a_gpu_may_be_a_size():
    with pytest.raises(ValueError, match="unknown model 'gpt5': did you mean gpt2"):
        Calculator("gpt5")
    with pytest.raises(ValueError, match="unknown GPU 'T5': expected one of T4"):
        Calculator(SMALL, "T5", max_batch=MAX_BATCH)
    sized = Calculator(SMALL, "24", Training(sequence=64, precision="fp16"), max_batch=MAX_BATCH)
    assert verdict_sentence(sized.result, gpu_named("24")) in sized.verdict.value
    assert "no peak of a GPU with 24 GiB in fp16 is known" in sized.verdict.value
    assert Calculator("GPT2", "t4", max_batch=1).result == on_t4("gpt2")


def test_advice_is_drawn_when_it_is_unfolded(calculator):
    assert not calculator.advice.value
    calculator.more.selected_index = 0
    assert "It fits as it is" in calculator.advice.value
    half = estimate(SMALL, Training()).gpu_range[1] // 2
    small = GPU("small", half / 2**30, True, 1)
    drawn = advice_html(SMALL, Training(), small)
    assert "as it is, weights" in drawn
    assert "larger GPU" in drawn
