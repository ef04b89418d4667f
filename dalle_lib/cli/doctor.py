"""`dalle-lib doctor`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.swarm.process.settings import PeerSettings


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
