"""Training steps of the paper's model on a GPU, for `paper_gpu.py`: each precision, kept or reversible, compiled."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal
from unittest.mock import patch

import torch
from gpu_part import Part
from train_step import SIDE, timed

from dalle_lib.memory import GPUS
from dalle_lib.model import DALLE

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = "bf16", "fp16", "tf32", "fp32"
LARGE = 32
"""Samples of a large batch."""
ROOM = 0.9
"""Part of the GPU's memory that a forecast may fill."""
SHARE_OF_PEAK = {"bf16": 1.0, "fp16": 1.0, "tf32": 495 / 989, "fp32": 67 / 989}
"""Operations a second of an H100 or H200 (SXM) as a share of those in 16 bits, without sparsity."""


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    precision: Literal["bf16", "fp16", "tf32", "fp32"]
    """16 bits by autocast, fp16 with a loss scale; float32 with TF32 in matrix products, or without."""
    is_reversible: bool
    batch: int

    @property
    def name(self) -> str:
        """The way in words."""
        return f"{self.precision}, {'reversible' if self.is_reversible else 'kept'}, batch {self.batch}"

    @property
    def forecast(self) -> tuple[str, bool, int]:
        """What the calculator is asked."""
        return (self.precision if self.precision in HALF else "fp32"), self.is_reversible, self.batch


def ways(part: Part, precision: str) -> Iterator[Way]:
    """Return the ways of a precision: a large batch and one sample, reversible and with activations kept."""
    large = 2 if part.is_tiny else LARGE
    yield Way(precision, True, large)
    yield Way(precision, False, largest_kept(part, precision, large))
    yield Way(precision, True, 1)
    yield Way(precision, False, 1)


def largest_kept(part: Part, precision: str, large: int) -> int:
    """Return the largest power of two of samples, at most `large`, that fits with activations kept, by forecast."""
    room = ROOM * torch.cuda.get_device_properties(0).total_memory if part.device == "cuda" else 2**30
    batch = large
    while batch > 1 and part.forecast(*Way(precision, False, batch).forecast)[0] > room:
        batch //= 2
    return batch


def train(part: Part) -> None:
    """Measure each way without a compiler, then steps that are recorded and replayed."""
    part.attempt("operations a second of a matrix product", lambda: {p: product_rate(part, p) for p in PRECISIONS})
    torch.manual_seed(0)
    model = DALLE(part.config).to(part.device)
    for precision in PRECISIONS:
        if precision == "fp32":  # the slowest is the last
            record_all(part, model)
        for way in ways(part, precision):
            part.attempt(way.name, partial(measured, part, model, way), needs_s=needed_s(way))
        if precision == "bf16" and part.device == "cuda":
            part.attempt("memory without tensors", held_by_cuda)


def needed_s(way: Way) -> float:
    """Return the seconds that a way may take, by a guess on the safe side."""
    return 24 if way.precision == "fp32" and way.batch > 8 else 12 if way.batch > 8 else 5


def record_all(part: Part, model: DALLE) -> None:
    """Measure steps that are recorded once and replayed, which spares a GPU waiting for Python."""
    for way in Way("bf16", True, 1), Way("fp16", True, 1), Way("bf16", True, 2 if part.is_tiny else 8):
        part.attempt(f"recorded, {way.name}", partial(recorded, part, model, way), needs_s=4)


def compiled(part: Part) -> None:
    """Measure each way with compiled layers; the first step compiles, or finds what `warm` has compiled."""
    torch.manual_seed(0)
    model = DALLE(part.config).to(part.device)
    eager = model.transformer.layer_functions
    chosen = [list(ways(part, precision)) for precision in PRECISIONS]
    # The most interesting way of each precision comes first; float32 without TF32, which nobody should use, last.
    for turn in (*zip(*chosen[:-1], strict=True), chosen[-1]):
        for way in turn:
            part.attempt(way.name, partial(measured, part, model, way, eager=eager), needs_s=12)


def warm(part: Part, precision: str) -> None:
    """Compile the layers for the ways of a precision, so that `compiled` finds them in the compiler's cache."""
    model = DALLE(part.config).to(part.device)
    for batch in dict.fromkeys(way.batch for way in ways(part, precision)):
        model.transformer.compile_layers()
        step, _ = stepper(part, model, Way(precision, True, batch))
        part.attempt(f"{precision}, batch {batch}", lambda step=step: timed(step, part.device))
        torch._dynamo.reset()


def measured(part: Part, model: DALLE, way: Way, eager: tuple[Callable, ...] | None = None) -> dict:
    """Return time, memory and utilisation of a way; compiled if the `eager` layers are given, with both losses."""
    more = {}
    if eager:
        torch._dynamo.reset()
        model.transformer.layer_functions = eager
        more["loss, eager"] = loss_of(part, model, way)
        model.transformer.compile_layers()
        more["loss"] = loss_of(part, model, way)
    step, scale = stepper(part, model, way)
    found = part.timings(step)
    forecast, _ = part.forecast(*way.forecast)
    _, flops = part.forecast(way.forecast[0], False, way.batch)  # without what is recomputed
    if way.precision == "fp16":
        more["loss scale at the end"] = scale()
    if found.get("allocated"):
        if not eager:
            more |= {"forecast": forecast, "error of the forecast": forecast / found["allocated"] - 1}
        more["slack"] = found["reserved"] / found["allocated"] - 1
    peak = GPUS["H100"].teraflops * 1e12 * SHARE_OF_PEAK[way.precision]
    if rate := part.results.get("operations a second of a matrix product", {}).get(way.precision):
        more["utilisation, measured product"] = flops / found["seconds"] / rate
    return found | more | {
        "samples/s": way.batch / found["seconds"],
        "utilisation, data sheet": flops / found["seconds"] / peak,
        "operations a second": flops / found["seconds"],
    }  # fmt: skip


def stepper(part: Part, model: DALLE, way: Way) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a step, forward and backward pass, after which gradients are dropped; and what tells the loss scale."""
    prepare(model, way)
    text, codes = batch_of(part, way.batch)
    is_scaled = way.precision == "fp16" and part.device == "cuda"
    scaler = torch.amp.GradScaler(part.device, enabled=is_scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # takes no step: the scaler asks it for gradients

    def step() -> None:
        with autocast(part, way):
            loss = model(text, codes).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        model.zero_grad()

    return step, scaler.get_scale


def prepare(model: DALLE, way: Way) -> None:
    """Set what a way says of the model and of matrix products."""
    model.transformer.is_reversible = way.is_reversible
    torch.set_float32_matmul_precision("high" if way.precision == "tf32" else "highest")


def autocast(part: Part, way: Way, **options) -> torch.autocast:
    """Return the context of the forward pass."""
    return torch.autocast(part.device, HALF.get(way.precision), enabled=way.precision in HALF, **options)


def batch_of(part: Part, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random captions and codes, the same each time."""
    c, random = part.config, torch.Generator().manual_seed(1)
    text = torch.randint(1, c.text_vocab, (batch, c.text_length), generator=random)
    return text.to(part.device), torch.randint(c.image_vocab, (batch, c.image_length), generator=random).to(part.device)


def loss_of(part: Part, model: DALLE, way: Way) -> float:
    """Return the loss of a batch, without a backward pass."""
    prepare(model, way)
    model.transformer.is_reversible = True
    with torch.no_grad(), autocast(part, way):
        return model(*batch_of(part, way.batch)).loss.item()


def recorded(part: Part, model: DALLE, way: Way) -> dict:
    """Return time and memory of a step whose kernels are recorded as a CUDA graph; on a processor it is run anew."""
    prepare(model, way)
    text, codes = batch_of(part, way.batch)
    scale = 2.0**10 if way.precision == "fp16" else 1.0

    def step() -> torch.Tensor:
        model.zero_grad()
        with autocast(part, way, cache_enabled=False):
            loss = model(text, codes).loss
        (loss * scale).backward()
        return loss.detach()

    with patch("dalle_lib.model.dalle.check_inputs", lambda *_: None):  # it waits for the GPU
        expected = step().item()
        replay, loss = record(part, step)
        found = part.timings(replay)
    is_finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    loss = loss.item()
    model.zero_grad()
    return found | {
        "samples/s": way.batch / found["seconds"], "loss": loss, "loss, not recorded": expected,
        "gradients are finite": is_finite,
    }  # fmt: skip


def record(part: Part, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """Return what repeats `work`, and the tensor that it writes; the gradients that `work` makes are written anew."""
    if part.device != "cuda":
        result = work()

        def repeat() -> None:
            result.copy_(work())

        return repeat, result
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    return captured(work)


def captured(work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """Record `work` as a CUDA graph; return its replay, and the tensor that it writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph.replay, result


def held_by_cuda() -> dict[str, float]:
    """Return the bytes of the GPU that are neither tensors nor kept ready for tensors: this process's context."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "bytes": total - free - torch.cuda.memory_reserved(), "total": total,
        "GiB that torch reports": torch.cuda.get_device_properties(0).total_memory / 2**30,
    }  # fmt: skip


def product_rate(part: Part, precision: str) -> float:
    """Return the operations a second of a large matrix product."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    side = 256 if part.is_tiny else SIDE[part.device]
    a, b = torch.randn(2, side, side, device=part.device, dtype=HALF.get(precision, torch.float32))
    timed(lambda: a @ b, part.device)
    return 2 * side**3 / min(timed(lambda: a @ b, part.device) for _ in range(8))
