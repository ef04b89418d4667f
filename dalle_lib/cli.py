"""The command line: `dalle-lib demo`, `join`, `generate`, `memory` and `convert-vqgan`."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.memory import GPUS, Training, advise, estimate, largest_batch
from dalle_lib.memory.accuracy import in_words
from dalle_lib.memory.hardware import gpu_bytes
from dalle_lib.swarm.process.settings import PeerSettings

if TYPE_CHECKING:
    from dalle_lib.inference import Drawing


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a private swarm on this machine, and draw with the model from before and after.

    Nothing leaves the machine. Needs no GPU, no token, no network.
    """

    minutes: float = 4.5
    """How long to train."""
    out: Path = Path("outputs/demo")
    """Where the pictures, plots and figures go."""
    from_scratch: bool = False
    """Start from random weights instead of the young checkpoint."""
    late_s: float = 60.0
    """When the last of the three trainers joins."""
    json: bool = False
    """Print the summary as JSON on standard output."""
    notebook: Path | None = None
    """Execute this notebook, which does the same with its own settings, and keep it as a page."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.demo import run_demo, run_notebook

        if self.notebook is not None:
            summary = run_notebook(self.notebook, self.out)
        else:
            summary = run_demo(self.out, self.minutes, self.from_scratch, self.late_s)
        print(json.dumps(summary) if self.json else describe(summary, self.out))


@dataclass(frozen=True, kw_only=True)
class Join:
    """Take part in a run from this terminal, with a peer on each GPU, until it is complete or you press Ctrl+C."""

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")]
    folder: Path = field(default=Path("peers"))
    """Where each peer has a folder by its name, with its progress, its log and its events. It goes on from there."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.dashboard.watching import watch
        from dalle_lib.machine import hub_token
        from dalle_lib.swarm import join_run

        crew = join_run(self.peer, self.folder, hub_token())
        watch(crew.peers[self.peer.name])
        crew.close()


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Draw pictures of prompts with the model of a run. On the embedded run nothing is downloaded."""

    prompts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to draw, each prompt in quotes."""
    model: Annotated[str, tyro.conf.arg(name="run")] = "emoji"
    """An embedded run, a folder, owner/name on the Hub, or paper-2021."""
    candidates: int = 32
    """How many to draw of each prompt."""
    best: int = 4
    """How many of them CLIP keeps."""
    top_k: int = 256
    """Draw each code among this many likeliest ones; 0 is all."""
    top_p: float = 1.0
    """Draw each code among the likeliest ones that together have this probability."""
    temperature: float = 1.0
    """Below 1 safer, above 1 bolder."""
    guidance: float | None = None
    """How strongly the prompt pulls; without it, what suits the run."""
    seed: int | None = None
    """The same seed and settings give the same pictures; without it, one is made up and told."""
    device: str | None = None
    """cpu or cuda; without it, a GPU if there is one."""
    out: Path = Path("outputs/pictures")
    """Where the pictures go."""
    json: bool = False
    """Print what was drawn as JSON on standard output."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.inference import TextToImage

        if not self.prompts:
            raise ValueError('expected a prompt, as in: dalle-lib generate "penguin on a yellow background"')
        settings = {name: getattr(self, name) for name in ("candidates", "best", *_SETTINGS)}
        drawings = TextToImage.from_run(self.model, self.device)(list(self.prompts), **settings)
        for drawing in drawings:
            files = drawing.save(self.out)
            if self.json:
                about = [
                    drawing.about(number) | {"file": str(file)}
                    for number, file in zip(drawing.best, files, strict=True)
                ]
                print(json.dumps({"pictures": about, "seconds": drawing.seconds, "unknown": drawing.unknown_words}))
            else:
                print(describe_drawing(drawing, files))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Tell what training a model needs of GPU memory and RAM, by term, and what to switch on until it fits."""

    model: Annotated[str, tyro.conf.Positional]
    """A model that the calculator knows, the config.json of another, or owner/name on the Hub."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)
    gpu: str = "T4"
    """A GPU by name, or its memory in GiB."""
    teraflops: float | None = None
    """What your device really computes, in 10^12 operations a second, for the sequences a second that it makes."""
    mbps: float = 100.0
    """Megabits a second of your link, for the gradients that a peer of a swarm sends."""
    json: bool = False
    """Print everything as JSON on standard output."""

    def run(self) -> None:
        """Run it."""
        for name in "mbps", "teraflops":
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"--{name} must be above 0, but is {value}.")
        model = self._model()
        size, result = gpu_bytes(self.gpu), estimate(model, self.training)
        has_bf16 = GPUS[self.gpu].has_bf16 if self.gpu in GPUS else True
        steps = advise(model, self.training, size, has_bf16)
        advice = [{"name": s.name, "gpu_range": s.estimate.gpu_range, "verdict": s.verdict} for s in steps]
        about = result.as_dict() | {"gpu_bytes": size, "verdict": result.verdict(size), "advice": advice}
        about["accuracy"] = in_words()
        about["largest_batch"] = largest_batch(model, self.training, size)
        about["seconds_to_send"] = result.seconds_to_send(1e6 * self.mbps)
        about["samples_per_second"] = self.teraflops and result.samples_per_second(1e12 * self.teraflops)
        print(json.dumps(about) if self.json else describe_memory(self, about))

    def _model(self) -> str | dict:
        if self.model.endswith(".json"):
            if not Path(self.model).is_file():
                raise ValueError(f"expected the config.json of a model, but there is no file {self.model}.")
            return json.loads(Path(self.model).read_text(encoding="utf-8"))
        if "/" not in self.model:
            return self.model
        from dalle_lib.measurement import read_config

        return read_config(self.model)


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check whether this machine can take part in a run, and what to do where it cannot.

    Give it the settings with which you want to join. It starts what a peer needs, connects to the run's first peers,
    sends one of them up to 8 MB, and asks the Hub for the time. It prints a block to copy when asking for help, without
    tokens, keys, addresses of others and your name in paths. Its exit code is 1 if this machine cannot take part.
    """

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")] = field(
        default_factory=lambda: PeerSettings(run="emoji-mini")
    )
    folder: Path | None = None
    """The folder of a peer that failed: its settings are checked instead, and the end of its log is shown."""
    json: bool = False
    """Print the checks as JSON on standard output, with addresses."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.checks.doctor import doctor
        from dalle_lib.checks.report import problem_report
        from dalle_lib.machine import hub_token
        from dalle_lib.run import EMBEDDED_RUNS
        from dalle_lib.swarm import Peer
        from dalle_lib.swarm.process.join import SETTINGS

        if self.folder and not (self.folder / SETTINGS).is_file():
            raise ValueError(f"expected the folder of a peer, with its {SETTINGS}, but that is not in {self.folder}.")
        settings = PeerSettings.load(self.folder / SETTINGS) if self.folder else self.peer
        token = None if settings.run in EMBEDDED_RUNS else hub_token()
        checks = doctor(settings, self.folder or ".", token)
        report = problem_report(self.folder and Peer(self.folder), checks=checks)
        print(checks.to_json(orient="index") if self.json else report)
        if missing := list(checks.index[~checks["ok"]]):
            raise RuntimeError(
                f"this machine cannot take part in {settings.run} yet: {', '.join(missing)} (see above)."
            )


@dataclass(frozen=True, kw_only=True)
class ConvertVqgan:
    """Turn a Lightning checkpoint of the published VQ-GAN into safetensors.

    Only numbers are taken from the checkpoint; the Python objects in it are never made, so nothing in it can run. What
    remains to trust is the numbers: compare the hash that is printed with the one that the publisher names.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """The .ckpt file."""
    out: Annotated[Path, tyro.conf.Positional]
    """The .safetensors file to write."""
    sha256: str | None = None
    """Refuse a checkpoint with another hash."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.files import sha256_of
        from dalle_lib.vqgan import convert_vqgan

        converted = convert_vqgan(self.checkpoint, self.out, self.sha256)
        print(
            f"read    {self.checkpoint}  SHA-256 {sha256_of(self.checkpoint)}\nwritten {self.out}  SHA-256 {converted}"
        )


_SETTINGS = ("top_k", "top_p", "temperature", "guidance", "seed")


def describe_drawing(drawing: "Drawing", files: list[Path]) -> str:
    """Return what was drawn, for a person."""
    lines = [f"{drawing.prompt!r}, seed {drawing.settings.seed}, {sum(drawing.seconds.values()):.1f} s:"]
    scores = [f"{float(drawing.scores[number]):.3f}" for number in drawing.best]
    lines += [f"  {file}  CLIP score {score}" for file, score in zip(files, scores, strict=True)]
    if drawing.unknown_words:
        lines.append(f"  the model never saw: {', '.join(drawing.unknown_words)}")
    return "\n".join(lines)


def describe_memory(asked: Memory, about: dict) -> str:
    """Return what training needs, for a person."""
    lines = [f"{asked.model}: {about['parameters']:,} parameters. Highest moment: {about['moment']}. In GB:"]
    for place in "gpu", "ram":
        low, high = about[f"{place}_range"]
        lines += [f"  {place.upper()}  {term:22} {size / 1e9:9.3f}" for term, size in about[place].items()]
        lines.append(f"  {place.upper()}  {'in all':22} {low / 1e9:9.3f} to {high / 1e9:.3f}")
    size, batch = about["gpu_bytes"] / 1e9, about["largest_batch"]
    lines.append(f"It {about['verdict']} a {asked.gpu} of {size:.1f} GB. Largest batch: {batch}.")
    for step in about["advice"][1:]:
        lines.append(f"  with {step['name']}: {step['gpu_range'][1] / 1e9:.2f} GB, {step['verdict']}")
    if about["samples_per_second"]:
        lines.append(f"{about['samples_per_second']:.2f} sequences a second.")
    sent = f"{about['sent'] / 1e6:,.0f} MB, {about['seconds_to_send']:,.0f} s at {asked.mbps:g} Mbit/s"
    lines.append(f"For each update that a swarm makes together, a peer sends {sent}.")
    if about["unmeasured"]:
        lines.append(f"Not measured yet: {', '.join(about['unmeasured'])}.")
    lines.append(about["accuracy"])
    return "\n".join(lines)


def describe(summary: dict, out: Path) -> str:
    """Return the demo's summary for a person."""
    before, after = summary["before"], summary["after"]
    work = ", ".join(
        f"{name} {summary['share_of_samples'][name]:.0%} of the samples and "
        f"{summary['share_of_gradients'].get(name, 0):.0%} of the gradients"
        for name in summary["samples_by_peer"]
    )
    return (
        f"\n{summary['epochs']} epochs in {summary['seconds']:.0f} s: {work}.\n"
        f"Right pictures, captions of the training data: {before['exact_seen']:.0%} before, "
        f"{after['exact_seen']:.0%} after.\n"
        f"Right pictures, combinations never seen: {before['exact_unseen']:.0%} before, "
        f"{after['exact_unseen']:.0%} after.\n"
        f"Look at {out}/before_after.png, {out}/best_of_32.png and {out}/run.png; figures are in {out}/summary.json.\n"
        f"Next: open the notebook yourself with `make lab`, or read README.md on what a peer can do."
    )


def main() -> None:
    """Run the command that the arguments name."""
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {
                "demo": Demo,
                "join": Join,
                "generate": Generate,
                "memory": Memory,
                "doctor": Doctor,
                "convert-vqgan": ConvertVqgan,
            },
            prog="dalle-lib",
            description="Train a text-to-image model together, and draw with it.",
        )
        command.run()
    except (ValueError, RuntimeError, ConnectionError, FloatingPointError) as error:
        sys.exit(f"dalle-lib: {error}")
