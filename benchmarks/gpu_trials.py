"""What do a peer's trials find on a GPU, how long do they take, and does every way compute the same gradient?

- ways: the error of the gradient of a small model, against float32 in the same run, in bf16 and fp16, with activations
  kept, and recorded as a CUDA graph.
- memory: PyTorch may use 2% of the GPU, and 64 samples are computed at a time with activations kept: what is told when
  memory runs out, and whether the gradient is finite afterwards.
- trials: each trial of the small model, of the paper's without compiling, and of the paper's with it, where compiling
  pays: samples a second, seconds, and what did not work.

Prints JSON: samples of the paper's model a second in the way that trials choose (figure), those of the fastest way in
bf16 that `paper_gpu.py` found on an H200 (reference) and their ratio. It took 74 s on an H200.
`python benchmarks/gpu_trials.py --tiny` tries all of this with tiny models, on a processor too.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from memory import describe_machine

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.trials import PAYS_WITHIN_S, Trials, random_batch
from dalle_lib.swarm.peer.computing.way import Way

SMALL = ModelConfig(
    dim=256, depth=10, heads=4, dim_head=64, text_length=32, text_vocab=1000, image_vocab=512, grid=16
)  # fmt: skip
TINY = ModelConfig(dim=32, depth=6, heads=2, dim_head=16, text_length=8, text_vocab=64, image_vocab=96, grid=4)
AT_ONCE = 64
"""Samples at a time, at most."""
SHARE = 0.02
"""Share of a GPU's memory within which it is to run out."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to try."""

    tiny: bool = False
    """Use tiny models, to try the script."""


def main(benchmark: Benchmark) -> None:
    """Try all ways, and print JSON."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    small, paper = (TINY, TINY) if benchmark.tiny else (SMALL, ModelConfig.paper())
    found = {
        "machine": describe_machine(device.type),
        "ways": ways(small, device),
        "memory": memory(small, device),
        "small model": tried(small, device, 0.0),
        "paper's model, not compiled": tried(paper, device, 0.0),
        "paper's model": tried(paper, device, 0.0 if benchmark.tiny else PAYS_WITHIN_S),
    }
    figure, reference = found["paper's model"]["samples/s"], fastest(Path(__file__).parent / "results/paper_gpu.json")
    report = {"figure": figure, "reference": reference, "ratio": round(figure / reference, 3)}
    print(json.dumps(report | found, indent=1))


def fastest(file: Path) -> float:
    """Return the samples a second of the fastest way in bf16 of a committed result."""
    found = json.loads(file.read_text())
    ways = [*found["train"].items(), *found["compiled"].items()]
    return max(facts["samples/s"] for name, facts in ways if name.startswith("bf16,"))


def ways(config: ModelConfig, device: torch.device) -> dict[str, dict]:
    """Return the error of the gradient in each way, as a share of the norm of that in float32."""
    computer = computer_of(config, device)
    batch, base = computer.sent(random_batch(config, 8)), replace(computer.way, batch=4, is_reversible=True)

    def gradient(way: Way) -> tuple[torch.Tensor, dict]:
        computer.use(way)
        for _ in range(20):  # the loss scale needs some steps
            if (found := computer.gradient([batch])).is_finite:
                break
        whole = torch.cat([p.grad.flatten().float().cpu() for p in computer.parameters])
        return whole, {"loss": found.loss, "loss scale": found.scale}

    exact, _ = gradient(replace(base, precision="float32"))
    halves = ("bfloat16", "float16") if device.type == "cuda" else ("bfloat16",)
    changes = [{"precision": half, "is_recorded": recorded} for half in halves for recorded in (False, True)]
    changes.append({"precision": "bfloat16", "is_reversible": False})
    found = {}
    for change in changes:
        if change.get("is_recorded") and device.type != "cuda":
            continue
        way = replace(base, **change)
        near, facts = gradient(way)
        found[way.in_words(device.type)] = {"error": float((near - exact).norm() / exact.norm())} | facts
    return found


def memory(config: ModelConfig, device: torch.device) -> dict:
    """Return what is told where memory runs out."""
    if device.type != "cuda":
        return {}
    told: list[str] = []
    computer = computer_of(config, device)
    computer.tell = lambda way, why: told.append(f"{way.in_words('cuda')}: {why}")
    torch.cuda.set_per_process_memory_fraction(SHARE)
    computer.use(replace(computer.way, batch=AT_ONCE, is_reversible=False))
    is_finite = computer.gradient([computer.sent(random_batch(config, AT_ONCE))]).is_finite
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {"told": told, "finite": is_finite}


def tried(config: ModelConfig, device: torch.device, trains_for_s: float) -> dict:
    """Return what the trials of a peer that trains for so long choose, and each of them."""
    computer = computer_of(config, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began, trials = time.monotonic(), Trials(computer, AT_ONCE, trains_for_s=trains_for_s)
    way = trials.find()
    return {
        "chosen": replace(way, samples_per_s=None).in_words(device.type), "samples/s": way.samples_per_s,
        "seconds": round(time.monotonic() - began, 1),
        "bytes at the peak": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "trials": [
            {"way": each.way.in_words(device.type), "seconds": round(each.seconds, 2)}
            | ({"problem": each.problem} if each.problem else {})
            for each in trials.done
        ],
    }  # fmt: skip


def computer_of(config: ModelConfig, device: torch.device) -> Computer:
    """Return what computes with random weights."""
    torch.manual_seed(0)
    return Computer(DALLE(config).to(device), device)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
