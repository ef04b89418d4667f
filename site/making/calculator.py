"""The memory calculator and the planner for their pages: the Python code itself in JavaScript, and what the pages offer."""

import ast
import json
from dataclasses import fields
from inspect import getsource
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from machinery.translation.world import World

from dalle_lib.cli.run.plan import PAPER, describe_plan
from dalle_lib.dashboard import bars, estimates
from dalle_lib.dashboard.calculator import Calculator
from dalle_lib.dashboard.charts import SERIES
from dalle_lib.measurement import workload
from dalle_lib.memory import accuracy, advise, estimate, gpu_named, largest_batch, presets
from dalle_lib.memory.estimate import ASSUMED, RAM_TERMS, TERMS
from dalle_lib.memory.training import Training
from dalle_lib.planning import Machines, Work, plan_run, reducers_enough, what_if
from dalle_lib.run import EMBEDDED_RUNS, RunCard

ROOTS = [
    estimate, advise, largest_batch, gpu_named, Training, presets.describe, workload._with_sizes, accuracy.in_words,
    estimates.verdict_sentence, estimates.details, estimates.layer_bytes, bars.bytes_text, bars.formula_of,
    Machines, Work, plan_run, reducers_enough, what_if, describe_plan,
]  # fmt: skip
"""What the pages call."""
LEFT_OUT = frozenset(
    ("names.did_you_mean", "planning_machines.Machines.parse")
    + tuple(f"planning_work.Work.{name}" for name in ("of", "paper", "_of"))
)
"""What they never call, and what has no translation: it reads run cards, or texts of a command line."""
PHASES = ("computing", "last batch", "matchmaking", "averaging", "step", "parameters")
"""The phases of an epoch, as `dalle_lib.planning` names them."""
HEADER = "// Made from the Python sources of dalle_lib by site/making/calculator.py.\n"


def make(made: Path) -> None:
    """Write the translated code, and what the pages offer to choose from."""
    static = made / "static"
    static.mkdir(parents=True, exist_ok=True)
    works = {PAPER: Work.paper()} | {name: Work.of(RunCard.load(name)) for name in EMBEDDED_RUNS}
    code = World(LEFT_OUT).translate(ROOTS, {"works": works})
    (static / "calculator_model.js").write_text(HEADER + code, encoding="utf-8")
    told = json.dumps(offered(), ensure_ascii=False, indent=1)
    (static / "calculator_offer.js").write_text(f'{HEADER}"use strict";\ndalle.offer = {told};\n', encoding="utf-8")


def offered() -> dict[str, Any]:
    """Return what the forms of both pages offer: knobs with their labels and choices, the runs, the fields of machines."""
    calculator = Calculator()
    knobs = {"model": calculator.model, "gpu": calculator.gpu, **calculator.knobs}
    knobs |= {"utilisation": calculator.utilisation, "mbit_per_s": calculator.mbit_per_s}
    about = told_of(Training)
    return {
        "knobs": [knob_of(name, knob) | {"about": about.get(name, "")} for name, knob in knobs.items()],
        "max_batch": calculator.max_batch,
        "colours": bars.COLOURS | dict(zip(PHASES, SERIES, strict=False)),
        "terms": list(TERMS),
        "ram_terms": list(RAM_TERMS),
        "assumed": list(ASSUMED),
        "runs": [PAPER, *EMBEDDED_RUNS],
        "machines": [field_of(field, told_of(Machines)) for field in fields(Machines)],
        "work": {name: told_of(Work)[name] for name in ("epochs", "target_batch_size", "matchmaking_s")},
    }


def knob_of(name: str, knob: widgets.Widget) -> dict[str, Any]:
    """Return a knob of the notebook's calculator as data: its label, its kind, what it can be set to and its setting."""
    told = {"name": name, "label": knob.description, "value": knob.value}
    if isinstance(knob, widgets.Checkbox):
        return told | {"kind": "switch"}
    if isinstance(knob, widgets.Dropdown | widgets.SelectionSlider):
        pairs = [list(one) if isinstance(one, tuple) else [str(one), one] for one in knob.options]
        return told | {"kind": "choice", "options": pairs}
    return told | {"kind": "number", "min": knob.min, "max": knob.max}


def field_of(field: Any, about: dict[str, str]) -> dict[str, Any]:
    """Return a field of a group of machines as data: its name, what it says, its kind and its default."""
    default = field.default if isinstance(field.default, str | int | float | bool) else None
    return {"name": field.name, "kind": field.type.__name__, "value": default, "about": about[field.name]}


def told_of(kind: type) -> dict[str, str]:
    """Return what the docstrings below the fields of a dataclass say of them."""
    [body] = [node.body for node in ast.parse(getsource(kind)).body]
    return {
        field.target.id: " ".join(text.value.value.replace("`", "").split())
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
