"""The memory calculator as knobs: bars, a verdict, advice and formulas, anew at each change."""

import json
from collections.abc import Mapping
from html import escape
from typing import get_args

import ipywidgets as widgets

from dalle_lib.dashboard.bars import bars_html, bytes_text, formula_of, memory_bars
from dalle_lib.measurement import read_config
from dalle_lib.memory import GPUS, PRESETS, Estimate, Training, advise, estimate, largest_batch
from dalle_lib.memory.accuracy import in_words
from dalle_lib.memory.hardware import GPU
from dalle_lib.memory.presets import build
from dalle_lib.memory.training import AttentionKernel, Offload, OptimizerName, Precision

_WRONG = (ValueError, TypeError, ArithmeticError, AttributeError, ConnectionError)
"""What knobs that contradict raise, and configs, which come from strangers."""
OWN = "another one"
"""Chosen for a model that is no preset."""
MOST = 512
"""The largest batch that the slider offers, and that is looked for."""
_CELL = "style='text-align:left;padding:2px 12px 2px 0;border-bottom:1px solid rgba(128,128,128,0.35)'"


def samples_per_second(result: Estimate, gpu: GPU, utilisation: float) -> float | None:
    """Return sequences a second at a share of the GPU's 16-bit peak; None where it does not compute in 16 bits."""
    precision = result.training.precision
    if precision == "fp32" or (precision != "fp16" and not gpu.has_bf16):
        return None
    return result.samples_per_second(gpu.teraflops * 1e12 * utilisation)


def summary(result: Estimate, gpu: GPU) -> dict:
    """Return the verdict, the range in GB, and both as a sentence."""
    low, high = (size / 1e9 for size in result.gpu_range)
    verdict = result.verdict(gpu.size)
    why = ": what is assumed, not known, decides" if verdict == "may fit" else ""
    sentence = f"It {verdict}{why}: {low:.2f} to {high:.2f} GB are needed, {gpu.name} has {gpu.size / 1e9:.2f} GB."
    return {"verdict": verdict, "low_gb": low, "high_gb": high, "sentence": sentence}


def details(result: Estimate, gpu: GPU, batch: int, utilisation: float, mbit_per_s: float) -> list[str]:
    """Return sentences on the largest batch (`batch`, 0 if none), speed and what is sent."""
    speed = samples_per_second(result, gpu, utilisation)
    seconds = result.seconds_to_send(mbit_per_s * 1e6)
    most = f"at least {batch}" if batch == MOST else str(batch)
    assumed = f"assuming {utilisation:.0%} of {gpu.teraflops:g} TFLOP/s and nothing else to do"
    unknown = f"not estimated, for {gpu.name} no peak is known in {result.training.precision}"
    return [
        f"Largest batch that surely fits: {most}." if batch else "Not even a batch of 1 surely fits.",
        f"{result.parameters:,} parameters; the highest moment is in: {result.moment}.",
        "Speed: " + (unknown if speed is None else f"{speed:.3g} sequences/s, {assumed}") + ".",
        f"In a swarm, a peer sends {bytes_text(result.sent)} a step: {seconds:,.1f} s at {mbit_per_s:g} Mbit/s.",
    ]


def result_html(result: Estimate, gpu: GPU) -> str:
    """Return the bars: what is needed of the GPU and its size, and what is needed of RAM."""
    on_gpu = memory_bars([("GPU", result.gpu)], [(gpu.name, gpu.size)])
    return bars_html(on_gpu) + "<br>" + bars_html(memory_bars([("RAM", result.ram)]))


def advice_html(model: str | Mapping, training: Training, gpu: GPU) -> str:
    """Return bars before and after each thing to switch on, one after another, until it fits."""
    steps = advise(model, training, gpu.size, gpu.has_bf16)
    rows = [(f"+ {step.name}" if number else step.name, step.estimate.gpu) for number, step in enumerate(steps)]
    end = "" if steps[-1].fits else "<p>That is all there is: it needs a larger GPU, or a smaller model.</p>"
    alone = "<p>It fits as it is.</p>" if len(steps) == 1 and steps[0].fits else ""
    return alone + bars_html(memory_bars(rows, [(gpu.name, gpu.size)])) + end


def terms_html(result: Estimate) -> str:
    """Return each term's bytes and formula."""
    sizes = [*result.gpu.items(), *((f"{term} (RAM)", size) for term, size in result.ram.items())]
    rows = [(term, bytes_text(size), formula_of(term.removesuffix(" (RAM)"))) for term, size in sizes]
    return _table(("term", "bytes", "where it comes from"), rows)


def layer_html(result: Estimate) -> str:
    """Return what one layer in the middle keeps for the backward pass."""
    total = bytes_text(sum(size for _, _, size in result.layer))
    rows = [*((name, text, bytes_text(size)) for name, text, size in result.layer), ("together", "", total)]
    note = "b sequences of s tokens, h wide, a heads; the number before them is bytes"
    return f"<p>What one layer in the middle keeps ({note}):</p>" + _table(("operation", "formula", "bytes"), rows)


class Calculator(widgets.VBox):
    """Knobs for a model, a GPU and all of `Training`; `result` is the estimate, None if the knobs contradict.

    `model` is a preset's name or a Hub config's fields.
    """

    def __init__(self, model: str | Mapping = "gpt2", gpu: str = "T4", training: Training | None = None) -> None:
        training, is_own = training or Training(), not isinstance(model, str)
        self.config: str | Mapping = model
        self.result: Estimate | None = None
        self.model = _dropdown("model", [*PRESETS, OWN], OWN if is_own else model)
        self.own = widgets.Textarea(
            json.dumps(dict(model)) if is_own else "",
            placeholder="owner/name on the Hub, or its config.json pasted; then click elsewhere",
            continuous_update=False,
            layout=widgets.Layout(width="620px", height="60px"),
        )
        self.gpu = _dropdown("GPU", list(GPUS), gpu)
        self.utilisation = _slider("% of GPU's peak", 30, 10, 60)
        self.mbit_per_s = widgets.SelectionSlider(
            options=[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], value=50, description="Mbit/s", **_wide()
        )
        self.knobs = _training_knobs(training)
        self.verdict, self.bars, self.advice, self.formulas = (widgets.HTML() for _ in range(4))
        self.more = widgets.Accordion([self.advice, self.formulas], selected_index=None)
        for number, title in enumerate(("What to switch on", "Formulas")):
            self.more.set_title(number, title)
        self._set_lengths(training.sequence)
        self.model.observe(self._change_model, "value")
        self.own.observe(self._change_model, "value")
        for knob in (*self.knobs.values(), self.gpu, self.utilisation, self.mbit_per_s):
            knob.observe(self._update, "value")
        self.more.observe(self._unfold, "selected_index")
        wrap = widgets.Layout(flex_flow="row wrap", max_width="1000px")
        above = [self.model, self.gpu, *self.knobs.values(), self.utilisation, self.mbit_per_s]
        super().__init__([widgets.Box(above, layout=wrap), self.own, self.verdict, self.bars, self.more])
        self._show_own()
        self._update()

    @property
    def training(self) -> Training:
        """What the knobs say. Raises ValueError if they contradict."""
        values = {name: knob.value for name, knob in self.knobs.items()}
        values |= {name: values[name] or None for name in ("attention", "distinct_layers")}
        values["sequence"] = None if values["sequence"] == self.knobs["sequence"].max else values["sequence"]
        return Training(**values)

    def _change_model(self, _) -> None:
        self._show_own()
        is_own = self.model.value == OWN
        if is_own and not self.own.value.strip():
            self._fail(ValueError("Which model? Its config.json, or owner/name on the Hub, goes into the field above."))
            return
        self.verdict.value = "Reading ..."
        try:
            self.config = read_config(self.own.value) if is_own else self.model.value
            self._set_lengths(None)
        except _WRONG as error:
            self._fail(error)
        else:
            self._update()

    def _show_own(self) -> None:
        self.own.layout.display = None if self.model.value == OWN else "none"

    def _set_lengths(self, sequence: int | None) -> None:
        model, length, distinct = build(self.config), self.knobs["sequence"], self.knobs["distinct_layers"]
        self._is_resizing = True  # else a new length is shown twice
        length.max = model.shape.sequence
        length.value = sequence or length.max
        self._is_resizing = False
        length.disabled = not model.takes_any_length
        distinct.max = model.shape.layers
        distinct.disabled = type(model).__name__ == "DALLE"  # which layers share is part of that model

    def _update(self, _=None) -> None:
        if self._is_resizing:
            return
        gpu = GPUS[self.gpu.value]
        try:
            training = self.training
            self.result = result = estimate(self.config, training)
            largest = largest_batch(self.config, training, gpu.size, MOST)
        except _WRONG as error:
            self._fail(error)
            return
        lines = details(result, gpu, largest, self.utilisation.value / 100, self.mbit_per_s.value)
        text = "<br>".join(map(escape, [*lines, in_words()]))
        self.verdict.value = (
            f"<p><b>{escape(summary(result, gpu)['sentence'])}</b></p><div style='line-height:1.5'>{text}</div>"
        )
        self.bars.value = result_html(result, gpu)
        self.formulas.value = terms_html(result) + layer_html(result)
        self._unfold()

    def _unfold(self, _=None) -> None:
        """Look for advice only when it is seen: it takes a second."""
        if self.more.selected_index == 0 and self.result:
            self.advice.value = advice_html(self.config, self.result.training, GPUS[self.gpu.value])

    def _fail(self, error: Exception) -> None:
        why = "" if isinstance(error, (ValueError, ConnectionError)) else "A size of this config makes no sense: "
        self.result = None
        self.verdict.value = f"<p><b>{escape(why + str(error))}</b></p>"
        self.bars.value = self.formulas.value = self.advice.value = ""


def _training_knobs(training: Training) -> dict[str, widgets.Widget]:
    """Return a knob for each field of Training."""
    attentions = [("the model's best", ""), *((name, name) for name in get_args(AttentionKernel))]
    return {
        "batch": _slider("batch", training.batch, 1, MOST),
        "sequence": _slider("sequence", 1, 1, 1024),
        "optimizer": _dropdown("optimizer", get_args(OptimizerName), training.optimizer),
        "precision": _dropdown("precision", get_args(Precision), training.precision),
        "offload": _dropdown("kept in RAM", get_args(Offload), training.offload),
        "attention": _dropdown("attention", attentions, training.attention or ""),
        "distinct_layers": widgets.BoundedIntText(
            training.distinct_layers or 0, min=0, max=1000, description="distinct (0: all)", **_wide()
        ),
        "checkpointing": _checkbox("gradient checkpointing", training.checkpointing),
        "reversible": _checkbox("reversible layers (this kit's own model has them)", training.reversible),
        "embeddings_32bit": _checkbox("8-bit AdamW: embeddings in 32 bits", training.embeddings_32bit),
        "accumulates": _checkbox("accumulate gradients", training.accumulates),
        "dropout": _checkbox("dropout", training.dropout),
        "swarm": _checkbox("train in a swarm", training.swarm),
    }


def _wide() -> dict:
    return {"style": {"description_width": "135px"}, "layout": widgets.Layout(width="325px")}


def _dropdown(name: str, options, value) -> widgets.Dropdown:
    return widgets.Dropdown(options=options, value=value, description=name, **_wide())


def _slider(name: str, value: int, least: int, most: int) -> widgets.IntSlider:
    return widgets.IntSlider(value, min=least, max=most, description=name, continuous_update=False, **_wide())


def _checkbox(name: str, value: bool) -> widgets.Checkbox:
    return widgets.Checkbox(value, description=name, indent=False, layout=widgets.Layout(width="325px"))


def _table(names: tuple[str, ...], rows: list[tuple]) -> str:
    head = "".join(f"<th {_CELL}>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td {_CELL}>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table style='border-collapse:collapse'><tr>{head}</tr>{body}</table>"
