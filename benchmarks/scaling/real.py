"""Real swarms on this machine, to compare simulated ones with: peers of tests/one_hot.py."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
import psutil

from dalle_lib.planning import Work
from dalle_lib.run import RunCard
from scaling.distributions import BYTES_PER_MBIT, Distributions, Population
from scaling.swarm import Scenario, Swarm

TESTS = Path(__file__).resolve().parents[2] / "tests"
TENSORS = 3
"""Tensors of a one-hot peer."""
WITHOUT = 2
"""First epochs that do not count: peers connect to each other in them."""
LOCAL_MBPS, LOCAL_TRIP_MS = 8000.0, 0.5
"""What a link within this machine is taken for; it is never full."""
RECORDED = Path(__file__).resolve().parents[1] / "results" / "plan.json"
"""Real swarms of eight peers behind slow links, on two cores: what `python benchmarks/plan.py` has measured."""
RECORDED_CORES, RELAY_TRIP_S = 2, 0.002


def recorded(name: str, seed: int = 0) -> dict:
    """Return what a scenario of `benchmarks/plan.py` came to as recorded, and in a simulation of the same peers."""
    from plan import Benchmark, scenarios, work_of

    benchmark = Benchmark()
    machines, changes = scenarios()[name]
    each = [group for group in machines for _ in range(int(group.count))]
    people = Population(
        up=np.array([group.up_mbps for group in each]) * BYTES_PER_MBIT,
        down=np.array([group.down_mbps for group in each]) * BYTES_PER_MBIT,
        is_client=np.array([not group.reduces for group in each]),
        samples_per_s=np.array([group.samples_per_second for group in each]),
        trip_s=np.full(len(each), RELAY_TRIP_S / 2), first_peers=0,
    )  # fmt: skip
    scenario = Scenario(
        peers=len(each), work=work_of(benchmark, changes), of=Distributions().without_churn(), vouched=0, first_peers=0,
        epochs=1 + benchmark.epochs, without=1, seed=seed, shared_cores=RECORDED_CORES,
    )  # fmt: skip
    swarm = Swarm(scenario, people)
    outcome = swarm.run()
    seen = json.loads(RECORDED.read_text())["scenarios"][name]
    played = {"seconds": mean(epoch.seconds for epoch in outcome.epochs[1:])}
    real = {"seconds": seen["seconds"]["measured"]}
    for group in machines:
        of_group = [place for place, one in enumerate(each) if one.name == group.name]
        for way, moved, measured_bytes in zip(
            ("sent", "received"), swarm.moved[:2, of_group].mean(1), seen["bytes"]["measured"][group.name], strict=True
        ):
            played[f"{group.name}: {way}"], real[f"{group.name}: {way}"] = float(moved), measured_bytes
    return {"real": real, "simulated": played, "ratio": {what: real[what] / played[what] for what in real}}


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
            matchmaking_s=self.matchmaking_s, timeout_s=self.timeout_s, state_every=1000, delayed=False, audits=0,
        )  # fmt: skip
        return Scenario(
            peers=self.peers, work=work, batch_size=self.batch_size, vouched=0, first_peers=0,
            epochs=WITHOUT + self.epochs, without=WITHOUT, seed=seed, shared_cores=cores, step_s=self.step_s,
            of=Distributions.equal(LOCAL_MBPS, self.batch_size / self.step_s, LOCAL_TRIP_MS),
        )  # fmt: skip


def measured(real: Real) -> dict[str, float]:
    """Return seconds of an epoch, bytes that a peer sends in its round, and seconds of the processor beside sleep.

    `waiting_s` are the seconds of an epoch beyond its computing; `largest` is the mean share of the peers that counted
    in a round, as the peers tell.
    """
    sys.path.append(str(TESTS))
    from one_hot import OneHotSwarm, one_hot_card

    card = one_hot_card(
        RunCard.load("emoji-mini"), target_batch_size=real.target_batch_size, matchmaking_s=real.matchmaking_s,
        timeout_s=real.timeout_s, state_every=1000, audits=0,
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
        "waiting_s": median(seconds) - real.computing_s,
    }


def _used_s(swarm) -> float:
    """Return the seconds of the processor that the peers and their children have used."""
    processes = [psutil.Process(peer.process.pid) for peer in swarm.peers]
    everybody = processes + [child for one in processes for child in one.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in everybody)
