"""How much does a monitor remember, and tell, of a week of a run of 40 peers?

The looks of a week are played in minutes, one every `look_s` seconds: 40 users whose peers are there for 14 hours a
day, start anew once a day and sometimes lag. Prints JSON: the bytes of status.json (figure) against 200 kB
(reference), with those of the data base and of the history, the milliseconds that a look takes, and what a status and
a checkpoint send to the Hub besides the checkpoint itself, to a stand-in, at the week's end when they are largest.
"""

import json
import platform
import random
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro

from dalle_lib.checkpoint import save_tensors
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.contributions import DAY_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import PICTURES
from dalle_lib.monitor.evaluating import Figures
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import HISTORY, history_of, publish, status_of
from dalle_lib.monitor.uploading import STATUS_S, Uploader
from dalle_lib.rehearsal.hub.here import hub_here
from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL, OPTIMIZER, checkpoint_name
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

REFERENCE_BYTES = 200_000
CHECKPOINT_S, PICTURE_BYTES = 1800.0, 8000
REPOSITORY, TOKEN = "crew/photos-checkpoints", "hf_ada"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is played."""

    peers: int = 40
    days: float = 7.0
    look_s: float = 15.0
    """Seconds of the run between two looks; a monitor looks every 5 s, at records that change once an epoch."""
    epoch_s: float = 180.0


def peers_at(benchmark: Benchmark, began: float, second: float) -> list[PeerStatus]:
    """Return who is there, and what each says of itself."""
    found = []
    for number in range(benchmark.peers):
        of_day = (second + number * DAY_S / benchmark.peers) % DAY_S
        if of_day > 14 * 3600:
            continue
        started = began + max(0.0, second - of_day)
        epoch = max(0, int(second / benchmark.epoch_s) - (random.random() < 0.05))
        found.append(
            PeerStatus(
                peer_id=f"Qm{number:044}", name=f"volunteer-{number}", epoch=epoch, samples=int(0.5 * of_day),
                samples_per_s=0.5, loss=6.0 / (1 + second / DAY_S), started_at=started, compute_s=0.9 * of_day,
                counted=0.5 * of_day, sent_bytes=int(1e5 * of_day),
                received_bytes=int(1e5 * of_day), hardware="Tesla T4", kit="0.2.0", team=f"team-{number % 5}",
                anonymous=False, witnessed="", trained="",
            )
        )  # fmt: skip
    return found


def measure(benchmark: Benchmark, folder: Path) -> dict:
    """Return bytes and milliseconds."""
    card, length_s = RunCard.load("emoji-mini"), benchmark.days * DAY_S
    began, looks = time.time() - length_s, int(length_s / benchmark.look_s)
    with closing(MonitorDatabase(folder / "monitor.sqlite")) as database:
        observer, at = Observer(database), time.perf_counter()
        for look in range(1, looks):
            second = look * benchmark.look_s
            observer.note(
                SwarmStatus(
                    time=began + second, epoch=int(second / benchmark.epoch_s), total_epochs=31_250,
                    samples_in_epoch=None, target_batch_size=4096, peers=peers_at(benchmark, began, second),
                )
            )  # fmt: skip
        look_ms = 1000 * (time.perf_counter() - at) / looks
        for number in range(int(length_s / CHECKPOINT_S)):
            note_checkpoint(folder, database, number, began + number * CHECKPOINT_S)
        at = time.perf_counter()
        status = publish(folder, STATUS, status_of(card, database, time.time()))
        status_ms = 1000 * (time.perf_counter() - at)
        history = publish(folder, HISTORY, history_of(card, database, folder))
        sent = measure_sent(folder, database)
    size = (folder / "monitor.sqlite").stat().st_size
    sizes = {"status_bytes": status, "history_bytes": history, "database_bytes": size}
    return {**sizes, "look_ms": round(look_ms, 2), "status_ms": round(status_ms, 1), **sent}


def note_checkpoint(folder: Path, database: MonitorDatabase, epoch: int, made: float) -> None:
    """Make a checkpoint that holds next to nothing, with its picture, examined and sent."""
    place = folder_of(folder / "monitor", epoch)
    place.mkdir(parents=True)
    for name in MODEL, OPTIMIZER:
        save_tensors(place / name, {"a": torch.zeros(1)}, {})
    note_new(folder / "monitor", database)
    (folder / PICTURES).mkdir(exist_ok=True)
    (folder / PICTURES / f"{checkpoint_name(epoch)}.webp").write_bytes(random.randbytes(PICTURE_BYTES))
    database.change(
        "UPDATE checkpoints SET made = :made, figures = :figures, repository = :repository, revision = :revision "
        "WHERE epoch = :epoch", epoch=epoch, made=made, repository=REPOSITORY, revision="0" * 40,
        figures=json.dumps(asdict(Figures(held_out_loss=random.random(), half_width=random.random(), rows=256))),
    )  # fmt: skip


def measure_sent(folder: Path, database: MonitorDatabase) -> dict:
    """Return the bytes of bodies, both ways, of one more status and of one more checkpoint, and those of a week."""

    def passed(hub: Hub, send: Uploader, **is_due: bool) -> int:
        before = len(hub.log)
        for name in STATUS, HISTORY:  # both have changed since they were sent last
            told = json.loads((folder / name).read_text())
            publish(folder, name, {**told, "written": time.time()})
        send.send(database, **is_due)
        return sum(logged.sent + logged.received for logged in hub.log[before:])

    with hub_here(folder / "evening") as hub:
        hub.users[TOKEN] = User("ada", {"crew": "write"})
        sends = Uploader(REPOSITORY, folder, folder / "monitor", folder / "monitor.sqlite", TOKEN)
        sends.close()  # its own thread sends the first status, with the newest pictures
        status = passed(hub, sends, is_status_due=True)
        note_checkpoint(folder, database, 10**6, time.time())
        database.change("UPDATE checkpoints SET revision = NULL WHERE epoch = :epoch", epoch=10**6)
        checkpoint = passed(hub, sends)
    week = 7 * DAY_S * (status / STATUS_S + checkpoint / CHECKPOINT_S)
    return {
        "sent_with_status_bytes": status,
        "sent_with_checkpoint_bytes": checkpoint,
        "sent_in_a_week_bytes": round(week),
    }


def main(benchmark: Benchmark) -> None:
    """Play the week, and print the figures."""
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(benchmark, Path(folder))
    print(
        json.dumps(
            {
                "figure": found["status_bytes"],
                "reference": REFERENCE_BYTES,
                "ratio": round(found["status_bytes"] / REFERENCE_BYTES, 3),
                "machine": f"{platform.machine()}, {platform.system()}",
                **found,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
