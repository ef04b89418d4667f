"""A real supervisor over a peer whose process is a shell script."""

import subprocess
import sys
from pathlib import Path

from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.killed_for_memory import VMSTAT


def supervised(
    folder: Path,
    script: str,
    vmstat: Path = VMSTAT,
    shortly_s: float = 100,
    soon_s: float = 60,
    asleep_s: float = 0,
    stderr: int | None = None,
    **settings,
) -> subprocess.Popen:
    """Start the supervisor of a peer in a folder that is there; it is called after the folder.

    It waits little before it starts the peer again, which it does after `soon_s`. Memory is why the peer ended if it
    ran out at most `shortly_s` before. The computer sleeps for `asleep_s` once the script has made a file `again`.
    """
    (program := folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    PeerSettings(run="emoji-mini", **{"name": folder.name, **settings}).save(folder / "settings.json")
    supervise = "import sys; from pathlib import Path; "
    supervise += "from dalle_lib.swarm.process import killed_for_memory as k, supervisor as s; "
    supervise += f"s.LOOK_EVERY_S = 0.1; k.VMSTAT = Path({str(vmstat)!r}); s.WAITS_S = 0.1; "
    supervise += "import time as t; from types import SimpleNamespace as N; again = Path(sys.argv[1]) / 'again'; "
    supervise += f"s.time = N(monotonic=t.monotonic, time=lambda: t.time() + {asleep_s} * again.exists()); "
    supervise += f"s.SOON_S = {soon_s}; s.SHORTLY_S = dict.fromkeys(s.SHORTLY_S, {shortly_s}); "
    supervise += f"sys.executable = {str(program)!r}; sys.exit(s.main(Path(sys.argv[1])))"
    command = [sys.executable, "-c", supervise, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr, text=True)
