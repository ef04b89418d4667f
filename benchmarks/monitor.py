"""How much does a monitor remember, and tell, of a week of a run of 40 peers?

The looks of a week are played in minutes, one every `look_s` seconds: 40 users whose peers are there for 14 hours a
day, start anew once a day and sometimes lag. Prints JSON: the bytes of status.json (figure) against 200 kB
(reference), with those of the data base and of the history, and the milliseconds that a look takes.
"""

import json
import platform
import random
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import tyro

from dalle_lib.monitor.contributions import DAY_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import HISTORY, history_of, publish, status_of
from dalle_lib.run import RunCard
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

REFERENCE_BYTES = 200_000
BEGAN = 1_790_000_000.0


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is played."""

    peers: int = 40
    days: float = 7.0
    look_s: float = 15.0
    """Seconds of the run between two looks; a monitor looks every 5 s, at records that change once an epoch."""
    epoch_s: float = 180.0


def peers_at(benchmark: Benchmark, second: float) -> list[PeerStatus]:
    """Return who is there, and what each says of itself."""
    found = []
    for number in range(benchmark.peers):
        of_day = (second + number * DAY_S / benchmark.peers) % DAY_S
        if of_day > 14 * 3600:
            continue
        started = BEGAN + max(0.0, second - of_day)
        epoch = max(0, int(second / benchmark.epoch_s) - (random.random() < 0.05))
        found.append(
            PeerStatus(
                peer_id=f"Qm{number:044}", name=f"volunteer-{number}", epoch=epoch, samples=int(0.5 * of_day),
                samples_per_s=0.5, loss=6.0 / (1 + second / DAY_S), started_at=started, compute_s=0.9 * of_day,
                counted=0.5 * of_day, hardware="Tesla T4", kit="0.2.0", team=f"team-{number % 5}",
            )
        )  # fmt: skip
    return found


def measure(benchmark: Benchmark, folder: Path) -> dict:
    """Return bytes and milliseconds."""
    card = RunCard.load("emoji-mini")
    looks = int(benchmark.days * DAY_S / benchmark.look_s)
    with closing(MonitorDatabase(folder / "monitor.sqlite")) as database:
        observer, began = Observer(database), time.perf_counter()
        for look in range(1, looks):
            second = look * benchmark.look_s
            peers = peers_at(benchmark, second)
            observer.note(
                SwarmStatus(
                    time=BEGAN + second, epoch=int(second / benchmark.epoch_s), total_epochs=31_250,
                    samples_in_epoch=None, target_batch_size=4096, peers=peers,
                )
            )  # fmt: skip
        look_ms = 1000 * (time.perf_counter() - began) / looks
        began = time.perf_counter()
        status = publish(folder, STATUS, status_of(card, database, BEGAN + benchmark.days * DAY_S))
        status_ms = 1000 * (time.perf_counter() - began)
        history = publish(folder, HISTORY, history_of(database))
    size = (folder / "monitor.sqlite").stat().st_size
    sizes = {"status_bytes": status, "history_bytes": history, "database_bytes": size}
    return {**sizes, "look_ms": round(look_ms, 2), "status_ms": round(status_ms, 1)}


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
