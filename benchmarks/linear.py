"""Are dense layers in float32 faster by oneDNN than by PyTorch's own choice, on this processor?

Runs the forward and the backward pass of each kind of dense layer of the yardstick (benchmarks/plain.py), with a bias,
for one picture, by `dalle_lib.model.linear` and by `torch.nn.functional.linear` in turns. Prints JSON: milliseconds of
processor time of the layers of all blocks and both heads (figure), those of PyTorch's own (reference) and their ratio,
each the fastest of some on one thread; and the same for one layer of each kind.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from memory import describe_machine
from plain import YARDSTICK
from torch import Tensor
from torch.nn import functional as F
from train_step import compare, timed

from dalle_lib.model.linear import linear

REPEATS = 20


def main() -> None:
    """Measure each layer in both ways, and print the comparison."""
    torch.set_num_threads(1)
    c = YARDSTICK
    inner, length = c.heads * c.dim_head, c.text_part + c.image_length
    layers = {
        "queries, keys, values": (c.depth, length, c.dim, 3 * inner),
        "attention's output": (c.depth, length, inner, c.dim),
        "expand": (c.depth, length, c.dim, 8 * c.dim),
        "contract": (c.depth, length, 4 * c.dim, c.dim),
        "text head": (1, c.text_length, c.dim, c.text_rows),
        "code head": (1, c.image_length, c.dim, c.image_vocab),
    }
    times, figure, reference = {}, 0.0, 0.0
    for name, (count, *sizes) in layers.items():
        kit, pytorch = measure(*sizes)
        times[name] = compare(kit, pytorch)
        figure, reference = figure + count * kit, reference + count * pytorch
    result = compare(figure, reference) | {"layers": times}
    print(json.dumps(result | {"machine": describe_machine("cpu")}, indent=1))


def measure(positions: int, inputs: int, outputs: int) -> tuple[float, float]:
    """Return the milliseconds of a layer's forward and backward pass, by the kit and by PyTorch."""
    x, weight, bias = (
        torch.randn(*s, requires_grad=True) for s in ((positions, inputs), (outputs, inputs), (outputs,))
    )
    dy = torch.randn(positions, outputs)

    def step(layer: Callable[..., Tensor]) -> None:
        torch.autograd.grad(layer(x, weight, bias), [x, weight, bias], dy)

    turns = [[timed(partial(step, layer), "cpu") for layer in (linear, F.linear)] for _ in range(REPEATS)]
    kit, pytorch = (1e3 * min(times) for times in zip(*turns, strict=True))
    return kit, pytorch


if __name__ == "__main__":
    main()
