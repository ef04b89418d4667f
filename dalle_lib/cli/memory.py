"""`dalle-lib memory`."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.files import small_text
from dalle_lib.memory import Training, advise, estimate, gpu_named, largest_batch
from dalle_lib.memory.accuracy import in_words
from dalle_lib.memory.estimate import ASSUMED


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Tell how much GPU memory and RAM training a model needs, by term, and what to switch on until it fits.

    For example:

    dalle-lib memory gpt2-large --optimizer adamw8bit --checkpointing --gpu T4

    dalle-lib memory dalle-paper --optimizer lamb8bit --reversible --swarm --mbps 20
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model that the calculator knows, the config.json of another, or owner/name on the Hub."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)
    gpu: str = "T4"
    """A GPU by name, or its memory in GiB."""
    teraflops: float | None = None
    """Speed that your device reaches, in 10^12 operations a second. With it, sequences a second are told too."""
    mbps: float = 100.0
    """Speed of your link in megabits a second, for how long a peer of a swarm takes to send its gradients."""
    json: bool = False
    """Print everything as JSON on standard output."""

    def run(self) -> None:
        """Estimate, and print what is needed."""
        for name in "mbps", "teraflops":
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} must be above 0 and finite, but is {value}.")
        model = self._model()
        gpu = gpu_named(self.gpu)
        result, size = estimate(model, self.training, gpu=gpu), gpu.size
        steps = advise(model, self.training, size, gpu.has_bf16, gpu)
        advice = [{"name": s.name, "gpu_range": s.estimate.gpu_range, "verdict": s.verdict} for s in steps]
        about = result.as_dict() | {"gpu_bytes": size, "verdict": result.verdict(size), "advice": advice}
        about["accuracy"] = in_words()
        about["largest_batch"] = largest_batch(model, self.training, size, gpu=gpu)
        about["seconds_to_send"] = result.seconds_to_send(1e6 * self.mbps)
        about["samples_per_second"] = self.teraflops and result.samples_per_second(1e12 * self.teraflops)
        print(json.dumps(about) if self.json else describe_memory(self.model, gpu.name, self.mbps, about))

    def _model(self) -> str | dict:
        """Return the model as `estimate` takes it: a known name, or the configuration that was named."""
        if not self.model.endswith(".json") and "/" not in self.model:
            return self.model
        from dalle_lib.measurement import read_config

        if not self.model.endswith(".json"):
            return read_config(self.model)
        if not Path(self.model).is_file():
            raise ValueError(f"expected the config.json of a model, but there is no file {self.model}.")
        try:
            return read_config(small_text(Path(self.model)))
        except ValueError as error:
            raise ValueError(f"{self.model}: {error}") from error


def describe_memory(model: str, gpu: str, mbps: float, about: dict) -> str:
    """Return what training `model` needs, term by term, and whether it fits on `gpu`."""
    lines = [f"{model}: {about['parameters']:,} parameters. Highest moment: {about['moment']}. In GB:"]
    for place in "gpu", "ram":
        low, high = about[f"{place}_range"]
        for term, size in about[place].items():
            note = "  (the middle of a range)" if term in ASSUMED else ""
            lines.append(f"  {place.upper()}  {term:22} {size / 1e9:9.3f}{note}")
        lines.append(f"  {place.upper()}  {'in all':22} {low / 1e9:9.3f} to {high / 1e9:.3f}")
    size, batch = about["gpu_bytes"] / 1e9, about["largest_batch"]
    largest = f"Largest batch that surely fits: {batch}." if batch else "Not even a batch of 1 surely fits."
    lines.append(f"It {about['verdict']}: {gpu} has {size:.1f} GB. {largest}")
    for step in about["advice"][1:]:
        lines.append(f"  with {step['name']}: up to {step['gpu_range'][1] / 1e9:.2f} GB, {step['verdict']}")
    if about["samples_per_second"]:
        lines.append(f"{about['samples_per_second']:.2f} sequences a second.")
    sent = f"{about['sent'] / 1e6:,.0f} MB, {about['seconds_to_send']:,.0f} s at {mbps:g} Mbit/s"
    lines.append(f"For each update that a swarm makes together, a peer sends {sent}.")
    if about["unmeasured"]:
        lines.append(f"Computed, but not compared with a measurement: {', '.join(about['unmeasured'])}.")
    lines.append(about["accuracy"])
    return "\n".join(lines)
