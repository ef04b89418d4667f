"""Real swarms on this machine, to compare simulated ones with: peers of tests/one_hot.py."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import psutil

from dalle_lib.planning import Work
from dalle_lib.run import RunCard
from scaling.distributions import Distributions
from scaling.swarm import Scenario

TESTS = Path(__file__).resolve().parents[2] / "tests"
TENSORS = 3
"""Tensors of a one-hot peer."""
WITHOUT = 2
"""First epochs that do not count: peers connect to each other in them."""
LOCAL_MBPS, LOCAL_TRIP_MS = 8000.0, 0.5
"""What a link within this machine is taken for; it is never full."""


@dataclass(frozen=True, kw_only=True)
class Real:
    """What the peers of a real swarm do."""

    peers: int
    epochs: int = 6
    """Epochs that count."""
    values: int = 300_000
    """Values of each of the three tensors."""
    batch_size: int = 4
    step_s: float = 0.5
    """Seconds that a peer sleeps in place of computing a batch."""
    computing_s: float = 8.0
    """Seconds in which all together compute an epoch."""
    matchmaking_s: float = 3.0
    timeout_s: float = 20.0

    @property
    def target_batch_size(self) -> int:
        """Samples of an epoch."""
        return round(self.peers * self.batch_size / self.step_s * self.computing_s)

    def scenario(self, cores: int, seed: int) -> Scenario:
        """Return the same swarm to simulate: all peers share this machine's cores."""
        work = Work(
            tensors=(self.values,) * TENSORS, epochs=1000, target_batch_size=self.target_batch_size,
            matchmaking_s=self.matchmaking_s, timeout_s=self.timeout_s, state_every=1000, delayed=False,
        )  # fmt: skip
        return Scenario(
            peers=self.peers, work=work, batch_size=self.batch_size, vouched=0, first_peers=0,
            epochs=WITHOUT + self.epochs, seed=seed, shared_cores=cores, step_s=self.step_s,
            of=Distributions.equal(LOCAL_MBPS, self.batch_size / self.step_s, LOCAL_TRIP_MS),
        )  # fmt: skip


def measured(real: Real) -> dict[str, float]:
    """Return seconds of an epoch, bytes that a peer sends in its round, and seconds of the processor beside samples.

    `largest` is the mean share of the peers that counted in a round, as the peers tell.
    """
    sys.path.insert(0, str(TESTS))
    from one_hot import OneHotSwarm, one_hot_card

    card = one_hot_card(
        RunCard.load("emoji-mini"), target_batch_size=real.target_batch_size, matchmaking_s=real.matchmaking_s,
        timeout_s=real.timeout_s, state_every=1000,
    )  # fmt: skip
    options = {"batch_size": real.batch_size, "step_s": real.step_s, "size": real.values}
    with tempfile.TemporaryDirectory() as folder, OneHotSwarm(card, Path(folder)) as swarm:
        for _ in range(real.peers):
            swarm.add(**options)
        swarm.go()
        swarm.wait(lambda: all(peer.epoch >= WITHOUT for peer in swarm.peers), 900)
        before = _used_s(swarm)
        last = WITHOUT + real.epochs
        swarm.wait(lambda: all(peer.epoch >= last for peer in swarm.peers), 1800)
        used_s = _used_s(swarm) - before
        seconds, rounds = [], []
        for peer in swarm.peers:
            at = {event["epoch"]: event["time"] for event in reversed(peer.events("update"))}
            first = min(epoch for epoch in at if epoch >= WITHOUT)
            final = min(epoch for epoch in at if epoch >= last)
            seconds.append((at[final] - at[first]) / (final - first))
            rounds += [event for epoch, event in peer.rounds().items() if WITHOUT <= epoch < last]
    counted = [sum(weight > 0 for weight in event["counted"].values()) for event in rounds]
    return {
        "seconds": median(seconds),
        "sent": mean(event["bytes_sent"] for event in rounds),
        "work_s": used_s / real.peers / real.epochs,
        "largest": mean(counted) / real.peers,
        "round_s": mean(event["seconds"] for event in rounds),
    }


def _used_s(swarm) -> float:
    """Return the seconds of the processor that the peers and their children have used."""
    processes = [psutil.Process(peer.process.pid) for peer in swarm.peers]
    everybody = processes + [child for one in processes for child in one.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in everybody)
