"""The memory calculator and the planner for their pages: the Python code itself, translated to JavaScript."""

from pathlib import Path

from machinery.translation.world import World

from dalle_lib.dashboard import bars, estimates
from dalle_lib.memory import accuracy, advice, estimate, hardware, training

LEFT_OUT = frozenset()


def make(made: Path) -> None:
    """Write the translated calculator."""
    calculator = World(LEFT_OUT | {"names.did_you_mean"}).translate([
        estimate,
        advice.advise, advice.largest_batch, training.Training, hardware.gpu_named, accuracy.in_words,
        estimates.verdict_sentence, estimates.details, bars.bytes_text, bars.formula_of,
    ])
    (made / "static").mkdir(parents=True, exist_ok=True)
    (made / "static" / "calculator_model.js").write_text(calculator, encoding="utf-8")
