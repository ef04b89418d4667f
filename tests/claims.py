"""A swarm as its monitor sees it, with honest peers and liars: `python claims.py EPOCHS SEED [FACTOR ...]`.

That prints who is flagged, and in which epoch first, in swarms of several sizes, with a liar for each factor; one of
factor 0 takes part in nothing, and claims the target of each epoch. Honest peers come, go and start again, have clocks
that differ, miss rounds, and some of what they post comes late.
"""

import random
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from statuses import peer_status

from dalle_lib.monitor.alarms import problems
from dalle_lib.monitor.auditing import believed
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.swarm.process.evidence import witness
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

BEGAN, TARGET = 1_790_000_000.0, 1000
POST_S, RECORD_S = 20.0, 60.0


@dataclass
class Peer:
    """One peer, and what it posts; `factor` is by how much it lies."""

    name: str
    speed: float
    factor: float = 1.0
    skew_s: float = field(default_factory=lambda: random.uniform(-3, 3))
    duty: float = field(default_factory=lambda: random.uniform(0.3, 1.0))
    started: float | None = None
    away_until: float = 0.0
    counted: float = 0.0
    samples: float = 0.0
    told: str = ""
    epoch: int = 0
    posts: list[tuple[float, float, PeerStatus]] = field(default_factory=list)
    """When each comes, when it was made, and what it says."""

    @property
    def peer_id(self) -> str:
        return f"Qm{self.name:0>44}"

    def post(self, now: float) -> None:
        if self.started is not None:
            counted = self.factor * self.counted if self.factor else TARGET * self.epoch
            told = peer_status(
                self.peer_id, self.name, epoch=self.epoch, samples=int(self.factor * self.samples), witnessed=self.told,
                counted=counted, compute_s=self.duty * (now - self.started),
                started_at=BEGAN + self.started + self.skew_s,
            )  # fmt: skip
            self.posts.append((now + random.expovariate(1 / 2.0), now, told))

    def shown(self, now: float) -> PeerStatus | None:
        come = [post for post in self.posts if post[0] <= now]
        self.posts = [post for post in self.posts if post[0] > now] + come[-1:]
        newest = max(come, key=lambda post: post[1], default=None)
        return newest[2] if newest and newest[1] > now - RECORD_S else None


def flagged(epochs: int, epoch_s: float, honest: int, liars: tuple[float, ...], look_s: float, seed: int = 0):
    """Return who is flagged, by name with the epoch in which that was first, among peers that `liars` name, too."""
    random.seed(seed)
    peers = [Peer(f"honest-{i}", random.choice([1, 1, 2, 4, 8])) for i in range(honest)]
    peers += [Peer(f"liar-{i}", random.choice([1, 2, 4]), factor) for i, factor in enumerate(liars)]
    found, now, look_at = {}, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder, closing(MonitorDatabase(Path(folder) / "m.sqlite")) as database:
        observer = Observer(database)
        for epoch in range(1, epochs + 1):
            ends = now + epoch_s * random.uniform(0.7, 1.5)
            _come_and_go(peers, now)
            next_post = now
            while now < ends:
                now = min(ends, max(now + 0.1, min(look_at, next_post)))
                if now >= next_post:
                    next_post = now + POST_S
                    for peer in peers:
                        peer.post(now)
                if now >= look_at:
                    away = 40 * epoch_s if random.random() < 0.001 else 0.0  # the monitor itself was stopped
                    look_at = now + look_s * random.uniform(0.8, 1.5) + away
                    there = [status for peer in peers if (status := peer.shown(now)) is not None]
                    status = SwarmStatus(
                        time=BEGAN + now, epoch=epoch - 1, total_epochs=10**6, samples_in_epoch=None,
                        target_batch_size=TARGET, peers=there,
                    )  # fmt: skip
                    status = believed(status)
                    observer.note(status)
                    for problem in problems(status, database):
                        if problem.kind == "claims":
                            name = next(peer.name for peer in peers if peer.peer_id == problem.subject)
                            found.setdefault(name, epoch)
            _average(peers, epoch)
            for peer in peers:
                peer.epoch = epoch
                if random.random() < 0.97:  # else it is late, and posts as others do between
                    peer.post(now)
    return found


def _come_and_go(peers: list[Peer], now: float) -> None:
    for peer in peers:
        if peer.started is None and now >= peer.away_until:
            peer.started, peer.counted, peer.samples, peer.told = now, 0.0, 0.0, ""
        elif peer.started is not None and random.random() < 0.01:
            peer.started, peer.away_until = None, now + random.choice([0.0, 30.0, 300.0, 3000.0])


def _average(peers: list[Peer], epoch: int) -> None:
    """Average in one group or two, of which some peers are left out, with more samples than the target.

    For fifteen epochs of forty-five the two fastest find each other before the others come.
    """
    there = [peer for peer in peers if peer.started is not None and peer.factor and random.random() > 0.05]
    groups = [there] if random.random() < 0.9 else [there[::2], there[1::2]]
    if epoch // 15 % 3 == 2 and random.random() < 0.8:
        by_speed = sorted(there, key=lambda peer: -peer.speed)
        groups = [by_speed[:2], by_speed[2:]]
    total = sum(peer.speed for peer in there) or 1.0
    overshoot = random.uniform(1.0, 1.6)
    for group in groups:
        if len(group) < 2:
            continue
        weights = {p.peer_id: overshoot * TARGET * p.speed / total * random.lognormvariate(0, 0.3) for p in group}
        for peer in group:
            peer.counted += weights[peer.peer_id]
            peer.samples += weights[peer.peer_id]
            seen = {other: weight * random.uniform(0.9, 1.0) for other, weight in weights.items()}
            peer.told = witness(epoch - 1, seen, peer.peer_id)


if __name__ == "__main__":
    seed, liars = int(sys.argv[2]), tuple(map(float, sys.argv[3:]))
    for honest, epoch_s, look_s in (3, 60, 15), (6, 5, 5), (12, 60, 20), (30, 60, 30):
        print(honest, epoch_s, look_s, flagged(int(sys.argv[1]), epoch_s, honest, liars, look_s, seed), flush=True)
