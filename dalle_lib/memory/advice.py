"""The largest batch that fits a GPU, and the techniques to switch on until a model fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dalle_lib.memory.estimate import Estimate, estimate
from dalle_lib.memory.hardware import GPU
from dalle_lib.memory.presets import describe
from dalle_lib.memory.training import Training


@dataclass(frozen=True)
class Step:
    """One technique switched on, on top of those before it, and what the training needs then."""

    name: str
    estimate: Estimate
    fits: bool | None
    """Whether it fits: True, False, or None if that depends on the assumed terms."""
    verdict: str
    """The same in words."""


def largest_batch(
    model: str | Mapping, training: Training, size: int, max_batch: int = 4096, gpu: GPU | None = None
) -> int:
    """Return the largest batch, `max_batch` at most, that surely fits a GPU of `size` bytes; 0 if none does.

    "Surely" means at the upper end of the assumed terms, of `gpu` if it is given. Raises ValueError as `estimate` does.
    """

    def need(batch: int) -> int:
        return estimate(model, replace(training, batch=batch), gpu=gpu).gpu_range[1]

    first = need(1)
    if first > size:
        return 0
    # The need is the largest of several straight lines in the batch. A line through two of its points therefore lies
    # above it between them and below it beyond them: the first line gives an upper bound, each later one a lower bound.
    fits, fits_need = 1, first
    too_many = min(max_batch, 1 + (size - first) // max(1, need(2) - first)) + 1
    while too_many <= max_batch and (too_many_need := need(too_many)) <= size:
        fits, fits_need, too_many = too_many, too_many_need, min(2 * too_many, max_batch + 1)
    while too_many - fits > 1:
        rise = need(too_many) - fits_need
        middle = fits + (size - fits_need) * (too_many - fits) // max(1, rise)
        middle = min(max(middle, fits + 1), too_many - 1)
        if (middle_need := need(middle)) <= size:
            fits, fits_need = middle, middle_need
        else:
            too_many = middle
    return fits


def advise(
    model: str | Mapping, training: Training, size: int, has_bf16: bool = True, gpu: GPU | None = None
) -> list[Step]:
    """Return the techniques to switch on, one after another, until the model fits a GPU of `size` bytes.

    The first step is the training as it is. The others follow from the cheapest to the dearest; a technique that lowers
    nothing, or that the model does not have, is left out. The last step fits, unless no technique here is enough.
    With `has_bf16` the 16-bit type is bf16, otherwise fp16. `gpu` is as for `estimate`, and so are the errors.
    """
    steps = [_step("as it is", model, training, size, gpu)]
    for name, change in _techniques(model, training, has_bf16):
        if steps[-1].fits:
            break
        try:
            step = _step(name, model, replace(steps[-1].estimate.training, **change), size, gpu)
        except ValueError:  # this model has no such option
            continue
        if step.estimate.gpu_range[1] < steps[-1].estimate.gpu_range[1]:
            steps.append(step)
    return steps


def _step(name: str, model: str | Mapping, training: Training, size: int, gpu: GPU | None) -> Step:
    result = estimate(model, training, gpu=gpu)
    return Step(name, result, result.fits(size), result.verdict(size))


def _techniques(model: str | Mapping, training: Training, has_bf16: bool) -> list[tuple[str, dict]]:
    """Return the techniques in the order of their cost, each with the fields of `Training` that it changes."""
    half = "bf16" if has_bf16 else "fp16"
    eight_bit = "lamb8bit" if training.optimizer.startswith("lamb") else "adamw8bit"
    techniques = [
        ("efficient attention", {"attention": describe(model).attentions[-1]}),
        (f"{half} autocast", {"precision": half}),
        ("8-bit optimizer", {"optimizer": eight_bit}),
        ("gradient checkpointing", {"checkpointing": True, "reversible": False}),
        ("statistics in RAM", {"offload": "statistics"}),
        ("a batch of 1", {"batch": 1}),
        ("optimizer in RAM", {"offload": "optimizer"}),
    ]
    return [*techniques, ("weights in bf16", {"precision": "pure-bf16"})] if has_bf16 else techniques
