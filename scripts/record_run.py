"""Record the run that `dalle-lib replay` and notebook 07 play when no other is named: `python scripts/record_run.py`.

Real peers train the embedded model on this machine, in a swarm of their own: volunteers join, leave and come back, and
one is killed. A monitor examines checkpoints, draws with them, and records what the peers have signed.
"""

import base64
import gzip
import io
import json
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import tyro
from PIL import Image

from dalle_lib.monitor import evaluating
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.here import watch_over
from dalle_lib.monitor.monitor import DATABASE
from dalle_lib.monitor.recording import ENDING, RECORDINGS
from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.replay import RECORDING, Replay
from dalle_lib.run import RunCard
from dalle_lib.swarm import LocalSwarm, PeerFailed, PeerSettings
from dalle_lib.swarm.process.local import MONITOR

TEAMS = {"ada": "owls", "bob": "owls", "cleo": "foxes", "dev": "", "eve": "foxes"}
ACTS = (
    (0, "joins", "ada"), (0, "joins", "bob"), (1, "joins", "cleo"), (3, "joins", "eve"), (9, "leaves", "bob"),
    (10, "joins", "dev"), (14, "is killed", "cleo"), (16, "joins", "bob"), (22.5, "leaves", "dev"),
    (24, "leaves", "ada"), (24, "leaves", "bob"), (24, "leaves", "eve"),
)  # fmt: skip
"""What happens at which minute."""
WATCHING = MonitorSettings(
    checkpoint_minutes=3.0, look_s=20.0, status_s=20.0, rows=32, prompts=8, record=True, record_mb=10.0
)
"""A look in 20 s, as often as peers post, keeps the recording small."""
QUALITY = 85
"""Of the pictures, as WebP: all of the recording must stay below 300 kB."""
EXAMINED_S = 600.0
"""Seconds after the end in which checkpoints are still examined."""
EPOCHS = {"total_epochs": 240, "lr": 0.005}
TARGET_BATCH_SIZE = 48
"""A quarter of the embedded run's, with half of its learning rate: epochs of half a minute on two busy cores."""


def act(swarm: LocalSwarm, what: str, name: str) -> None:
    """Let a trainer join, leave, or be killed with all its processes."""
    if what == "joins":
        swarm.add(PeerSettings(run="", name=name, team=TEAMS[name], batch_size=4, duty=0.5 if name == "eve" else 1.0))
        return
    peer = swarm.peers[name]
    if what == "leaves":
        peer.ask_to_stop()
        return
    first = psutil.Process(peer.supervisor_id)
    for process in [first, *first.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def are_examined(monitor: Path) -> bool:
    """Return whether all checkpoints of a monitor have their figures."""
    with closing(MonitorDatabase(monitor / DATABASE)) as database:
        return database.count("SELECT COUNT(*) FROM checkpoints WHERE figures IS NULL") == 0


def with_smaller_pictures(text: bytes) -> bytes:
    """Return the lines of a recording whose pictures have half the width, as those of the embedded model are drawn."""
    lines = []
    for line in map(json.loads, text.splitlines()):
        if line.get("file", "").endswith(".webp"):
            picture, smaller = Image.open(io.BytesIO(base64.b64decode(line["data"]))), io.BytesIO()
            size = picture.width // 2, picture.height // 2
            picture.resize(size, Image.Resampling.LANCZOS).save(smaller, "WEBP", quality=QUALITY, method=6)
            line["data"] = base64.b64encode(smaller.getvalue()).decode()
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def main(folder: Path = Path("outputs/recorded"), out: Path = RECORDING) -> None:
    """Play the run in a new `folder`, and write its recording to the file `out`."""
    evaluating.NICENESS = 0  # else a busy machine examines no checkpoint until the run is over
    card = RunCard.load("emoji-mini")
    card = card.with_changes(
        name="evening", optimizer=card.optimizer.model_dump() | EPOCHS,
        averaging=card.averaging.model_dump() | {"target_batch_size": TARGET_BATCH_SIZE},
    )  # fmt: skip
    folder.mkdir(parents=True)
    began, monitor = time.time(), folder / "swarm" / MONITOR
    try:
        with closing(LocalSwarm.start(card, folder / "swarm")) as swarm:
            watch_over(swarm, WATCHING)
            for minute, what, name in ACTS:
                time.sleep(max(0.0, began + 60 * minute - time.time()))
                print(f"{(time.time() - began) / 60:5.1f} min: {name} {what}", flush=True)
                act(swarm, what, name)
            ended = time.time()
            while time.time() < ended + EXAMINED_S and not are_examined(monitor):
                time.sleep(5.0)
            time.sleep(2 * WATCHING.look_s)  # what was found last is recorded, too
    except PeerFailed as failed:
        print(f"{failed}"[:300])  # that of the one that was killed
    (recorded,) = (monitor / RECORDINGS).glob(f"*{ENDING}")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = with_smaller_pictures(gzip.decompress(recorded.read_bytes()))
    out.write_bytes(gzip.compress(text, mtime=0))  # one member is smaller than many
    played = Replay(out, folder / "played").play()
    print(json.dumps(vars(played) | {"bytes": out.stat().st_size}, indent=1, default=str))


if __name__ == "__main__":
    tyro.cli(main)
