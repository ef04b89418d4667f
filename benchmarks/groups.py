"""Do all peers of an epoch meet in one group, on a machine without a core to spare, and what does a peer spend there?

Twelve one-hot peers (tests/one_hot_peer.py), which compute next to nothing, train on this machine while as many busy
loops as it has cores compete with them. With `--busy 0` the cores are theirs. Times of averaging are those that
`dalle-lib run new` writes for a small run. Prints JSON: the mean part of the peers that was in the largest group of an
epoch (figure), 0.95, which is aimed at (reference), and

- for each epoch, how many groups reported it, and the largest;
- how much of the updates lacks in each peer's parameters: the weights of all gradients that reached them sum to the
  number of the epoch, if no epoch has passed without its update;
- what a peer costs: seconds of processor time an epoch, and memory (shared pages divided among those that share them).
"""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from one_hot import OneHotPeer, OneHotSwarm, one_hot_card

from dalle_lib.run import RunCard
from dalle_lib.run.sizes import SMALL_AVERAGING

AIM = 0.95
STEP_S, BATCH = 0.1, 4
FIRST = 1
"""The first epoch that is measured: in the one before, peers begin."""
FORKS = ("hash table", "averager of parameters", "averager of gradients")
"""What a peer forks, in this order."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How many peers meet, how often, and what hinders them."""

    peers: int = 12
    epochs: int = 20
    busy: int = os.cpu_count() or 1
    """Busy loops beside the peers."""
    computing_s: float = 10.0
    """Seconds in which all peers together compute the samples of an epoch, if they have the cores for themselves."""
    matchmaking_s: float = SMALL_AVERAGING.matchmaking_s
    longest_matchmaking_s: float | None = SMALL_AVERAGING.longest_matchmaking_s
    timeout_s: float = SMALL_AVERAGING.timeout_s
    patience_s: float = 3600.0
    """Seconds after which the benchmark gives up."""


@contextmanager
def busy_cores(loops: int) -> Iterator[None]:
    """Keep so many cores busy while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def processes_of(peer: OneHotPeer) -> dict[str, psutil.Process]:
    """Return a peer's processes by what they do."""
    own = psutil.Process(peer.process.pid)
    found, forks = {"trainer": own}, iter(FORKS)
    for child in sorted(own.children(recursive=True), key=lambda process: (process.create_time(), process.pid)):
        command = " ".join(child.cmdline())
        is_fork = "one_hot_peer" in command
        what = next(forks, "rest") if is_fork else "p2pd" if "p2pd" in command else "rest"
        found[what] = child
    return found


def processor_s(swarm: OneHotSwarm) -> Counter[str]:
    """Return the processor time that all peers have spent, in seconds by process."""
    spent: Counter[str] = Counter()
    for peer in swarm.peers:
        for what, process in processes_of(peer).items():
            times = process.cpu_times()
            spent[what] += times.user + times.system
    return spent


def memory_mb(swarm: OneHotSwarm) -> dict[str, float]:
    """Return the memory of a peer in MB, by process, as the mean over peers."""
    held: dict[str, float] = defaultdict(float)
    for peer in swarm.peers:
        for what, process in processes_of(peer).items():
            held[what] += process.memory_full_info().pss / 1e6 / len(swarm.peers)
    return dict(held)


def groups_of(peers: list[OneHotPeer], epoch: int) -> list[int]:
    """Return the sizes of an epoch's groups, as their peers report them, the largest first."""
    reports = [rounds[epoch]["counted"] for peer in peers if epoch in (rounds := peer.rounds())]
    groups = {frozenset(peer for peer, weight in counted.items() if weight > 0) for counted in reports}
    return sorted(map(len, groups), reverse=True)


def lacking(peer: OneHotPeer) -> float:
    """Return how many updates the parameters of a peer lack, or have too many of."""
    epoch, values = peer.states()[-1]
    return float(epoch - values.sum(1).mean())


def measure(benchmark: Benchmark, folder: Path) -> dict:
    """Return what a swarm came to."""
    card = one_hot_card(
        RunCard.load("emoji-mini"),
        target_batch_size=int(benchmark.peers * BATCH / STEP_S * benchmark.computing_s),
        matchmaking_s=benchmark.matchmaking_s,
        longest_matchmaking_s=benchmark.longest_matchmaking_s,
        timeout_s=benchmark.timeout_s,
    )
    with OneHotSwarm(card, folder) as swarm, busy_cores(benchmark.busy):
        for _ in range(benchmark.peers):
            swarm.add(step_s=STEP_S, batch_size=BATCH)
        swarm.go()
        swarm.wait(lambda: min(peer.epoch for peer in swarm.peers) >= FIRST, benchmark.patience_s)
        began, before = time.monotonic(), processor_s(swarm)
        last = FIRST + benchmark.epochs
        swarm.wait(lambda: min(peer.epoch for peer in swarm.peers) >= last, benchmark.patience_s)
        seconds, spent, held = time.monotonic() - began, processor_s(swarm), memory_mb(swarm)
        spent.subtract(before)
        groups = {epoch: groups_of(swarm.peers, epoch) for epoch in range(FIRST, last)}
        left_out = sum(len(peer.events("LeftOut")) for peer in swarm.peers)
        problems = Counter(event["problem"][:100] for peer in swarm.peers for event in peer.events("problem"))
        lacks = [round(lacking(peer), 3) for peer in swarm.peers]
    each = 1 / benchmark.peers / benchmark.epochs
    return {
        "figure": statistics.mean(max(sizes, default=0) / benchmark.peers for sizes in groups.values()),
        "groups": groups,
        "updates lacking": lacks,
        "left out": left_out,
        "problems": dict(problems.most_common(10)),
        "seconds an epoch": seconds / benchmark.epochs,
        "processor seconds a peer and epoch": sum(spent.values()) * each,
        "by process": {what: round(total * each, 3) for what, total in spent.items()},
        "MB a peer": sum(held.values()),
        "MB by process": {what: round(size) for what, size in held.items()},
    }


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended by `timeout`, it ends its peers too
    with tempfile.TemporaryDirectory() as folder:
        found = measure(benchmark, Path(folder))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f} before"
    result = {"figure": found["figure"], "reference": AIM, "ratio": found["figure"] / AIM} | found
    print(json.dumps(result | {"settings": asdict(benchmark), "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
