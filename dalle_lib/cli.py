"""The command line: `dalle-lib demo`, `join`, `generate`, `memory`, `doctor` and `convert-vqgan`.

Each command is a dataclass whose fields are its options. It imports what it needs when it runs, so --help is quick.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.answers import describe_drawing, describe_memory
from dalle_lib.inference.settings import Settings
from dalle_lib.memory import GPUS, Training, advise, estimate, largest_batch
from dalle_lib.memory.accuracy import in_words
from dalle_lib.memory.hardware import gpu_bytes
from dalle_lib.swarm.process.settings import PeerSettings


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a private swarm on this machine, and draw with the model from before and after.

    Nothing leaves the machine. It needs no GPU, no account and no network.
    """

    minutes: float = 4.5
    """Minutes to train."""
    out: Path = Path("outputs/demo")
    """Folder for the pictures, plots and figures."""
    from_scratch: bool = False
    """Start from random weights instead of the young checkpoint."""
    late_s: float = 60.0
    """Seconds after which the last of the three trainers joins."""
    json: bool = False
    """Print the summary as JSON on standard output."""
    notebook: Path | None = None
    """Execute this notebook, which does the same with its own settings, and keep it as a page."""

    def run(self) -> None:
        """Run the demo or its notebook, and print its summary."""
        from dalle_lib.dashboard.summary import summary_text
        from dalle_lib.demo import run_demo, run_notebook

        if self.notebook is not None:
            summary = run_notebook(self.notebook, self.out)
        else:
            summary = run_demo(self.out, self.minutes, self.from_scratch, self.late_s)
        next_step = "Next: open the notebook yourself with `make lab`, or read in README.md what a peer can do."
        print(json.dumps(summary) if self.json else f"\n{summary_text(summary, self.out)}\n{next_step}")


@dataclass(frozen=True, kw_only=True)
class Join:
    """Take part in a run from this terminal, with a peer on each GPU, until it is complete or you press Ctrl+C."""

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")]
    folder: Path = field(default=Path("peers"))
    """Folder that holds a folder for each peer: its progress, log and events. A peer goes on from what is there."""

    def run(self) -> None:
        """Start the peers, and show their progress until they end."""
        from dalle_lib.dashboard.watching import watch
        from dalle_lib.machine import hub_token
        from dalle_lib.swarm import join_run

        crew = join_run(self.peer, self.folder, hub_token())
        watch(crew.peers[self.peer.name])
        crew.close()


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Draw pictures of prompts with the model of a run. With an embedded run, nothing is downloaded."""

    prompts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to draw, each prompt in quotes."""
    model: Annotated[str, tyro.conf.arg(name="run")] = "emoji"
    """An embedded run, a folder, owner/name on the Hub, or paper-2021."""
    candidates: int = 32
    """How many pictures to draw of each prompt."""
    best: int = 4
    """How many of them CLIP keeps."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    device: str | None = None
    """cpu or cuda; None takes a GPU if there is one."""
    out: Path = Path("outputs/pictures")
    """Folder for the pictures."""
    json: bool = False
    """Print what was drawn as JSON on standard output, one line a prompt."""

    def run(self) -> None:
        """Draw all prompts, and print where their best pictures are."""
        from dalle_lib.inference import TextToImage

        if not self.prompts:
            raise ValueError('expected a prompt, as in: dalle-lib generate "penguin on a yellow background"')
        draw = TextToImage.from_run(self.model, self.device)
        drawings = draw(list(self.prompts), candidates=self.candidates, best=self.best, **asdict(self.settings))
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
    """Tell how much GPU memory and RAM training a model needs, by term, and what to switch on until it fits."""

    model: Annotated[str, tyro.conf.Positional]
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
        print(json.dumps(about) if self.json else describe_memory(self.model, self.gpu, self.mbps, about))

    def _model(self) -> str | dict:
        """Return the model as `estimate` takes it: a known name, or the configuration that was named."""
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
    """Check whether this machine can take part in a run, and say what to do where it cannot.

    Give it the settings with which you want to join. It starts what a peer needs, connects to the run's first peers,
    sends one of them up to 8 MB, and asks the Hub for the time. It prints a block to copy when asking for help, without
    secrets, other people's addresses and your name in paths. Its exit code is 1 if this machine cannot take part.
    """

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")] = field(
        default_factory=lambda: PeerSettings(run="emoji-mini")
    )
    folder: Path | None = None
    """Folder of a peer that failed. Its settings are checked instead, and the end of its log is shown."""
    json: bool = False
    """Print the checks as JSON on standard output, with addresses."""

    def run(self) -> None:
        """Check, print what was found, and raise RuntimeError if something is missing."""
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

    Only numbers are taken from the checkpoint; the Python objects in it are never made, so nothing in it can run. You
    still trust the numbers: compare the hash that is printed with the one that the publisher names.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """The .ckpt file."""
    out: Annotated[Path, tyro.conf.Positional]
    """The .safetensors file to write."""
    sha256: str | None = None
    """Refuse a checkpoint with another hash."""

    def run(self) -> None:
        """Convert, and print both files' hashes."""
        from dalle_lib.files import sha256_of
        from dalle_lib.vqgan import convert_vqgan

        converted = convert_vqgan(self.checkpoint, self.out, self.sha256)
        print(
            f"read    {self.checkpoint}  SHA-256 {sha256_of(self.checkpoint)}\nwritten {self.out}  SHA-256 {converted}"
        )


def main() -> None:
    """Run the command that the arguments name; an error of the user's ends it with one line and exit code 1."""
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
