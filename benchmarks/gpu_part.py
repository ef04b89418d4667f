"""One part of `paper_gpu.py`: its time, its results in a file, and what all parts measure by."""

import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from train_step import timed

from dalle_lib.memory import Training, estimate
from dalle_lib.model import ModelConfig

TINY = ModelConfig(dim=32, depth=6, heads=2, dim_head=16, text_length=8, text_vocab=64, image_vocab=96, grid=4)
"""A model for trying the script on a processor."""


@dataclass
class Part:
    """A part's results, which are written to `file` after each, and the time that it has."""

    file: Path
    seconds: float
    """Seconds for the whole part, counted from its creation."""
    is_tiny: bool = False
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def config(self) -> ModelConfig:
        """The model that is measured."""
        return TINY if self.is_tiny else ModelConfig.paper()

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.started)

    def attempt(self, name: str, work: Callable[[], object], needs_s: float = 0.0) -> None:
        """Write what `work` returns, under `name`; or its error; or that less than `needs_s` was left for it."""
        if self.left() < needs_s:
            return self.keep(name, {"left out": f"{self.left():.0f} s were left, and it may take {needs_s:.0f}"})
        started = time.monotonic()
        try:
            value = work()
        except Exception as error:  # whatever it is, the other results are still wanted
            traceback.print_exc()
            value = {"error": f"{type(error).__name__}: {error}"[:400]}
        self.free()
        print(f"{self.file.stem}: {name}: {time.monotonic() - started:.1f} s", flush=True)
        return self.keep(name, value)

    def keep(self, name: str, value: object) -> None:
        """Write a result."""
        self.results[name] = value
        unfinished = self.file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.results, indent=1))
        unfinished.replace(self.file)  # so that a part which is stopped leaves a whole file

    def free(self) -> None:
        """Give unused memory back to the GPU."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def timings(self, step: Callable[[], object], at_most_s: float = 3.0, repeats: int = 7) -> dict[str, float]:
        """Return median and fastest seconds of `step`, its memory at the peak, and the seconds of its first run.

        The first run and the second are to warm up. Then there are at most `repeats`, which together take about
        `at_most_s`; a slow step is timed once.
        """
        first, _ = timed(step, self.device), timed(step, self.device)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds: list[float] = []
        while len(seconds) < repeats and sum(seconds) < at_most_s:
            seconds.append(timed(step, self.device))
        return {
            "seconds": statistics.median(seconds), "fastest": min(seconds), "repeats": len(seconds), "first": first,
            **self.peaks(),
        }  # fmt: skip

    def peaks(self) -> dict[str, int]:
        """Return the most bytes that tensors took, and that PyTorch held, since the counts were reset."""
        if self.device != "cuda":
            return {}
        return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}

    def forecast(self, precision: str, is_reversible: bool, batch: int) -> tuple[int, int]:
        """Return the bytes at the peak of a forward and backward pass by the calculator, and its operations."""
        training = Training(batch=batch, precision=precision, reversible=is_reversible, optimizer="lamb8bit")
        said = estimate({"model_type": "dalle", **asdict(self.config)}, training, self.device)
        return said.allocated - said.gpu.get("optimizer state", 0), said.flops
