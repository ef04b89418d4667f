"""`dalle-lib doctor`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.cli.peer_options import OptionsToCheck
from dalle_lib.swarm.process.folder import PEERS, SETTINGS
from dalle_lib.swarm.process.settings import PeerSettings

if TYPE_CHECKING:
    from dalle_lib.checks.preflight import Check


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check whether this machine can take part in a run, or begin one, and say what to do where it cannot.

    Give it the settings with which you want to join. It starts what a peer needs, connects to the run's first peers,
    sends one of them up to 8 MB, and asks the Hub for the time. It prints each check when it is done, in a block to
    copy when asking for help, without secrets, other people's addresses and your name in paths. The last rows forecast
    samples a second, seconds of an epoch, when milestones are reached, and the traffic of a day. Its exit code is 1 if
    this machine cannot take part. With --organiser it checks the machine of a run's first peer and authority instead:
    whether others reach them, the certificate, keys, and what such a machine needs. For example:

    dalle-lib doctor --run owner/name --name ada

    dalle-lib doctor --folder peers/owner--name/ada

    dalle-lib doctor --organiser --run owner/name --port 31337 --keys my-run.keys
    """

    peer: OptionsToCheck
    folder: Path | None = None
    """Folder of a peer that failed. Its settings are checked instead, and the end of its log is shown."""
    organiser: bool = False
    """Check this machine as that of the run's first peer and authority, with the --port of the first peer."""
    keys: Path | None = None
    """With --organiser, the folder of the run's keys, in which are those of the authority and of the first peer."""
    json: bool = False
    """Print the checks as JSON on standard output, with addresses."""

    def run(self) -> None:
        """Print each check when it is done, and raise RuntimeError if something is missing."""
        print("Checking what a peer needs ...", file=sys.stderr, flush=True)  # what follows loads torch, for seconds

        from dalle_lib.checks.doctor import doctor_checks
        from dalle_lib.checks.organiser import organiser_checks
        from dalle_lib.checks.preflight import table
        from dalle_lib.checks.report import report_lines
        from dalle_lib.run import hub_token_for
        from dalle_lib.swarm import Peer

        if self.folder and not (self.folder / SETTINGS).is_file():
            raise ValueError(f"expected the folder of a peer, with its {SETTINGS}, but that is not in {self.folder}.")
        if self.keys and not (self.organiser and self.keys.is_dir()):
            raise ValueError(f"expected --organiser and a folder of keys as --keys, but got {self.keys}.")
        settings = PeerSettings.load(self.folder / SETTINGS) if self.folder else self.peer
        token = hub_token_for(settings.run)
        done, aim = [], "serve" if self.organiser else "take part in"

        def checks() -> Iterator["Check"]:
            if self.organiser:
                rows = organiser_checks(settings, self.keys, token)
            else:
                rows = doctor_checks(settings, self.folder or PEERS, token)
            for check in rows:
                done.append(check)
                yield check

        if self.json:
            print(table(checks()).to_json(orient="index"))
        else:
            for piece in report_lines(self.folder and Peer(self.folder), checks()):
                print(piece, flush=True)
        if missing := [check.what for check in done if not check.ok]:
            raise RuntimeError(f"this machine cannot {aim} {settings.run} yet: {', '.join(missing)} (see above).")
        print(f"This machine can {aim} {settings.run}, as far as these checks tell.", file=sys.stderr)
