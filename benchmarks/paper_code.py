"""How do a training step and drawing compare with those of dalle-pytorch, of which the paper used a branch?

Installs dalle-pytorch 1.6.6 into a temporary folder. Runs the forward and the backward pass of the yardstick
(benchmarks/plain.py) with reversible layers, one picture in float32 on one thread, in turns with this kit's model, each
time in a process of its own. (Its last block sees another 5x5 window than the paper's, at the same cost.) Prints JSON:

- seconds of processor time of this kit's step (figure), of dalle-pytorch's (reference) and their ratio, each the
  fastest of some steps;
- the same for this kit's step with dense layers as PyTorch computes them;
- the same for RSS above that of the process with the built model;
- the same for the seconds of a code, in one picture alone and in each of many. This kit draws 128 at once, whole
  pictures. dalle-pytorch draws 16 at once, as many as the paper did, and some codes after a caption, from its cache and
  without the reading of the caption;
- the rate of PyTorch's matrix products.
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

from dalle_lib.model import DALLE, generate

PACKAGES = (
    "dalle-pytorch==1.6.6", "rotary-embedding-torch==0.2.5", "axial-positional-embedding==0.2.1",
    "g-mlp-pytorch==0.1.5", "einops==0.8.1",
)  # fmt: skip
KIT, BY_PYTORCH, THEIRS = WAYS = "kit", "kit, dense layers by PyTorch", "dalle-pytorch"
ROUNDS, REPEATS = 3, 5
AT_ONCE = {"one picture": {KIT: 1, THEIRS: 1}, "many pictures": {KIT: 128, THEIRS: 16}}
"""Number of pictures that are drawn side by side."""
TOP_K, STRETCH = 256, 16
"""Number of codes among which each is drawn, and number of codes that dalle-pytorch draws."""


def main() -> None:
    """Measure each way in turn, and print the comparison."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        subprocess.run(pip, check=True)
        drawn = {
            name: compare(*(pool.submit(draw, way, pictures, folder).result() for way, pictures in counts.items()))
            for name, counts in AT_ONCE.items()
        }
        rounds = [[pool.submit(measure, way, folder).result() for way in WAYS] for _ in range(ROUNDS)]
    ours, by_pytorch, theirs = (
        [min(values) for values in zip(*turns, strict=True)] for turns in zip(*rounds, strict=True)
    )
    rate, _ = matmul_rates(Benchmark(device="cpu"))
    result = compare(ours[0], theirs[0]) | {BY_PYTORCH: compare(by_pytorch[0], theirs[0])}
    result |= {
        "bytes of RSS above": compare(ours[1], theirs[1]),
        "seconds of a code": drawn,
        "GFLOP/s of a matrix product": rate / 1e9,
    }
    print(json.dumps(result | {"machine": describe_machine("cpu")}, indent=1))


def measure(way: str, folder: str) -> tuple[float, int]:
    """Return seconds and bytes of a step in one of `WAYS`; dalle-pytorch is in `folder`."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = way != BY_PYTORCH
    benchmark = Benchmark(device="cpu")
    step = prepare_theirs(folder) if way == THEIRS else prepare(benchmark, YARDSTICK, "reversible")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = min(timed(step, "cpu") for _ in range(REPEATS))
    return seconds, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def draw(way: str, pictures: int, folder: str) -> float:
    """Return the seconds of each code when `pictures` of one caption are drawn side by side."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = torch.randint(1, YARDSTICK.text_vocab, (1, YARDSTICK.text_length))
    if way != THEIRS:
        model = DALLE(YARDSTICK).eval()
        seconds = timed(lambda: generate(model, text, samples=pictures, top_k=TOP_K, seed=0), "cpu")
        return seconds / (pictures * YARDSTICK.image_length)
    model, cache = their_model(folder, reversible=False, optimize_for_inference=True).eval(), {}
    from dalle_pytorch.dalle_pytorch import gumbel_sample, top_k

    text, share = text.repeat(pictures, 1), 1 - TOP_K / model.total_tokens

    def stretch() -> None:
        nonlocal logits, codes
        for _ in range(STRETCH):
            code = gumbel_sample(top_k(logits, thres=share), dim=-1) - model.num_text_tokens
            codes = torch.cat([codes, code[:, None]], dim=1)
            logits = model(text, codes, cache=cache)[:, -1]

    with torch.no_grad():
        codes = text[:, :0]
        logits = model(text, codes, cache=cache)[:, -1]
        return timed(stretch, "cpu") / (pictures * STRETCH)


def prepare_theirs(folder: str) -> Callable[[], None]:
    """Return a step of the yardstick in dalle-pytorch, which is in `folder`."""
    model, c = their_model(folder, reversible=True), YARDSTICK
    text = torch.randint(1, c.text_vocab, (1, c.text_length))
    codes = torch.randint(c.image_vocab, (1, c.image_length))

    def step() -> None:
        model(text, codes, return_loss=True).backward()
        model.zero_grad()

    return step


def their_model(folder: str, **options) -> nn.Module:
    """Return the yardstick's model in dalle-pytorch, which is in `folder`."""
    sys.path.insert(0, folder)

    class Codes(nn.Module):
        """What the model asks of its image tokenizer."""

        num_layers, num_tokens, image_size = 3, YARDSTICK.image_vocab, 8 * YARDSTICK.grid

    # Importing its image tokenizers would download them, and asking for its version needs setuptools: neither is used.
    sys.modules["dalle_pytorch.vae"] = ModuleType("dalle_pytorch.vae")
    sys.modules["dalle_pytorch.vae"].__dict__.update(OpenAIDiscreteVAE=Codes, VQGanVAE=Codes)
    sys.modules["pkg_resources"] = ModuleType("pkg_resources")
    sys.modules["pkg_resources"].get_distribution = None
    from dalle_pytorch import dalle_pytorch

    c, kinds = YARDSTICK, {"row": "axial_row", "column": "axial_col", "convolution": "conv_like"}
    return dalle_pytorch.DALLE(
        dim=c.dim, vae=Codes(), num_text_tokens=c.text_vocab, text_seq_len=c.text_length, depth=c.depth, heads=c.heads,
        dim_head=c.dim_head, attn_types=[kinds[kind] for kind in c.kinds],
        shared_attn_ids=c.weight_sets, shared_ff_ids=c.weight_sets, share_input_output_emb=True, **options,
    )  # fmt: skip


if __name__ == "__main__":
    main()
