"""How much does a monitor tell of a run of the paper's size, and of one with thousands of peers?

Plays a run of 75 days and 31,250 epochs through the monitor's own code into a folder: 40 users come and go, checkpoints
are made, examined and drawn with, peers lag. Two looks are played every few epochs, so that it takes a minute. With
`--crowd 5000`, as many more peers join on the last day. Prints JSON: the bytes of status, history, prompts and
pictures together (figure) against 3 MB (reference), with those of each.
"""

import json
import math
import platform
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

from dalle_lib.monitor.alarms import note, problems
from dalle_lib.monitor.contributions import DAY_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import BEST, PICTURES, drawings
from dalle_lib.monitor.evaluating import Figures, as_json, write_picture
from dalle_lib.monitor.judging import Judged
from dalle_lib.monitor.monitor import DATABASE
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import HISTORY, fitted, history_of, publish, status_of
from dalle_lib.organizing.model_page import PAGE_FOLDER, PROMPTS_FILE
from dalle_lib.run import RunCard
from dalle_lib.run.files import checkpoint_name
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm.process.drift import SIZE, Sketch
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

REFERENCE_BYTES = 3_000_000
ENDED = 1_780_000_000.0
"""When the run was looked at last, in seconds since 1970."""
CROWD_S = 24 * 3600.0
"""Seconds over which the crowd joins: a monitor takes in 500 new starts an hour."""
CHECKPOINT_S, SIDE, COLUMNS = DAY_S / 4, 64, 4
"""Seconds between two checkpoints, and pixels and columns of what each draws."""
PROMPTS = {"seen": ["red apple", "taco", "owl", "sun"], "unseen": ["blue taco", "green owl", "sun on a red background",
                                                                    "white apple"]}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What is played."""

    out: Path = Path("outputs/simulated")
    """Folder for what the monitor writes. What an earlier simulation left there is replaced."""
    users: int = 40
    crowd: int = 0
    """Peers, of half as many users, that join besides at the end."""
    days: float = 75.0
    epochs: int = 31_250
    every: int = 16
    """Epochs of the run from one pair of looks to the next: what averaging does is told of epochs that follow."""

    @property
    def epoch_s(self) -> float:
        return self.days * DAY_S / self.epochs

    @property
    def began(self) -> float:
        return ENDED - self.days * DAY_S


@dataclass(frozen=True)
class Volunteer:
    """A user with a peer that is there in some hours of some weeks."""

    number: int
    first_day: float
    last_day: float
    hours: float
    """Hours of each day in which the peer is there."""
    samples_per_s: float
    counts: float
    """Part of its gradients that reaches an average."""

    @classmethod
    def drawn(cls, number: int, days: float) -> "Volunteer":
        """Return a volunteer like those of a run of people's own machines: many stay short, few all the time."""
        first = 0.0 if number < 8 else random.uniform(0, 0.7 * days)
        stays = days if number < 4 else 2 + random.expovariate(2.5 / days)
        speed = random.choice((0.4, 0.6, 0.6, 1.2, 3.0))
        return cls(number, first, min(days, first + stays), random.choice((8, 14, 20, 24)), speed,
                   random.choice((0.9, 0.97, 1.0)))  # fmt: skip

    def status(self, run: Simulation, second: float) -> PeerStatus | None:
        """Return what its peer tells of itself so many seconds after the run began; None where it is not there."""
        of_day = (second + self.number * DAY_S / run.users) % DAY_S
        if not self.first_day * DAY_S <= second <= self.last_day * DAY_S or of_day > self.hours * 3600:
            return None
        there_s = min(of_day, second - self.first_day * DAY_S) if self.hours < 24 else second - self.first_day * DAY_S
        return self._told(run, second, there_s)

    def _told(self, run: Simulation, second: float, there_s: float) -> PeerStatus:
        epoch, rounds = int(second / run.epoch_s), int(there_s / run.epoch_s)
        late = random.random()
        samples = int(0.9 * self.samples_per_s * there_s)
        epoch = max(0, epoch - (9 if late < 0.005 else late < 0.05))
        return PeerStatus(
            peer_id=f"Qm{self.number:044}", name=f"volunteer-{self.number}-peer", epoch=epoch, samples=samples,
            samples_per_s=self.samples_per_s, loss=loss_at(second / DAY_S) + random.gauss(0, 0.05),
            started_at=run.began + second - there_s, compute_s=0.9 * there_s, counted=samples * self.counts,
            sent_bytes=180_000_000 * rounds, received_bytes=170_000_000 * rounds,
            hardware=random.choice(("Tesla T4", "RTX 3090", "A100")), kit="0.2.0",
            team=("", "night owls", "university")[self.number % 3], anonymous=False, witnessed="", trained="",
            sketch=str(Sketch(epoch, np.cos(np.arange(SIZE)) + self._error_after(epoch))),
        )  # fmt: skip

    def _error_after(self, epoch: int) -> np.ndarray:
        """Return what averaging in 8 bits adds to the sketch of this peer's parameters."""
        return np.random.default_rng([self.number, epoch]).normal(0, 0.002, SIZE)


def loss_at(day: float) -> float:
    """Return the run's loss after so many days."""
    return 3.1 + 5.5 * math.exp(-day / 2) + 1.2 * math.exp(-day / 30)


def looks(run: Simulation) -> Iterator[SwarmStatus]:
    """Yield what a monitor sees, from the first look to the last."""
    people = [Volunteer.drawn(number, run.days) for number in range(run.users)]
    crowd = [Volunteer(run.users + number, run.days - random.random() * CROWD_S / DAY_S, run.days, 24, 0.6, 0.97)
             for number in range(run.crowd)]  # fmt: skip
    owners = {
        f"Qm{number:044}": f"volunteer-{number if number < run.users else run.users + (number - run.users) // 2}"
        for number in range(run.users + run.crowd)
    }
    last = run.epochs - 2
    pairs = ((epoch, epoch + 1) for epoch in range(last % run.every, last + 1, run.every))
    for epoch in chain.from_iterable(pairs):
        second = (epoch + 0.5) * run.epoch_s
        there = [told for each in (*people, *crowd) if (told := each.status(run, second)) is not None]
        if 30 * DAY_S < second < 30 * DAY_S + 9000:  # an outage
            there = []
        yield SwarmStatus(
            time=run.began + second, epoch=epoch, total_epochs=run.epochs, samples_in_epoch=None,
            target_batch_size=4096, peers=there, users={peer.peer_id: owners[peer.peer_id] for peer in there},
        )  # fmt: skip


def draw(folder: Path, run: Simulation, database: MonitorDatabase, second: float) -> None:
    """Note a checkpoint as the monitor does once it is examined, and write what it has drawn."""
    epoch, day = int(second / run.epoch_s), second / DAY_S
    rank = 0.9 - 0.86 * math.exp(-day / 18)
    judged = Judged(
        captions=64, among=2000, exact=max(0.0, rank - 0.3), rank=rank, rank_half_width=0.05, rank_ceiling=0.95,
        rank_chance=0.04, ranked=128, nearest=0.6 + 0.25 * rank, nearest_held_out=0.82,
    )  # fmt: skip
    figures = Figures(held_out_loss=loss_at(day) + 0.15, half_width=0.04, rows=256, drawn=judged)
    database.insert(
        "checkpoints", epoch=epoch, made=run.began + second, sha256=f"{epoch:064x}", bytes=1_000_000_000,
        repository="crew/run", revision="0" * 40, figures=as_json(figures),
    )  # fmt: skip
    size = COLUMNS * SIDE, 2 * SIDE
    noise = Image.effect_noise(size, 90).convert("RGB")
    shown = Image.radial_gradient("L").resize(size).convert("RGB")
    for name, clear in (PICTURES, rank), (BEST, min(1.0, rank + 0.1)):
        write_picture(folder / name / f"{checkpoint_name(epoch)}.webp", Image.blend(noise, shown, clear))


def simulate(run: Simulation) -> dict[str, int]:
    """Play the run into its folder, and return the bytes of what the monitor tells."""
    folder = run.out
    (folder / PAGE_FOLDER).mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob(f"{DATABASE}*"), *folder.glob(f"{PICTURES}/*"), *folder.glob(f"{BEST}/*")]:
        old.unlink()
    card = RunCard.load("emoji")
    card = card.with_changes(
        name="simulated",
        checkpoints="crew/run",
        optimizer=card.optimizer.model_copy(update={"total_epochs": 2 * run.epochs}),
        averaging=card.averaging.model_copy(update={"target_batch_size": 4096}),
    )
    with closing(MonitorDatabase(folder / DATABASE)) as database:
        observer, due = Observer(database, card.averaging.matchmaking_s), 0.0
        for look in looks(run):
            observer.note(look)
            note(list(problems(look, database, observer.auditor)), database, look.time)
            if look.time - run.began >= due:
                draw(folder, run, database, look.time - run.began)
                due += CHECKPOINT_S
        (folder / PAGE_FOLDER / PROMPTS_FILE).write_text(json.dumps(PROMPTS))
        status = fitted(status_of(card, database, look.time + 5))
        pictures = [folder / name for files in drawings(folder).values() for name in files.values()]
        return {
            "status_bytes": publish(folder, STATUS, status),
            "history_bytes": publish(folder, HISTORY, history_of(card, database, folder)),
            "prompts_bytes": (folder / PAGE_FOLDER / PROMPTS_FILE).stat().st_size,
            "pictures_bytes": sum(file.stat().st_size for file in pictures),
        }


def main(run: Simulation) -> None:
    """Play the run, and print the figures."""
    random.seed(0)
    found = simulate(run)
    told = {
        "figure": sum(found.values()),
        "reference": REFERENCE_BYTES,
        "ratio": round(sum(found.values()) / REFERENCE_BYTES, 3),
        "machine": f"{platform.machine()}, {platform.system()}",
        "out": str(run.out),
    }
    print(json.dumps(told | found, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Simulation, description=__doc__))
