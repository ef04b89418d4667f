"""How does a training step compare with that of dalle-pytorch, of which the paper used a branch?

Installs dalle-pytorch 1.6.6 into a temporary folder, and runs the forward and the backward pass of the yardstick
(benchmarks/plain.py) with reversible layers, one picture in float32 on one thread, by turns with this kit's model, each
time in a process of its own. (Its last block looks at another 5x5 window than the paper's, at the same cost.) Prints
JSON: seconds of processor time of this kit's step (figure), of that code's (reference) and their ratio, the fastest of
some; the same for this kit's step with dense layers as PyTorch computes them; the same of RSS above that of the process
with the built model; and the rate of PyTorch's matrix products.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import ModuleType

import torch
from memory import describe_machine
from plain import YARDSTICK
from torch import nn
from train_step import Benchmark, compare, matmul_rates, prepare, timed

PACKAGES = (
    "dalle-pytorch==1.6.6", "rotary-embedding-torch==0.2.5", "axial-positional-embedding==0.2.1",
    "g-mlp-pytorch==0.1.5", "einops==0.8.1",
)  # fmt: skip
WAYS = _, BY_PYTORCH, THEIRS = "kit", "kit, dense layers by PyTorch", "dalle-pytorch"
ROUNDS, REPEATS = 3, 5


def main() -> None:
    """Measure each way in turn, and print the comparison."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        subprocess.run(pip, check=True)
        rounds = [[pool.submit(measure, way, folder).result() for way in WAYS] for _ in range(ROUNDS)]
    ours, by_pytorch, theirs = (
        [min(values) for values in zip(*turns, strict=True)] for turns in zip(*rounds, strict=True)
    )
    rate, _ = matmul_rates(Benchmark(device="cpu"))
    result = compare(ours[0], theirs[0]) | {BY_PYTORCH: compare(by_pytorch[0], theirs[0])}
    result |= {"bytes of RSS above": compare(ours[1], theirs[1]), "GFLOP/s of a matrix product": rate / 1e9}
    print(json.dumps(result | {"machine": describe_machine("cpu")}, indent=1))


def measure(way: str, folder: str) -> tuple[float, int]:
    """Return the seconds and the bytes of a step of one of `WAYS`; dalle-pytorch is in `folder`."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = way != BY_PYTORCH
    benchmark = Benchmark(device="cpu")
    step = prepare_theirs(folder) if way == THEIRS else prepare(benchmark, YARDSTICK, "reversible")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = min(timed(step, "cpu") for _ in range(REPEATS))
    return seconds, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def prepare_theirs(folder: str) -> Callable[[], None]:
    """Return a step of the yardstick by the code in `folder`."""
    sys.path.insert(0, folder)

    class Codes(nn.Module):
        """What the model asks of the pictures' tokenizer."""

        num_layers, num_tokens, image_size = 3, YARDSTICK.image_vocab, 8 * YARDSTICK.grid

    # Tokenizers of pictures, with their downloads, are of no use here; nor is setuptools.
    sys.modules["dalle_pytorch.vae"] = ModuleType("dalle_pytorch.vae")
    sys.modules["dalle_pytorch.vae"].__dict__.update(OpenAIDiscreteVAE=Codes, VQGanVAE=Codes)
    sys.modules["pkg_resources"] = ModuleType("pkg_resources")
    sys.modules["pkg_resources"].get_distribution = None
    from dalle_pytorch.dalle_pytorch import DALLE

    c, kinds = YARDSTICK, {"row": "axial_row", "column": "axial_col", "convolution": "conv_like"}
    model = DALLE(
        dim=c.dim, vae=Codes(), num_text_tokens=c.text_vocab, text_seq_len=c.text_length, depth=c.depth, heads=c.heads,
        dim_head=c.dim_head, reversible=True, attn_types=[kinds[kind] for kind in c.kinds],
        shared_attn_ids=c.weight_sets, shared_ff_ids=c.weight_sets, share_input_output_emb=True,
    )  # fmt: skip
    text = torch.randint(1, c.text_vocab, (1, c.text_length))
    codes = torch.randint(c.image_vocab, (1, c.image_length))

    def step() -> None:
        model(text, codes, return_loss=True).backward()
        model.zero_grad()

    return step


if __name__ == "__main__":
    main()
