"""What does a trainer of the paper's size take: how long for the parts of an epoch, how much memory, how many bytes?

Two trainers of a new run of the paper's size (random weights, codes that mean nothing), each with all of its processes,
and a bootstrap peer train on this machine's processor until two epochs are over. A batch is one sample. Prints JSON:
gigabytes of RAM that such a trainer takes when its model is on a GPU (figure), 8 (reference) and their ratio. That is
what its other processes took here at their highest moment together, and its own process at its lowest after the first
epoch, when it computed nothing, without what would be on the GPU (weights, gradients and their sums), and with what
CUDA adds to it, by assumption. Beside it: memory by process, against the memory calculator's forecast; seconds of each
epoch by phase; bytes sent and received, against the plan's.

Memory is "PSS": pages that processes share are divided among them, so that sums are true. "RSS" counts them in each.
Seconds are too high on a machine that does other work too; with two cores the two trainers have one each.
"""

import contextlib
import itertools
import json
import math
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch
import tyro

from dalle_lib.memory import Training, estimate
from dalle_lib.memory.hardware import PROCESS
from dalle_lib.planning import Machines, Work, plan_run
from dalle_lib.run import RunCard
from dalle_lib.run.new import new_run
from dalle_lib.swarm import Peer, PeerSettings, local_swarm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from paper_like import data_of, tokenizer_in

NAMES = ("ada", "bob")
REFERENCE = 8e9
LOOK_S = 0.5
PATIENCE_S = 3600.0
FORKS = ("hash table", "parameter averager", "gradient averager")
"""What a peer's process forks, in this order."""
ON_GPU = ("weights", "gradients", "averaging buffers")
"""Terms of the calculator that are in RAM for as long as a trainer runs without a GPU, and on the GPU with one."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How large the run is, and how long it lasts."""

    tiny: bool = False
    """Train a model of a thousandth of the size, in a minute, to try this script."""
    target: int = 2
    """Samples of an epoch, over both trainers."""
    epochs: int = 2
    state_every: int = 1
    """Epochs between averages of parameters."""
    peak_s: float = 0.0
    """Seconds of rest after the last epoch, before the trainers leave."""


def made_in(folder: Path, benchmark: Benchmark) -> RunCard:
    """Return the card of a new run of the paper's size, with codes and captions that mean nothing."""
    data = data_of(folder / "data")
    card = new_run(folder / "run", data, preset="paper", tokenizer=tokenizer_in(folder))
    averaging = {"target_batch_size": benchmark.target, "state_every": benchmark.state_every, "delayed": False}
    if not benchmark.tiny:
        return card.with_changes(averaging={**card.averaging.model_dump(), **averaging})
    model = {**asdict(card.model), "dim": 64, "depth": 8, "heads": 2, "dim_head": 32}
    return card.with_changes(model=model, averaging={**card.averaging.model_dump(), **averaging, "matchmaking_s": 5.0})


@dataclass
class Watch:
    """The memory of a peer's processes, looked at again and again."""

    peer: Peer
    highest_rss: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by process: the kernel's own high-water mark."""
    highest: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes of PSS by process, each at its own highest moment."""
    together: dict[str, int] = field(default_factory=dict)
    """Bytes of PSS by process at the moment when their sum was highest."""
    at: float = 0.0
    """When that was, in seconds since 1970."""
    others: int = 0
    """Bytes of PSS of all processes but the trainer, when that was highest."""
    idle: float = math.inf
    """Bytes of PSS of the trainer when that was lowest between the first shared epoch and the last."""
    is_between: bool = False
    """Whether it is between these."""
    moved: list[tuple[float, int]] = field(default_factory=list)
    """When how many bytes had been read by p2pd in all, from other peers and from this peer's processes."""

    def look(self) -> None:
        """Look once; processes that end meanwhile are left out."""
        now = {}
        for role, process in self._processes().items():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                now[role] = _kilobytes(Path(f"/proc/{process}/smaps_rollup").read_text(), "Pss")
                self.highest_rss[role] = max(self.highest_rss[role], _kilobytes(status, "VmHWM"))
                self.highest[role] = max(self.highest[role], now[role])
                if role == "p2pd":
                    read = re.search(r"^rchar: (\d+)", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
                    self.moved.append((time.time(), int(read[1])))
        if sum(now.values()) > sum(self.together.values()):
            self.together, self.at = dict(now), time.time()
        if (trainer := now.pop("trainer", None)) is not None:
            self.others = max(self.others, sum(now.values()))
            self.idle = min(self.idle, trainer if self.is_between else math.inf)

    def seconds_of_exchange(self, begin: float, end: float) -> float:
        """Return the time between 2% and 98% of what p2pd read within two moments."""
        within = [(at, count) for at, count in self.moved if begin <= at <= end + LOOK_S]
        low, high = ((1 - share) * within[0][1] + share * within[-1][1] for share in (0.02, 0.98))
        first = max(at for at, count in within if count <= low)
        return min(at for at, count in within if count >= high) - first

    def _processes(self) -> dict[str, int]:
        """Return the ids of the peer's processes by what they do."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            supervisor = psutil.Process(self.peer.supervisor_id)
            (main,) = supervisor.children()
            found, forks = {"supervisor": supervisor.pid, "trainer": main.pid}, iter(FORKS)
            for child in sorted(main.children(), key=lambda each: each.pid):
                is_fork = child.cmdline() == main.cmdline()
                found[next(forks, f"process {child.pid}") if is_fork else child.name()] = child.pid
                found.update({below.name(): below.pid for below in child.children() if below.name() == "p2pd"})
            return found
        return {}


def _kilobytes(text: str, name: str) -> int:
    """Return the bytes that a line of /proc tells in kB."""
    return 1024 * int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1])


def watched(watches: list[Watch], stop: threading.Event) -> None:
    """Look at all peers until `stop` is set."""
    while not stop.wait(LOOK_S):
        for watch in watches:
            watch.look()


def trained(benchmark: Benchmark, folder: Path) -> tuple[RunCard, list[Watch], list[list[dict]]]:
    """Return the card, the memory of each trainer, and the phases of its epochs, once the run is over."""
    card = made_in(folder, benchmark)
    trainers = [PeerSettings(run="", name=name, device="cpu", batch_size=1) for name in NAMES]
    stop = threading.Event()
    with local_swarm(card, folder / "swarm", trainers) as swarm:
        watches = [Watch(peer) for peer in swarm.peers.values()]
        looking = threading.Thread(target=watched, args=(watches, stop), daemon=True)
        looking.start()
        deadline = time.time() + PATIENCE_S
        while min(len(shared(watch.peer)) for watch in watches) < benchmark.epochs:
            for watch in watches:
                watch.is_between = 0 < len(shared(watch.peer)) < benchmark.epochs
            if time.time() > deadline or not all(watch.peer.is_running for watch in watches):
                raise RuntimeError("\n".join(watch.peer.log_tail() for watch in watches))
            time.sleep(1)
        time.sleep(benchmark.peak_s)
        stop.set()
        looking.join()
    return card, watches, [phases_of(watch, benchmark.epochs) for watch in watches]


def shared(peer: Peer) -> list[tuple[dict, dict, dict]]:
    """Return the epochs that a peer averaged with the other: the event before each, its round and its end."""
    events = [event for event in peer.events() if event["event"] in ("joined", "epoch")]
    ends = {end["epoch"]: (start, end) for start, end in itertools.pairwise(events)}
    rounds = [event for event in peer.events() if event["event"] == "averaged" and len(event["counted"]) > 1]
    told = [(each, ends.get(each["epoch"] + 1)) for each in rounds]
    return [(both[0], averaged, both[1]) for averaged, both in told if both]


def phases_of(watch: Watch, epochs: int) -> list[dict]:
    """Return the seconds of each epoch of a peer by phase, and what it sent and received.

    Parts are exchanged from the moment when 2% of a round's bytes have passed p2pd until 98% have; before, the peer
    looks for a group, which includes the wait for one that still computes.
    """
    result = []
    for start, averaged, end in shared(watch.peer)[:epochs]:
        whole, computing = end["time"] - start["time"], end["compute_s"] - start.get("compute_s", 0.0)
        rest = whole - computing - averaged["seconds"]
        exchange = watch.seconds_of_exchange(averaged["time"] - averaged["seconds"] - rest, averaged["time"])
        phases = {"computing": computing, "looking for a group": averaged["seconds"] - exchange}
        phases |= {"averaging gradients": exchange, "optimizer's step and the rest": rest}
        told = {name: averaged[name] for name in ("epoch", "bytes_sent", "bytes_received", "counted", "error")}
        result.append({"seconds": whole, "phases": phases, "samples": end["samples"], **told})
    return result


def memory_of(card: RunCard, watches: list[Watch]) -> dict:
    """Return the memory of the trainer that took most, by process, against the calculator's forecast."""
    most = max(watches, key=lambda watch: sum(watch.together.values()))
    model = {"model_type": "dalle", **asdict(card.model)}
    expected = estimate(model, Training(swarm=True, optimizer="lamb8bit", reversible=True), "cpu")
    offloaded = ("master copies", "averaging buffers", "offloaded state", "snapshot", "optimizer step")
    on_gpu = sum(expected.gpu[term] for term in ON_GPU)
    measured = sum(most.together.values())
    with_gpu = max(watch.others + watch.idle for watch in watches) - on_gpu + PROCESS[1] - PROCESS[0]
    return {
        "measured": measured,
        "forecast": [expected.allocated + end for end in expected.ram_range],
        "terms": {"model": expected.gpu, "RAM": {term: expected.ram[term] for term in offloaded}},
        "of the model, always there": on_gpu,
        "bytes a parameter, without the model": (measured - on_gpu) / expected.parameters,
        "other processes at their highest moment": most.others,
        "trainer at its lowest": most.idle,
        "with a GPU, by assumption of what CUDA adds": with_gpu,
        "processes together": most.together,
        "each process at its highest": dict(most.highest),
        "RSS of each at its highest": dict(most.highest_rss),
        "parameters": expected.parameters,
    }


def planned(card: RunCard) -> list[float]:
    """Return the bytes that the planner expects each trainer to send and to receive in an epoch."""
    both = Machines(name="trainer", count=2, samples_per_second=0.01, up_mbps=1000, down_mbps=1000, reduces=True)
    (traffic,) = plan_run(Work.of(card).with_changes(codes=0), [both]).traffic
    return [traffic.sent_per_epoch, traffic.received_per_epoch]


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(sys.stderr):
        card, watches, phases = trained(benchmark, Path(made))
    memory = memory_of(card, watches)
    figure = memory["with a GPU, by assumption of what CUDA adds"]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f} before"
    result = {"figure": figure / 1e9, "reference": REFERENCE / 1e9, "ratio": figure / REFERENCE, "memory": memory}
    result["epochs"] = dict(zip(NAMES, phases, strict=True))
    result["planned bytes of an epoch"] = planned(card)
    print(json.dumps(result | {"settings": asdict(benchmark), "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
