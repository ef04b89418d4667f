"""What fits, and what to switch on until it does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dalle_lib.memory.estimate import Estimate, estimate
from dalle_lib.memory.presets import build
from dalle_lib.memory.training import Training


@dataclass(frozen=True)
class Step:
    """One thing switched on, and what is needed then."""

    name: str
    estimate: Estimate
    fits: bool | None
    verdict: str


def largest_batch(model: str | Mapping, training: Training, size: int, most: int = 4096) -> int:
    """Return the largest batch up to `most` that surely fits a GPU of `size` bytes; 0 if not even one sequence does."""

    def need(batch: int) -> int:
        return estimate(model, replace(training, batch=batch)).gpu_range[1]

    first = need(1)
    if first > size:
        return 0
    # Need is the largest of straight lines, so a line through two points lies above it between them, below it beyond.
    least, least_need = 1, first
    too_many = min(most, 1 + (size - first) // max(1, need(2) - first)) + 1
    while too_many <= most and (too_many_need := need(too_many)) <= size:
        least, least_need, too_many = too_many, too_many_need, min(2 * too_many, most + 1)
    while too_many - least > 1:
        rise = need(too_many) - least_need
        middle = least + (size - least_need) * (too_many - least) // max(1, rise)
        middle = min(max(middle, least + 1), too_many - 1)
        if (middle_need := need(middle)) <= size:
            least, least_need = middle, middle_need
        else:
            too_many = middle
    return least


def advise(model: str | Mapping, training: Training, size: int, has_bf16: bool = True) -> list[Step]:
    """Return what to switch on, one thing after another, until the model fits a GPU of `size` bytes.

    What costs least comes first; what does not help, or the model does not have, is left out. The first step is the
    training as it is; the last one fits, unless nothing here helps enough.
    """
    steps = [_step("as it is", model, training, size)]
    for name, change in _techniques(model, training, has_bf16):
        if steps[-1].fits:
            break
        try:
            step = _step(name, model, replace(steps[-1].estimate.training, **change), size)
        except ValueError:  # this model has no such option
            continue
        if step.estimate.gpu_range[1] < steps[-1].estimate.gpu_range[1]:
            steps.append(step)
    return steps


def _step(name: str, model: str | Mapping, training: Training, size: int) -> Step:
    result = estimate(model, training)
    return Step(name, result, result.fits(size), result.verdict(size))


def _techniques(model: str | Mapping, training: Training, has_bf16: bool) -> list[tuple[str, dict]]:
    half = "bf16" if has_bf16 else "fp16"
    eight = "lamb8bit" if training.optimizer.startswith("lamb") else "adamw8bit"
    techniques = [
        ("efficient attention", {"attention": build(model).attentions[-1]}),
        (f"{half} autocast", {"precision": half}),
        ("8-bit optimizer", {"optimizer": eight}),
        ("gradient checkpointing", {"checkpointing": True, "reversible": False}),
        ("statistics in RAM", {"offload": "statistics"}),
        ("a batch of 1", {"batch": 1}),
        ("optimizer in RAM", {"offload": "optimizer"}),
    ]
    return [*techniques, ("weights in bf16", {"precision": "pure-bf16"})] if has_bf16 else techniques
