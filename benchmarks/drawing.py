"""How long do pictures take on one core, from a prompt to the best of many candidates?

Prints JSON: seconds in which the embedded CLIP scores 128 pictures of 64x64 (figure) against the 2 s that it may take
(reference), their ratio, and the seconds of each part of a drawing of 32 candidates.
"""

import json
import platform
import time
from dataclasses import dataclass

import torch
import tyro

from dalle_lib.inference import TextToImage


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to time."""

    prompt: str = "penguin on a yellow background"
    candidates: int = 32
    """Pictures to draw."""
    scored: int = 128
    """Pictures for CLIP to score, the candidates again and again."""
    repeats: int = 3
    """Times that each part is repeated; the fastest counts."""


def main(benchmark: Benchmark) -> None:
    """Time all parts, and print the comparison."""
    torch.set_num_threads(1)
    draw = TextToImage.from_run("emoji", device="cpu")
    drawings = [draw(benchmark.prompt, candidates=benchmark.candidates, seed=0) for _ in range(benchmark.repeats)]
    pictures = drawings[0].candidates.repeat(-(-benchmark.scored // benchmark.candidates), 1, 1, 1)[: benchmark.scored]
    seconds = []
    for _ in range(benchmark.repeats):
        started = time.perf_counter()
        draw.ranker.score(benchmark.prompt, pictures)
        seconds.append(time.perf_counter() - started)
    print(
        json.dumps(
            {
                "figure": min(seconds),
                "reference": 2.0,
                "ratio": min(seconds) / 2.0,
                "drawing": {part: min(d.seconds[part] for d in drawings) for part in drawings[0].seconds},
                "candidates": benchmark.candidates,
                "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
