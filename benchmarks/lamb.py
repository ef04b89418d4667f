"""Is 8-bit LAMB quick, and how little memory does it take?

Three optimizers step by turns, on one thread, over one tensor of each shape in the paper's model: this kit's LAMB8bit;
LAMB that dequantises whole tensors, updates them and quantises them again, with bitsandbytes' kernels; and LAMB in
float32. Prints JSON: millions of parameters per second of processor time of LAMB8bit (figure) and of whole tensors
(reference) and their ratio, medians of 9; bytes per parameter of the statistics, alone and at the peak of a step; and
the ratio of LAMB8bit's bytes to float32's statistics. Needs bitsandbytes.
"""

import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bitsandbytes.functional import create_dynamic_map, dequantize_blockwise, quantize_blockwise
from torch import Tensor, nn

from dalle_lib.measurement.worker import cpu_peak
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.optimizer import LAMB8bit

ROUNDS = 9
LR, BETA1, BETA2, EPS, DECAY, MAX_GRAD_NORM, MAX_WEIGHT_NORM = 2.5e-3, 0.9, 0.96, 1e-6, 0.045, 4.0, 1e4
QUANTISED_FROM = 65536


class Lamb32:
    """LAMB in float32, written as its formulas are, over whole tensors."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.state = [self.store(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def store(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Return the tensors in which both statistics are kept until the next step."""
        return [first, second]

    def restore(self, kept: list[Tensor]) -> list[Tensor]:
        """Return both statistics in float32, from the tensors of `store`."""
        return kept

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters."""
        nn.utils.clip_grad_norm_(self.params, MAX_GRAD_NORM)
        for i, p in enumerate(self.params):
            first, second = self.restore(self.state[i])
            first.mul_(BETA1).add_(p.grad, alpha=1 - BETA1)
            second.mul_(BETA2).addcmul_(p.grad, p.grad, value=1 - BETA2)
            update = (first / second.sqrt().add_(EPS)).add_(p, alpha=DECAY)
            self.state[i] = self.store(first, second)
            weight_norm, update_norm = float(p.norm()), float(update.norm())
            ratio = min(weight_norm, MAX_WEIGHT_NORM) / update_norm if weight_norm and update_norm else 1.0
            p.add_(update, alpha=-LR * ratio)

    def kept(self) -> list[Tensor]:
        """Return the tensors that hold the statistics."""
        return [tensor for state in self.state for tensor in state]


class Lamb8(Lamb32):
    """LAMB with statistics in 8 bits: dequantises, updates and quantises whole tensors."""

    books = create_dynamic_map(signed=True), create_dynamic_map(signed=False)

    def store(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Return codes and scales of both statistics, or small statistics as they are."""
        if first.numel() < QUANTISED_FROM:
            return [first, second]
        (a, x), (b, y) = (
            quantize_blockwise(values, code=book, blocksize=4096)
            for values, book in zip((first, second), self.books, strict=True)
        )
        return [a, x.absmax, b, y.absmax]

    def restore(self, kept: list[Tensor]) -> list[Tensor]:
        """Return both statistics in float32."""
        if len(kept) == 2:
            return kept
        pairs = zip(kept[::2], kept[1::2], self.books, strict=True)
        return [dequantize_blockwise(a, absmax=x, code=book, blocksize=4096) for a, x, book in pairs]


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of `work`, which other jobs on the machine change little."""
    started = time.process_time()
    work()
    return time.process_time() - started


def memory(step: Callable[[], object], kept: list[Tensor], count: int) -> dict[str, float]:
    """Return bytes per parameter: of the statistics, and of them with all that a step allocates at its peak."""
    size = sum(tensor.nbytes for tensor in kept)
    with tempfile.TemporaryDirectory() as folder:
        return {"statistics": size / count, "at the peak of a step": (size + cpu_peak(step, Path(folder))) / count}


def main() -> None:
    """Measure, and print the comparison."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.device("meta"):
        shapes = sorted({p.shape for p in DALLE(ModelConfig.paper()).parameters()}, key=math.prod)
    params = [nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes]
    count = sum(p.numel() for p in params)
    for p in params:
        p.grad = torch.randn_like(p) * MAX_GRAD_NORM / math.sqrt(count)
    ours, whole, float32 = LAMB8bit(params), Lamb8(params), Lamb32(params)
    statistics_of_ours = [value for state in ours.state.values() for value in state.values()]
    kept = {"ours": statistics_of_ours, "whole tensors": whole.kept(), "float32": float32.kept()}
    steps = {"ours": ours.step, "whole tensors": whole.step, "float32": float32.step}
    times = [{name: seconds(step) for name, step in steps.items()} for _ in range(ROUNDS)]
    speed = {name: count / 1e6 / statistics.median(turn[name] for turn in times) for name in steps}
    result = {"figure": speed["ours"], "reference": speed["whole tensors"]}
    result["ratio"] = result["figure"] / result["reference"]
    result["float32"] = speed["float32"]
    result["bytes a parameter"] = {name: memory(step, kept[name], count) for name, step in steps.items()}
    base = result["bytes a parameter"]["float32"]["statistics"]
    result["of float32's statistics"] = {k: v / base for k, v in result["bytes a parameter"]["ours"].items()}
    result["machine"] = f"{platform.machine()}, torch {torch.__version__}, {count / 1e6:.1f} million parameters"
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
