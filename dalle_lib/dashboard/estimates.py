"""Estimates of the memory calculator as sentences, tables and bars."""

from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import pairwise

import pandas as pd
from IPython.display import HTML

from dalle_lib.dashboard.bars import Rows, bars_html, bytes_text, formula_of, memory_bars, show_bars
from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.memory import Estimate, Training, advise, estimate, largest_batch
from dalle_lib.memory.advice import Step
from dalle_lib.memory.hardware import GPU

PARAMETER_TERMS = ("weights", "gradients", "optimizer state")
"""Terms that depend on the number of parameters and not on the data."""
_CELL = "style='text-align:left;padding:2px 12px 2px 0;border-bottom:1px solid rgba(128,128,128,0.35)'"


def samples_per_second(result: Estimate, gpu: GPU, utilisation: float) -> float | None:
    """Return sequences per second at a share of the GPU's 16-bit peak; None without 16-bit products or a known peak."""
    precision = result.training.precision
    if gpu.teraflops is None or precision == "fp32" or (precision != "fp16" and not gpu.has_bf16):
        return None
    return result.samples_per_second(gpu.teraflops * 1e12 * utilisation)


def verdict_sentence(result: Estimate, gpu: GPU) -> str:
    """Return whether the training fits `gpu`, and the bytes needed and available, as a sentence."""
    verdict = result.verdict(gpu.size)
    why = ": that depends on the assumed terms" if verdict == "may fit" else ""
    low, high = map(bytes_text, result.gpu_range)
    return f"It {verdict}{why}. It needs {low} to {high}; {gpu.name} has {bytes_text(gpu.size)}."


def details(result: Estimate, gpu: GPU, batch: int, max_batch: int, utilisation: float, mbit_per_s: float) -> list[str]:
    """Return sentences on the largest batch that fits, on the speed and on the traffic.

    `batch` is the result of `largest_batch` up to `max_batch`; `utilisation` is the share of the GPU's peak that is
    reached, `mbit_per_s` the speed of the link.
    """
    speed = samples_per_second(result, gpu, utilisation)
    seconds = result.seconds_to_send(mbit_per_s * 1e6)
    largest = f"at least {batch}" if batch == max_batch else str(batch)
    assumed = f"if {gpu.name} computes at {utilisation:.0%} of its {gpu.teraflops} TFLOP/s and does nothing else"
    unknown = f"not estimated, because no peak of {gpu.name} in {result.training.precision} is known"
    return [
        f"Largest batch that surely fits: {largest}." if batch else "Not even a batch of 1 surely fits.",
        f"{result.parameters:,} parameters; memory peaks in this part of the step: {result.moment}.",
        "Speed: " + (unknown if speed is None else f"{speed:.2g} sequences/s, {assumed}") + ".",
        f"In a swarm, a peer sends {bytes_text(result.sent)} a step: {seconds:,.0f} s at {mbit_per_s:g} Mbit/s.",
    ]


def estimates_of(model: str | Mapping, trainings: Mapping[str, Training]) -> dict[str, Estimate]:
    """Return the estimate of each named training of `model`."""
    return {name: estimate(model, training) for name, training in trainings.items()}


def gpu_bars(estimates: Mapping[str, Estimate], gpu: GPU, terms: Collection[str] | None = None) -> HTML:
    """Return a bar of GPU memory by term for each named estimate, and a line at the memory of `gpu`.

    With `terms`, only these terms are drawn.
    """
    rows = [
        (name, {term: size for term, size in result.gpu.items() if terms is None or term in terms})
        for name, result in estimates.items()
    ]
    return show_bars(rows, [(gpu.name, gpu.size)])


def result_html(result: Estimate, gpu: GPU) -> str:
    """Return a bar of GPU memory, with a line at the memory of `gpu`, and below it a bar of RAM."""
    on_gpu = memory_bars([("GPU", result.gpu)], [(gpu.name, gpu.size)])
    return bars_html(on_gpu) + "<br>" + bars_html(memory_bars([("RAM", result.ram)]))


def advice_bars(steps: Sequence[Step], gpu: GPU) -> HTML:
    """Return a bar for each step of `advise`, and a line at the memory of `gpu`."""
    return show_bars(_rows_of_advice(steps), [(gpu.name, gpu.size)])


def advice_html(model: str | Mapping, training: Training, gpu: GPU) -> str:
    """Return the bars of the techniques to switch on, one after another, until the training fits `gpu`."""
    steps = advise(model, training, gpu.size, gpu.has_bf16, gpu)
    end = "" if steps[-1].fits else "<p>These are all techniques: it needs a larger GPU, or a smaller model.</p>"
    alone = "<p>It fits as it is.</p>" if len(steps) == 1 and steps[0].fits else ""
    return alone + advice_bars(steps, gpu).data + end


def advice_table(steps: Sequence[Step], model: str | Mapping, gpu: GPU) -> pd.DataFrame:
    """Return for each step of `advise` the upper ends of GPU memory and RAM, the verdict and the largest batch."""
    lines = {
        step.name: {
            "GPU memory": bytes_text(step.estimate.gpu_range[1]),
            "RAM": bytes_text(step.estimate.ram_range[1]),
            f"on {gpu.name}": step.estimate.verdict(gpu.size),
            "largest batch": largest_batch(model, step.estimate.training, gpu.size, gpu=gpu),
        }
        for step in steps
    }
    return pd.DataFrame(lines).T


def bytes_per_parameter(estimates: Mapping[str, Estimate]) -> pd.DataFrame:
    """Return the bytes for each parameter of the terms that depend on the parameters, for each named estimate."""
    lines = {
        name: {term: f"{result.gpu[term] / result.parameters:.2f}" for term in PARAMETER_TERMS}
        for name, result in estimates.items()
    }
    return pd.DataFrame(lines).T


def layer_growth(model: str | Mapping, lengths: Sequence[int]) -> pd.DataFrame:
    """Return what one layer keeps with efficient and with eager attention, and its growth from length to length."""
    table = {}
    for kernel in "sdpa", "eager":
        kept = [layer_bytes(estimate(model, Training(sequence=n, attention=kernel))) for n in lengths]
        growth = [after / before for before, after in pairwise(kept)]
        table[kernel] = [bytes_text(size) for size in kept]
        table[f"{kernel}, growth"] = ["", *(f"× {factor:.1f}" for factor in growth)]
    return pd.DataFrame(table, index=pd.Index(lengths, name="sequence"))


def model_table(estimates: Mapping[str, Estimate], gpu: GPU) -> pd.DataFrame:
    """Return for each named model its parameters, the memory of a step, and the share of activations in it."""
    lines = {
        name: {
            "parameters": f"{result.parameters:,}",
            "one step needs": bytes_text(result.gpu_range[1]),
            f"in GPUs like {gpu.name}": f"{result.gpu_range[1] / gpu.size:,.1f}",
            "share of activations": f"{result.gpu.get('activations', 0) / sum(result.gpu.values()):.0%}",
        }
        for name, result in estimates.items()
    }
    return pd.DataFrame(lines).T


def batch_table(model: str | Mapping, estimates: Mapping[str, Estimate], gpu: GPU) -> pd.DataFrame:
    """Return for each named training of `model` where memory peaks, what it needs, and the largest batch on `gpu`."""
    lines = {
        name: {
            "memory peaks in": result.moment,
            f"batch of {result.training.batch}": bytes_text(result.gpu_range[1]),
            f"largest batch on {gpu.name}": largest_batch(model, result.training, gpu.size, gpu=gpu),
        }
        for name, result in estimates.items()
    }
    return pd.DataFrame(lines).T


def sending_table(estimates: Mapping[str, Estimate], mbit_per_s: float) -> pd.DataFrame:
    """Return for each named model what a peer sends for an update, and for how long in 8 and in 32 bits."""
    bits_per_second, lines = mbit_per_s * 1e6, {}
    for name, result in estimates.items():
        bits_in_32 = 2 * 32 * result.parameters  # gradients, and as many bytes of averages
        lines[name] = {
            "an update": bytes_text(result.sent),
            f"at {mbit_per_s:g} Mbit/s": f"{result.seconds_to_send(bits_per_second):,.0f} s",
            "in 32 bits": f"{bits_in_32 / bits_per_second:,.0f} s",
        }
    return pd.DataFrame(lines).T


def layer_bytes(result: Estimate) -> int:
    """Return the bytes that one layer in the middle keeps for the backward pass."""
    return sum(size for _, _, size in result.layer)


def terms_html(result: Estimate) -> str:
    """Return a table of the terms of GPU memory and RAM: bytes and formula."""
    sizes = [*result.gpu.items(), *((f"{term} (RAM)", size) for term, size in result.ram.items())]
    rows = [
        (term, bytes_text(size).replace(" ", "\N{NO-BREAK SPACE}"), formula_of(term.removesuffix(" (RAM)")))
        for term, size in sizes
    ]
    return _table(("term", "bytes", "formula"), rows)


def layer_html(result: Estimate) -> str:
    """Return a table of what one layer in the middle keeps for the backward pass, by operation."""
    rows = [(name, text, bytes_text(size)) for name, text, size in result.layer]
    rows.append(("together", "", bytes_text(layer_bytes(result))))
    note = "b sequences of s positions, h wide, a heads; the number before them is bytes"
    return f"<p>What one layer in the middle keeps ({note}):</p>" + _table(("operation", "formula", "bytes"), rows)


def _rows_of_advice(steps: Sequence[Step]) -> Rows:
    """Return the bar of each step; all but the first are marked as added to the steps before them."""
    return [(f"+ {step.name}" if number else step.name, step.estimate.gpu) for number, step in enumerate(steps)]


def _table(names: tuple[str, ...], rows: list[tuple]) -> str:
    head = "".join(f"<th {_CELL}>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td {_CELL}>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return scrolling(f"<table style='border-collapse:collapse'><tr>{head}</tr>{body}</table>")
