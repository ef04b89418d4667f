"""Estimates as bars, sentences and tables."""

import re
from dataclasses import replace

import pytest

from dalle_lib.dashboard.bars import COLOURS, RAM_TERMS, bars_html, bytes_text, memory_bars
from dalle_lib.dashboard.estimates import (
    PARAMETER_TERMS,
    advice_bars,
    advice_html,
    advice_table,
    batch_table,
    bytes_per_parameter,
    details,
    gpu_bars,
    layer_bytes,
    layer_growth,
    model_table,
    samples_per_second,
    sending_table,
    verdict_sentence,
)
from dalle_lib.memory import GPUS, Training, advise, estimate, largest_batch
from dalle_lib.memory.estimate import TERMS
from dalle_lib.memory.hardware import GPU

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 500}
WIDE = SMALL | {"n_embd": 256, "vocab_size": 20000, "n_positions": 512}
T4 = GPUS["T4"]


def test_bars_have_every_term_in_the_order_of_the_terms():
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


def test_other_terms_have_a_colour_and_small_bars_are_in_megabytes():
    bars = memory_bars([("measured", {"measured peak": 3 * 10**6, "weights": 10**6})]).to_dict()["layer"][0]
    assert bars["encoding"]["color"]["scale"]["domain"] == ["weights", "measured peak"]
    assert len(set(bars["encoding"]["color"]["scale"]["range"])) == 2
    assert bars["encoding"]["x"]["title"] == "MB"
    assert [v["value"] for v in bars["data"]["values"]] == [3, 1]


def test_limits_are_lines_and_parts_have_tooltips_without_a_script():
    chart = memory_bars([("a", {"weights": 10**9})], [("T4", GPUS["T4"].size)])
    lines = [layer["data"]["values"] for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "rule"]
    assert all(values[0]["value"] == pytest.approx(15.83, abs=0.01) for values in lines)
    svg = bars_html(chart)
    assert "<title>a, weights: 1.00 GB. parameters × bytes of a weight" in svg
    assert "T4: 15.8 GB" in svg
    assert "<script" not in svg


def test_totals_stand_in_one_column_beyond_every_bar_and_limit():
    limits = [("T4", 16 * 10**9), ("less", 11 * 10**9)]
    svg = bars_html(memory_bars([("a", {"weights": 10**10}), ("b", {"weights": 2 * 10**9})], limits))
    marks = re.findall(r'<text [^>]*transform="translate\(([\d.]+),[^>]*>([^<]+)</text>', svg)
    totals = [float(x) for x, text in marks if text in ("10.0 GB", "2.00 GB")]
    lines = [
        float(x) for x in re.findall(r'<line [^>]*transform="translate\(([\d.]+),0\)" x2="0" y2="64"[^>]*black', svg)
    ]
    ends = [float(x) for x, text in marks if text == "20"]
    assert len(totals) == len(lines) == 2
    assert totals[0] == totals[1] > max(*lines, *ends)


def test_bars_fit_a_phone_400_pixels_wide_with_all_their_terms_and_the_longest_label():
    sizes = dict.fromkeys(estimate(SMALL, Training(swarm=True, checkpointing=True)).gpu, 10**9)
    page = bars_html(memory_bars([("+ gradient checkpointing", sizes)], [("T4", T4.size)]))
    assert float(re.search(r"min-width:([\d.]+)px", page)[1]) <= 376, "what a saved page leaves of 400"


@pytest.mark.parametrize(
    ("size", "text"),
    [(7, "7 bytes"), (1500, "1.50 kB"), (327_100_000, "327 MB"), (11_410_000_000, "11.4 GB"), (2799e9, "2,799 GB")],
)
def test_bytes_are_written_in_three_digits(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(("fits", "verdict"), [(True, "fits"), (False, "does not fit"), (None, "may fit")])
def test_the_verdict_follows_from_the_range(fits, verdict):
    needed, gpu = estimate(SMALL, Training()), GPUS["T4"]
    ranges = {True: (1, gpu.size), False: (gpu.size + 1, gpu.size + 2), None: (gpu.size, gpu.size + 1)}
    result = replace(needed, gpu_range=ranges[fits])
    assert result.verdict(gpu.size) == verdict
    assert verdict_sentence(result, gpu).startswith(f"It {verdict}")
    assert verdict_sentence(result, gpu).endswith("T4 has 15.8 GB.")


def test_speed_is_estimated_only_where_the_peak_is_known():
    lean = estimate(SMALL, Training(precision="fp16"))
    assert samples_per_second(lean, GPUS["T4"], 0.5) == pytest.approx(0.5 * 65e12 / lean.flops)
    assert samples_per_second(estimate(SMALL, Training(precision="bf16")), GPUS["T4"], 0.5) is None
    assert samples_per_second(estimate(SMALL, Training(precision="bf16")), GPUS["L4"], 0.5) is not None
    assert "not estimated" in " ".join(details(estimate(SMALL, Training()), T4, 1, 8, 0.5, 50))
    assert f"{lean.sent * 8 / 50e6:,.0f} s at 50 Mbit/s" in " ".join(details(lean, T4, 0, 8, 0.5, 50))


def test_advice_names_each_technique_that_was_switched_on():
    every = advise(WIDE, Training(), 0)
    assert len(every) > 2
    drawn = advice_html(WIDE, Training(), GPU("any", 1e-9, True, 1))
    assert all(f"+ {step.name}, weights" in drawn for step in every[1:])
    assert all(f"+ {step.name}, weights" in advice_bars(every, T4).data for step in every[1:])


def test_advice_in_numbers_has_memory_verdict_and_largest_batch():
    steps, gpu = advise(WIDE, Training(), 0), GPU("small", 0.9, True, 1)
    table = advice_table(steps, WIDE, gpu)
    last = steps[-1].estimate
    assert list(table.index) == [step.name for step in steps]
    assert table["GPU memory"].iloc[-1] == bytes_text(last.gpu_range[1])
    assert table["RAM"].iloc[-1] == bytes_text(last.ram_range[1])
    assert table["on small"].iloc[-1] == last.verdict(gpu.size)
    assert table["largest batch"].iloc[0] == largest_batch(WIDE, steps[0].estimate.training, gpu.size)


def test_bars_of_named_estimates_have_the_chosen_terms_and_the_gpus_line():
    drawn = gpu_bars({"one": estimate(SMALL), "two": estimate(SMALL, Training(batch=2))}, T4).data
    assert "one, weights" in drawn
    assert "two, logits and loss" in drawn
    assert "T4: 15.8 GB" in drawn
    chosen = gpu_bars({"one": estimate(SMALL, Training(accumulates=True))}, T4, PARAMETER_TERMS).data
    assert "one, gradients" in chosen
    assert "logits" not in chosen


def test_adam_takes_sixteen_bytes_a_parameter_with_all_gradients():
    table = bytes_per_parameter({"AdamW": estimate(SMALL, Training(accumulates=True))})
    assert dict(table.loc["AdamW"]) == {"weights": "4.00", "gradients": "4.00", "optimizer state": "8.00"}


def test_growth_of_a_layer_is_from_one_length_to_the_next():
    table = layer_growth("gpt2", [512, 1024])
    kept = {n: layer_bytes(estimate("gpt2", Training(sequence=n, attention="eager"))) for n in (512, 1024)}
    assert list(table["eager"]) == [bytes_text(kept[512]), bytes_text(kept[1024])]
    assert list(table["eager, growth"]) == ["", f"× {kept[1024] / kept[512]:.1f}"]
    assert list(table["sdpa, growth"]) == ["", "× 2.0"]


def test_models_are_compared_with_a_gpu():
    result = estimate(SMALL)
    line = model_table({"small": result}, T4).loc["small"]
    assert line["parameters"] == f"{result.parameters:,}"
    assert line["one step needs"] == bytes_text(result.gpu_range[1])
    assert line["in GPUs like T4"] == f"{result.gpu_range[1] / T4.size:.1f}"
    assert line["share of activations"] == f"{result.gpu.get('activations', 0) / sum(result.gpu.values()):.0%}"


def test_trainings_are_compared_by_the_largest_batch():
    gpu, training = GPU("small", 0.9, True, 1), Training(batch=3, checkpointing=True)
    result = estimate(WIDE, training)
    line = batch_table(WIDE, {"lean": result}, gpu).loc["lean"]
    assert line["memory peaks in"] == result.moment
    assert line["batch of 3"] == bytes_text(result.gpu_range[1])
    assert line["largest batch on small"] == largest_batch(WIDE, training, gpu.size)


def test_sending_in_32_bits_takes_four_times_as_long_for_large_tensors():
    large = estimate("gpt2")
    line = sending_table({"gpt2": large}, 50).loc["gpt2"]
    in_8, in_32 = (float(line[name].removesuffix(" s").replace(",", "")) for name in ("at 50 Mbit/s", "in 32 bits"))
    assert line["an update"] == bytes_text(large.sent)
    assert in_8 == round(8 * large.sent / 50e6)
    assert in_32 == pytest.approx(4 * in_8, rel=0.02)


def test_answers_to_the_exercises_of_the_notebook_are_right():
    one, two = (estimate("gpt2", Training(batch=n)).gpu for n in (1, 2))
    assert two["weights"] == one["weights"]
    assert sum(two.values()) < 2 * sum(one.values())

    def kept(length: int, kernel: str) -> int:
        return layer_bytes(estimate("gpt2", Training(sequence=length, attention=kernel)))

    assert kept(512, "eager") < kept(1024, "eager") / 2
    assert kept(512, "sdpa") == kept(1024, "sdpa") / 2
    lean = Training(optimizer="adamw8bit")
    plain, checkpointed = (
        largest_batch("gpt2-large", replace(lean, checkpointing=is_on), T4.size) for is_on in (False, True)
    )
    assert 1 <= plain < checkpointed
    saved = {m: 1 - estimate(m, lean).allocated / estimate(m).allocated for m in ("gpt2-xl", "dalle-paper")}
    assert saved["gpt2-xl"] > saved["dalle-paper"]
