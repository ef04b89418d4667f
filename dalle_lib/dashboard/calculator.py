"""The memory calculator as a widget: each change of a knob shows its verdict, bars, advice and formulas."""

import json
from collections.abc import Mapping
from html import escape
from typing import get_args

import ipywidgets as widgets
from IPython.display import HTML

from dalle_lib.dashboard.estimates import advice_html, details, layer_html, result_html, terms_html, verdict_sentence
from dalle_lib.measurement import read_config
from dalle_lib.memory import GPUS, PRESETS, Estimate, Training, estimate, largest_batch
from dalle_lib.memory.accuracy import in_words
from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.memory.hardware import gpu_named
from dalle_lib.memory.models import MAX_LAYERS
from dalle_lib.memory.presets import describe, preset_name
from dalle_lib.memory.training import AttentionKernel, Offload, OptimizerName, Precision

_WRONG = (ValueError, TypeError, ArithmeticError, AttributeError, ConnectionError)
"""Errors of contradicting knobs, and of configs, which come from strangers."""
LINKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Speeds of links that are offered, in Mbit/s."""
OWN = "another one"
"""The choice in the list of models for one that is no preset."""


class Calculator(widgets.VBox):
    """A widget with knobs for a model, a GPU and each field of `Training`.

    `result` is the estimate, or None if the knobs contradict each other. `model` is the name of a preset or the fields
    of a Hub config, `gpu` what `gpu_named` takes. Batches up to `max_batch` are offered and tried. `mbit_per_s` is the
    speed of the link.

    Raises ValueError for an unknown model or GPU, with the known ones.
    """

    def __init__(
        self,
        model: str | Mapping = "gpt2",
        gpu: str = "T4",
        training: Training | None = None,
        max_batch: int = 512,
        mbit_per_s: float = 50,
    ) -> None:
        training, is_own = training or Training(), not isinstance(model, str)
        self.max_batch = max_batch
        self.config: str | Mapping = model
        self.result: Estimate | None = None
        self.model = _dropdown("model", [*PRESETS, OWN], OWN if is_own else preset_name(model))
        self.own = widgets.Textarea(
            json.dumps(dict(model)) if is_own else "",
            placeholder="owner/name of a model on the Hub, or the text of its config.json; then click elsewhere",
            continuous_update=False,
            layout=widgets.Layout(width="620px", height="60px"),
        )
        chosen = gpu_named(gpu)
        self.gpus = GPUS | {chosen.name: chosen}
        self.gpu = _dropdown("GPU", list(self.gpus), chosen.name)
        self.utilisation = _slider("% of GPU's peak", 30, 10, 60)
        self.mbit_per_s = widgets.SelectionSlider(
            options=sorted({*LINKS, mbit_per_s}), value=mbit_per_s, description="Mbit/s", **_wide()
        )
        self.knobs = _training_knobs(training, max_batch)
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
        """The options that the knobs are set to. Raises ValueError if they contradict each other."""
        values = {name: knob.value for name, knob in self.knobs.items()}
        values |= {name: values[name] or None for name in ("attention", "distinct_layers")}
        values["sequence"] = None if values["sequence"] == self.knobs["sequence"].max else values["sequence"]
        return Training(**values)

    def snapshot(self) -> HTML:
        """Return what the widget shows now as HTML without knobs, for a saved page."""
        own = self.own.value.strip() or json.dumps(self.config)
        settings = [("model", own if self.model.value == OWN else self.model.value), ("GPU", self.gpu.value)]
        settings += [(knob.description, _value_text(knob)) for knob in self.knobs.values()]
        cells = "".join(f"<span>{escape(name)}: <b>{escape(value)}</b></span> " for name, value in settings)
        list_style = "display:flex;flex-wrap:wrap;gap:2px 16px"
        note = "The calculator as it was when this page was saved; its knobs move while the notebook runs."
        return HTML(f"<p><i>{note}</i></p><div style='{list_style}'>{cells}</div>{self.verdict.value}{self.bars.value}")

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """Show the widget where there is one, and its snapshot on saved pages."""
        return super()._repr_mimebundle_(**kwargs) | {"text/html": self.snapshot().data}

    def _change_model(self, _) -> None:
        self._show_own()
        is_own = self.model.value == OWN
        if is_own and not self.own.value.strip():
            self._fail(ValueError("Which model? Enter owner/name on the Hub, or the text of its config.json, above."))
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
        model, length, distinct = describe(self.config), self.knobs["sequence"], self.knobs["distinct_layers"]
        self._is_resizing = True  # otherwise the result would be shown twice
        length.max = model.shape.sequence
        length.value = sequence or length.max
        self._is_resizing = False
        length.disabled = not model.takes_any_length
        distinct.max = model.shape.layers
        distinct.disabled = isinstance(model, DALLEDescription)  # that model defines which layers share weights

    def _update(self, _=None) -> None:
        if self._is_resizing:
            return
        gpu = self.gpus[self.gpu.value]
        try:
            training = self.training
            self.result = result = estimate(self.config, training, gpu=gpu)
            largest = largest_batch(self.config, training, gpu.size, self.max_batch, gpu)
        except _WRONG as error:
            self._fail(error)
            return
        utilisation, mbit_per_s = self.utilisation.value / 100, self.mbit_per_s.value
        lines = details(result, gpu, largest, self.max_batch, utilisation, mbit_per_s)
        text = "<br>".join(map(escape, [*lines, in_words()]))
        verdict = escape(verdict_sentence(result, gpu))
        self.verdict.value = f"<p><b>{verdict}</b></p><div style='line-height:1.5'>{text}</div>"
        self.bars.value = result_html(result, gpu)
        self.formulas.value = terms_html(result) + layer_html(result)
        self._unfold()

    def _unfold(self, _=None) -> None:
        """Show the advice if it is unfolded; as it takes a second, it is not computed otherwise."""
        if self.more.selected_index == 0 and self.result:
            self.advice.value = advice_html(self.config, self.result.training, self.gpus[self.gpu.value])

    def _fail(self, error: Exception) -> None:
        why = "" if isinstance(error, (ValueError, ConnectionError)) else "A size in this config is not possible: "
        self.result = None
        self.verdict.value = f"<p><b>{escape(why + str(error))}</b></p>"
        self.bars.value = self.formulas.value = self.advice.value = ""


def _training_knobs(training: Training, max_batch: int) -> dict[str, widgets.Widget]:
    """Return a knob for each field of `Training`."""
    attentions = [("most efficient", ""), *((name, name) for name in get_args(AttentionKernel))]
    return {
        "batch": _slider("batch", training.batch, 1, max_batch),
        "sequence": _slider("sequence", 1, 1, 1024),
        "optimizer": _dropdown("optimizer", get_args(OptimizerName), training.optimizer),
        "precision": _dropdown("precision", get_args(Precision), training.precision),
        "offload": _dropdown("kept in RAM", get_args(Offload), training.offload),
        "attention": _dropdown("attention", attentions, training.attention or ""),
        "distinct_layers": widgets.BoundedIntText(
            training.distinct_layers or 0, min=0, max=MAX_LAYERS, description="distinct (0: all)", **_wide()
        ),
        "checkpointing": _checkbox("gradient checkpointing", training.checkpointing),
        "reversible": _checkbox("reversible layers (this kit's model has them)", training.reversible),
        "embeddings_32bit": _checkbox("8-bit AdamW: embeddings in 32 bits", training.embeddings_32bit),
        "accumulates": _checkbox("accumulate gradients", training.accumulates),
        "dropout": _checkbox("dropout", training.dropout),
        "swarm": _checkbox("train in a swarm", training.swarm),
    }


def _value_text(knob: widgets.Widget) -> str:
    """Return what a knob is set to, as it reads there."""
    if isinstance(knob, widgets.Checkbox):
        return "on" if knob.value else "off"
    return knob.label if isinstance(knob, widgets.Dropdown) else str(knob.value)


def _wide() -> dict:
    return {"style": {"description_width": "135px"}, "layout": widgets.Layout(width="325px")}


def _dropdown(name: str, options, value) -> widgets.Dropdown:
    return widgets.Dropdown(options=options, value=value, description=name, **_wide())


def _slider(name: str, value: int, low: int, high: int) -> widgets.IntSlider:
    return widgets.IntSlider(value, min=low, max=high, description=name, continuous_update=False, **_wide())


def _checkbox(name: str, value: bool) -> widgets.Checkbox:
    return widgets.Checkbox(value, description=name, indent=False, layout=widgets.Layout(width="325px"))
