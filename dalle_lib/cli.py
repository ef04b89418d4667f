"""The command line: `dalle-lib demo` and `dalle-lib join`."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.swarm.settings import PeerSettings


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
    """Take part in a run from this terminal, until the run is complete or you press Ctrl+C."""

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")]
    folder: Path = field(default=Path("peer"))
    """Where this peer keeps its progress, its log and its events. It goes on from there next time."""

    def run(self) -> None:
        """Run it."""
        from dalle_lib.dashboard import watch
        from dalle_lib.swarm import join

        watch(join(self.peer, self.folder))


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
        f"Look at {out}/before_after.png and {out}/run.png; all figures are in {out}/summary.json.\n"
        f"Next: open the notebook yourself with `make lab`, or read README.md on what a peer can do."
    )


def main() -> None:
    """Run the command that the arguments name."""
    command = tyro.extras.subcommand_cli_from_dict(
        {"demo": Demo, "join": Join}, prog="dalle-lib", description="Train a text-to-image model together."
    )
    try:
        command.run()
    except (ValueError, RuntimeError) as error:
        sys.exit(f"dalle-lib: {error}")
