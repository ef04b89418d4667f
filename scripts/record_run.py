"""Record the run that `dalle-lib replay` and notebook 07 play when no other is named: `python scripts/record_run.py`.

Real peers train the embedded model on this machine, in a swarm of their own: volunteers join, leave and come back, and
one is killed. A monitor examines checkpoints, draws with them, and records what the peers have signed.
"""

import gzip
import json
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import tyro

from dalle_lib.monitor.here import watch_over
from dalle_lib.monitor.recording import ENDING, RECORDINGS
from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.replay import RECORDING, Replay
from dalle_lib.run import RunCard
from dalle_lib.swarm import LocalSwarm, PeerFailed, PeerSettings
from dalle_lib.swarm.process.local import MONITOR

TEAMS = {"ada": "owls", "bob": "owls", "cleo": "foxes", "dev": "", "eve": "foxes"}
ACTS = (
    (0, "joins", "ada"), (0, "joins", "bob"), (2, "joins", "cleo"), (4, "joins", "eve"), (9, "leaves", "bob"),
    (11, "is killed", "cleo"), (12, "joins", "dev"), (16, "joins", "bob"), (20, "leaves", "dev"),
)  # fmt: skip
"""What happens at which minute."""
WATCHING = MonitorSettings(
    checkpoint_minutes=2.5, look_s=20.0, status_s=20.0, rows=64, prompts=8, record=True, record_mb=10.0
)
"""A look in 20 s, as often as peers post, keeps the recording small."""


def act(swarm: LocalSwarm, what: str, name: str) -> None:
    """Let a trainer join, leave, or be killed with all its processes."""
    if what == "joins":
        swarm.add(PeerSettings(run="", name=name, team=TEAMS[name], batch_size=8, duty=0.5 if name == "eve" else 1.0))
        return
    peer = swarm.peers[name]
    if what == "leaves":
        peer.ask_to_stop()
        return
    first = psutil.Process(peer.supervisor_id)
    for process in [first, *first.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def main(folder: Path = Path("outputs/recorded"), out: Path = RECORDING, minutes: float = 25.0) -> None:
    """Play the run in a new `folder` for `minutes`, and write its recording to the file `out`."""
    card = RunCard.load("emoji-mini")
    card = card.with_changes(name="evening", optimizer=card.optimizer.model_dump() | {"total_epochs": 240})
    folder.mkdir(parents=True)
    due, began = list(ACTS), time.time()
    try:
        with closing(LocalSwarm.start(card, folder / "swarm")) as swarm:
            watch_over(swarm, WATCHING)
            while time.time() < began + 60 * minutes:
                while due and time.time() >= began + 60 * due[0][0]:
                    _, what, name = due.pop(0)
                    print(f"{(time.time() - began) / 60:5.1f} min: {name} {what}", flush=True)
                    act(swarm, what, name)
                time.sleep(1.0)
    except PeerFailed as failed:
        print(f"{failed}"[:300])  # that of the one that was killed
    (recorded,) = (folder / "swarm" / MONITOR / RECORDINGS).glob(f"*{ENDING}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(gzip.compress(gzip.decompress(recorded.read_bytes()), mtime=0))  # one member is smaller
    played = Replay(out, folder / "played").play()
    print(json.dumps(vars(played) | {"bytes": out.stat().st_size}, indent=1, default=str))


if __name__ == "__main__":
    tyro.cli(main)
