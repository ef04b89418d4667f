"""How long do pictures take, from a prompt to the best of many candidates, and how much longer beside busy programs?

Prints JSON: seconds of a drawing of 32 candidates while one busy program runs on each core but one (figure), against
twice those of a drawing alone (reference), and their ratio, which is to stay below 1. Both take turns, and the fastest
of each counts. Beside it: the seconds of each part of a drawing alone, those in which the embedded CLIP scores 128
pictures of 64x64 on one thread, and those of loading, which no drawing includes.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tyro


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


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long `action` takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@contextlib.contextmanager
def busy_neighbours() -> Iterator[int]:
    """Keep each core but one, and at least one, busy by a program of its own; give how many there are."""
    count = max(1, (os.cpu_count() or 2) - 1)
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield count
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main(benchmark: Benchmark) -> None:
    """Time all parts, and print the comparison."""
    started = time.perf_counter()
    import torch

    from dalle_lib.inference import TextToImage

    loading = {"libraries": time.perf_counter() - started}
    started = time.perf_counter()
    draw = TextToImage.from_run("emoji", device="cpu")
    loading["model"] = time.perf_counter() - started

    drawings, alone, beside = [], [], []
    for _ in range(benchmark.repeats):
        alone.append(
            seconds_of(lambda: drawings.append(draw(benchmark.prompt, candidates=benchmark.candidates, seed=0)))
        )
        with busy_neighbours() as neighbours:
            beside.append(seconds_of(lambda: draw(benchmark.prompt, candidates=benchmark.candidates, seed=0)))
    pictures = drawings[0].candidates.repeat(-(-benchmark.scored // benchmark.candidates), 1, 1, 1)[: benchmark.scored]
    machine = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}"
    torch.set_num_threads(1)
    scoring = [seconds_of(lambda: draw.ranker.score(benchmark.prompt, pictures)) for _ in range(benchmark.repeats)]
    print(
        json.dumps(
            {
                "figure": min(beside),
                "reference": 2 * min(alone),
                "ratio": min(beside) / (2 * min(alone)),
                "busy_programs": neighbours,
                "alone": min(alone),
                "parts_alone": {part: min(d.seconds[part] for d in drawings) for part in drawings[0].seconds},
                "loading": loading,
                "scoring": min(scoring),
                "candidates": benchmark.candidates,
                "scored": benchmark.scored,
                "machine": f"{platform.machine()}, {machine}",
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
