"""The functions of the tutorial notebook, and its tables and charts."""

import re
from dataclasses import replace

import pytest
import torch

from dalle_lib.dashboard.lessons import (
    REST,
    distances_from,
    error_text,
    ladder_table,
    losses_of,
    measured_terms,
    packing,
    quantisation,
    statistics_table,
)
from dalle_lib.measurement import Measurement, optimizer_of
from dalle_lib.memory import GPUS, Training, estimate
from dalle_lib.streaming import TEXT, TEXT_MODEL, stream_text
from dalle_lib.tutorial import (
    choose_preset,
    continuations,
    evaluate,
    fingerprint,
    load_checkpoint,
    load_gpt2,
    save_checkpoint,
)

EIGHT_BIT = Training(optimizer="adamw8bit")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TEXT_MODEL)


@pytest.fixture
def tiny():
    return choose_preset("tiny")


def test_without_a_gpu_the_small_model_is_chosen_and_the_reason_is_given(tiny):
    chosen = choose_preset("auto")
    assert (chosen.name, chosen.device) == ("tiny", "cpu")
    assert "no GPU here" in chosen.describe()
    assert "you asked for it" in tiny.why or "no GPU here" in tiny.why
    with pytest.raises(ValueError, match="but there is no GPU here: choose auto or tiny"):
        choose_preset("gpt2-large")
    with pytest.raises(ValueError, match="auto, tiny or gpt2-large"):
        choose_preset("gpt5")


def test_gpt2_large_fits_a_t4_as_the_notebook_trains_it():
    lean = {"optimizer": "adamw8bit", "checkpointing": True, "precision": "fp16"}
    assert estimate("gpt2-large", Training(**lean, batch=4)).fits(GPUS["T4"].size)
    assert estimate("gpt2-large", Training(**lean | {"optimizer": "adamw"})).fits(GPUS["T4"].size)
    assert not estimate("gpt2-large", Training()).fits(GPUS["T4"].size)


def test_a_loaded_training_continues_bit_for_bit(tiny, tokenizer, tmp_path):
    def new(folder):
        model = load_gpt2(folder, tiny)
        return model, optimizer_of(EIGHT_BIT, model.parameters(), 1e-3, model)

    def step(model, optimizer, stream):
        ids = next(stream)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    scaler, stream = torch.amp.GradScaler("cpu", enabled=False), stream_text(TEXT, tokenizer, length=64)
    model, optimizer = new(TEXT_MODEL)
    step(model, optimizer, stream)
    save_checkpoint(tmp_path, model, optimizer, scaler, stream)
    saved = fingerprint(model, optimizer)
    step(model, optimizer, stream)

    again, there = new(tmp_path), stream_text(TEXT, tokenizer, length=64)
    load_checkpoint(tmp_path, again[1], scaler, there)
    assert fingerprint(*again) == saved != fingerprint(model, optimizer)
    step(*again, there)
    assert fingerprint(*again) == fingerprint(model, optimizer)


def test_the_loss_is_the_mean_over_batches_and_training_goes_on_without_dropout(tiny, tokenizer):
    model = load_gpt2(TEXT_MODEL, tiny)
    batches = [
        torch.stack([next(blocks) for _ in range(2)]) for blocks in [stream_text(TEXT, tokenizer, length=40)] * 3
    ]
    logits = [model(input_ids=ids).logits[:, :-1].flatten(0, 1) for ids in batches]
    each = [torch.nn.functional.cross_entropy(x, ids[:, 1:].flatten()) for x, ids in zip(logits, batches, strict=True)]
    assert evaluate(model, batches) == pytest.approx(torch.stack(each).mean().item(), abs=1e-5)
    assert model.training
    assert torch.equal(model(input_ids=batches[0]).logits, model(input_ids=batches[0]).logits)


def test_the_same_seed_writes_the_same(tiny, tokenizer):
    model = load_gpt2(TEXT_MODEL, tiny)
    first, second = (continuations(model, tokenizer, ["The module"], seed=s, tokens=8) for s in (1, 2))
    assert first == continuations(model, tokenizer, ["The module"], seed=1, tokens=8) != second
    assert first[0].startswith("The module")


def test_measurements_are_a_table_in_which_a_training_that_did_not_fit_has_a_line():
    fits = Measurement(
        training=EIGHT_BIT, device="cpu", predicted=99, available=1000, peak=100, weights=40, statistics=25,
        seconds=0.5, losses=[2.0, 1.0],
    )  # fmt: skip
    assert measured_terms(fits) == {"weights": 40, "optimizer state": 25, REST: 35}
    large = Measurement(training=EIGHT_BIT, device="cpu", predicted=9 * 10**9, available=2 * 10**9, error="too large")
    table = ladder_table({"a": fits, "b": large})
    assert list(table["predicted"]) == ["99 bytes", "9.00 GB"]
    assert list(table["measured"]) == ["100 bytes", "does not fit into 2.00 GB"]
    assert list(table["error"]) == ["-1.0%", ""]
    assert list(table["mean loss"]) == ["1.50", ""]
    assert error_text(replace(fits, predicted=10**6, peak=10**6 + 1)) == "under 0.1%"


def test_losses_are_compared_with_those_of_the_reference():
    fits = Measurement(training=EIGHT_BIT, device="cpu", predicted=9, available=99, peak=9, statistics=7, losses=[3, 2])
    runs = {
        "exact": fits,
        "other": replace(fits, losses=[3.5, 1.75]),
        "large": replace(fits, peak=None, error="no room"),
    }
    assert losses_of(runs) == {"exact": [3, 2], "other": [3.5, 1.75]}
    distances = distances_from("exact", losses_of(runs))
    assert distances == {"other": [0.5, 0.25]}
    assert distances_from("large", losses_of(runs)) == {}
    table = statistics_table(runs, distances)
    assert list(table["statistics"]) == ["7 bytes", "7 bytes", "no room"]
    assert list(table["mean distance, nats"]) == ["", "0.4", ""]


def test_packing_shows_each_text_in_its_block():
    blocks = torch.tensor([[5, 6, 0, 7, 8], [9, 0, 4, 4, 4]])
    bars = re.findall(r'aria-label="text token: (\d+); block: (\d)[^"]*"', packing(blocks, end=0).data)
    assert sorted(bars) == [("0", "1"), ("0", "2"), ("2", "2"), ("3", "1")]


def test_blocks_keep_an_outlier_from_the_others(capsys):
    values = torch.randn(512, generator=torch.Generator().manual_seed(1))
    values[100] = 90.0
    quantisation(values, block=128)
    whole, in_blocks = map(float, re.findall(r"mean error is ([\d.]+)%", capsys.readouterr().out))
    assert in_blocks < 0.7 * whole
