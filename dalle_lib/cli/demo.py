"""`dalle-lib demo`."""

import json
from dataclasses import dataclass
from pathlib import Path

from dalle_lib.files import require_writable
from dalle_lib.swarm.process.settings import PeerSettings


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a private swarm on this machine, and draw with the model from before and after.

    Nothing leaves the machine. It needs no GPU, no account and no network. For example:

    dalle-lib demo

    dalle-lib demo --minutes 2 --out outputs/short
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
        require_writable(self.out)
        if self.notebook is not None and not self.notebook.is_file():
            raise ValueError(f"expected a notebook, but there is no file {self.notebook}: name one with --notebook.")
        PeerSettings(run="emoji-mini", max_minutes=self.minutes, start_after_s=self.late_s)  # refuses what cannot be

        from dalle_lib.dashboard.run_page import DASHBOARD, PAGE
        from dalle_lib.dashboard.summary import summary_text
        from dalle_lib.demo import run_demo, run_notebook
        from dalle_lib.platforms import typed

        if self.notebook is not None:
            summary = run_notebook(self.notebook, self.out)
        else:
            summary = run_demo(self.out, self.minutes, self.from_scratch, self.late_s)
        next_step = "Next: open the notebook yourself with `make lab`, or read in README.md what a peer can do."
        page = self.out / DASHBOARD / PAGE
        if page.exists():
            next_step += f"\nThe run's dashboard, to open in a browser: {page}"
        print(json.dumps(summary) if self.json else f"\n{summary_text(summary, self.out, typed())}\n{next_step}")
