"""The functions of the tutorial notebook, and its tables and charts."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from checkout import ROOT, source_of

from dalle_lib.dashboard.bars import bytes_text
from dalle_lib.dashboard.lessons import (
    REST,
    differences_from,
    error_text,
    ladder,
    ladder_table,
    map_chart,
    measured_terms,
    packing,
    statistics_by_kind,
    storage_table,
)
from dalle_lib.measurement import Measurement, measure, optimizer_of
from dalle_lib.memory import GPUS, Training, estimate, largest_batch
from dalle_lib.optimizer import blockwise
from dalle_lib.optimizer.blockwise import codebook
from dalle_lib.streaming import TEXT, TEXT_MODEL, stream_text
from dalle_lib.tutorial import (
    ByHand,
    choose_preset,
    continuations,
    evaluate,
    fingerprint,
    load_checkpoint,
    load_gpt2,
    save_checkpoint,
    short_training,
)

EIGHT_BIT = Training(optimizer="adamw8bit")
LESSON = ROOT / "notebooks" / "03_gpt2_large_8bit_c4.ipynb"


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
    assert estimate("gpt2-large", Training(**lean | {"optimizer": "adamw"})).fits(GPUS["T4"].size) is None
    assert not estimate("gpt2-large", Training()).fits(GPUS["T4"].size)
    largest = [
        largest_batch("gpt2-large", Training(**lean, offload=o), GPUS["T4"].size) for o in ("none", "statistics")
    ]
    assert largest == [7, 9], "the answer to the last exercise of notebook 03"


def test_a_loaded_training_continues_bit_for_bit(tiny, tokenizer, tmp_path, capfd):
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
    assert "%|" not in capfd.readouterr().err, "no progress bar is left on a saved page"


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
        training=EIGHT_BIT, device="cpu", predicted=99, available=1000, peak=100, weights=40,
        statistics=25, gradients=5, seconds=0.5, losses=[2.0, 1.0],
    )  # fmt: skip
    parts = {"weights": 40, "gradients": 5, "optimizer state": 25}
    assert measured_terms(fits) == parts | {REST: 30}
    assert measured_terms(replace(fits, peaks_in_optimizer_step=True)) == parts | {"optimizer step": 30}
    large = Measurement(training=EIGHT_BIT, device="cpu", predicted=9 * 10**9, available=2 * 10**9, error="too large")
    table = ladder_table({"a": fits, "b": large})
    assert list(table["predicted"]) == ["99 bytes", "9.00 GB"]
    assert list(table["measured"]) == ["100 bytes", "does not fit into 2.00 GB"]
    assert list(table["error"]) == ["-1.00%", ""]
    assert error_text(replace(fits, predicted=100_020, peak=10**5)) == "+0.02%"
    assert error_text(replace(fits, predicted=99_999, peak=10**5)) == "under 0.01%"
    assert list(table["mean loss"]) == ["1.50", ""]


def test_curves_become_their_differences_from_one_of_them():
    curves = {"exact": [3, 2], "other": [3.5, 1.75]}
    assert differences_from("exact", curves) == {"other": [0.5, -0.25]}


def test_only_the_last_measurement_is_drawn_and_both_bars_have_the_same_terms():
    config = json.loads((TEXT_MODEL / "config.json").read_text())
    trainings = Training(sequence=64), replace(EIGHT_BIT, sequence=64, checkpointing=True)
    first, last = (measure(TEXT_MODEL, training, steps=1, device="cpu") for training in trainings)
    assert max(abs(first.prediction_error), abs(last.prediction_error)) < 0.05
    shown = ladder({"first": first, "last": last}, config).data
    assert re.findall("<td>(first|last)</td>", shown) == ["first", "last"]
    terms = [re.findall(rf"<title>{kind}, ([^:]+):", shown) for kind in ("predicted", "measured")]
    assert terms[0] == terms[1]
    assert sorted(terms[0]) == ["gradients", "optimizer state", "optimizer step", "weights"]
    assert f"weights: {bytes_text(last.weights)}" in shown
    assert f">{bytes_text(last.peak)}</text>" in shown
    assert f">{bytes_text(first.peak)}</text>" not in shown


def test_stored_values_are_compared_by_error_and_by_what_became_0():
    values = torch.tensor([1.0, 2.0, 0.0, -1.0])
    table = storage_table(values, {"same": values, "worse": torch.tensor([1.5, 2.0, 0.0, 0.0])})
    assert list(table["became 0"]) == ["0.0%", "33.3%"]
    assert list(table["mean error, of the mean magnitude"]) == ["0.00%", "37.50%"]
    assert list(table["median error, of the value"]) == ["0.00%", "50.00%"]


def test_statistics_are_counted_by_kind_of_tensor(tiny):
    """What is left in 32 bits explains why the small model's statistics shrink by half and not to a quarter."""
    model = load_gpt2(TEXT_MODEL, tiny)
    optimizers = {}
    for kept in (True, False):
        training = replace(EIGHT_BIT, embeddings_32bit=kept)
        optimizers[f"kept {kept}"] = optimizer = optimizer_of(training, model.parameters(), 1e-3, model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    table = statistics_by_kind(optimizers, model)
    counts = {kind: int(text.replace(",", "")) for kind, text in table["parameters"].items()}
    assert counts["all"] == sum(p.numel() for p in model.parameters())
    assert counts["embeddings"] == sum(p.numel() for p in (model.transformer.wte.weight, model.transformer.wpe.weight))
    assert (
        table.loc["embeddings", "kept True"]
        == table.loc["embeddings", "32 bits"]
        != table.loc["embeddings", "kept False"]
    )
    assert table.loc["matrices", "kept True"] == bytes_text(2 * counts["matrices"] * (1 + 4 / 256))
    config = json.loads((TEXT_MODEL / "config.json").read_text())
    assert table.loc["all", "kept True"] == bytes_text(estimate(config, EIGHT_BIT, "cpu").gpu["optimizer state"])


def test_the_lines_of_the_notebook_are_adam_in_eight_bits(tiny):
    """The notebook's own `quantize`, `dequantize` and `adam_step` agree with the kit's and with torch."""
    lines = {"torch": torch}
    exec(source_of(LESSON, "def quantize("), lines)
    exec(source_of(LESSON, "def adam_step(").split("exact =")[0], lines)
    values = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    for is_signed in (True, False):
        table, of = codebook(is_signed, values.device), values if is_signed else values.abs()
        mine = lines["dequantize"](*lines["quantize"](of, table, 64), table, values.shape)
        kits = blockwise.dequantize(*blockwise.quantize(of, is_signed, 64), is_signed, 64)
        assert torch.isclose(mine, kits, rtol=0.01).float().mean() > 0.97  # the kit's rounds to float16 before
        assert (mine - of).abs().max() < 0.05 * of.abs().max()

    def by_torch(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    exact = short_training(partial(ByHand, adam_step=lines["adam_step"], store=lambda v, of: v), steps=3, batch=1)
    assert exact.losses == pytest.approx(short_training(by_torch, steps=3, batch=1).losses, abs=1e-4)


def test_statistics_are_what_the_store_leaves_of_them():
    seen = []

    def store(values, of):
        seen.append(of)
        return values * 0

    def step(weight, gradient, m, r, number):
        assert not m.any()
        return weight - 1, m + gradient, r + number

    model = torch.nn.Linear(2, 3)
    before = model.weight.detach().clone()
    model(torch.ones(2)).sum().backward()
    optimizer = ByHand(model, step, store)
    optimizer.step()
    optimizer.step()
    assert torch.allclose(model.weight, before - 2)
    assert seen == ["m", "r"] * 4


def test_a_chart_of_maps_has_a_tick_for_each_entry_and_bars_of_the_values():
    shown = map_chart({"a": torch.tensor([-1.0, 0.0, 0.5, 1.0]), "b": torch.tensor([0.25])}, torch.tensor([0.5, 1e-3]))
    assert len(re.findall(r'aria-label="share [^"]*map: [ab]"', shown.data)) == 3
    assert len(re.findall(r'aria-label="share [^"]*end: [^"]*"', shown.data)) == 2


def test_packing_shows_each_text_in_its_block():
    blocks = torch.tensor([[5, 6, 0, 7, 8], [9, 0, 4, 4, 4]])
    bars = re.findall(r'aria-label="text token: (\d+); block: (\d)[^"]*"', packing(blocks, end=0).data)
    assert sorted(bars) == [("0", "1"), ("0", "2"), ("2", "2"), ("3", "1")]
