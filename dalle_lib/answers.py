"""What the commands answer a person on the terminal; with --json they print the same facts as JSON instead."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalle_lib.inference import Drawing


def describe_drawing(drawing: "Drawing", files: list[Path]) -> str:
    """Return where the best candidates of a prompt are, and how well CLIP thinks they fit it."""
    lines = [f"{drawing.prompt!r}, seed {drawing.settings.seed}, {sum(drawing.seconds.values()):.1f} s:"]
    scores = [f"{float(drawing.scores[number]):.3f}" for number in drawing.best]
    lines += [f"  {file}  CLIP score {score}" for file, score in zip(files, scores, strict=True)]
    if drawing.unknown_words:
        lines.append(f"  the model never saw: {', '.join(drawing.unknown_words)}")
    return "\n".join(lines)


def describe_memory(model: str, gpu: str, mbps: float, about: dict) -> str:
    """Return what training `model` needs, term by term, and whether it fits on `gpu`."""
    lines = [f"{model}: {about['parameters']:,} parameters. Highest moment: {about['moment']}. In GB:"]
    for place in "gpu", "ram":
        low, high = about[f"{place}_range"]
        lines += [f"  {place.upper()}  {term:22} {size / 1e9:9.3f}" for term, size in about[place].items()]
        lines.append(f"  {place.upper()}  {'in all':22} {low / 1e9:9.3f} to {high / 1e9:.3f}")
    size, batch = about["gpu_bytes"] / 1e9, about["largest_batch"]
    lines.append(f"It {about['verdict']} a {gpu} of {size:.1f} GB. Largest batch: {batch}.")
    for step in about["advice"][1:]:
        lines.append(f"  with {step['name']}: {step['gpu_range'][1] / 1e9:.2f} GB, {step['verdict']}")
    if about["samples_per_second"]:
        lines.append(f"{about['samples_per_second']:.2f} sequences a second.")
    sent = f"{about['sent'] / 1e6:,.0f} MB, {about['seconds_to_send']:,.0f} s at {mbps:g} Mbit/s"
    lines.append(f"For each update that a swarm makes together, a peer sends {sent}.")
    if about["unmeasured"]:
        lines.append(f"Not measured yet: {', '.join(about['unmeasured'])}.")
    lines.append(about["accuracy"])
    return "\n".join(lines)
