"""What do ten newcomers at once cost the four peers of a running swarm, and how soon do they count?

All peers are the kit's own, on this machine, behind a relay with a slow link for each (`dalle_lib.rehearsal.links`,
no root); in place of computing, they sleep. Ten newcomers, started at a lower priority, begin with the newest
checkpoint of a stand-in for the Hub or, with `--from-whom donors`, with the state of a donor. Prints JSON: how many
times as long the others' epochs take from the newcomers' start until all of them count (figure), 1.1 (reference), and
how many epochs after the one in which it has its state each newcomer counts, where 2 are aimed at.

The Hub is reached without a limit, as no volunteer serves it. The newcomers compute so little that they hardly shorten
an epoch. All peers share this machine's cores, which volunteers do not: so the newcomers' programs are loaded before it
measures, and wait at a gate. An epoch takes some 45 s; the paper's took about 200 s.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro

from dalle_lib.auth.keys import PeerKey
from dalle_lib.monitor.uploading import pointer
from dalle_lib.rehearsal.hub.here import hub_here
from dalle_lib.rehearsal.links import LOCALHOST, Link, Plug, Relay
from dalle_lib.run import RunCard
from dalle_lib.run.files import CHECKPOINTS, MODEL, OPTIMIZER
from dalle_lib.run.newest import LATEST, folder_on_hub
from dalle_lib.swarm import Peer, PeerSettings
from dalle_lib.swarm.peer.computing.trials import MAX_AT_ONCE
from dalle_lib.swarm.process.folder import IDENTITY, SETTINGS, own_id

RUN, REPOSITORY = "timed", "crew/timed-checkpoints"
PRELOADED = ["torch", "hivemind", "dalle_lib.swarm.peer.trainer", "dalle_lib.swarm.peer.pulling"]
AIM = 1.1
OTHERS = ("ada", "bob", "cem", "dia")
NICE = 19
PATIENCE_S = 400.0


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Who joins whom, over which links."""

    from_whom: Literal["checkpoints", "donors"] = "checkpoints"
    """Where newcomers get their state."""
    newcomers: int = 10
    epochs: int = 3
    """Epochs before the newcomers start that are compared."""
    target_batch_size: int = 11_520
    samples_per_s: float = 64.0
    """Samples that each of the four computes in a second, its batch."""
    newcomers_samples_per_s: float = 1.0
    mbps: float = 20.0
    """Rate of each peer's upload and download in megabits a second."""


def be_peer(folder: str, samples_per_s: float, niceness: int, loaded, gate) -> None:
    """Be the peer of a folder, which sleeps in place of computing, until it is killed.

    It begins when the gate is open, and raises `loaded` as soon as it is ready to.
    """
    from huggingface_hub import constants

    from dalle_lib.swarm.peer import main, trainer
    from dalle_lib.swarm.peer.computing import work

    os.setsid()  # all that it forks ends with it
    if niceness:  # they compute on what the others leave of this machine's cores
        os.nice(niceness)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    warnings.simplefilter("ignore")
    constants.HF_HUB_CACHE = f"{folder}/cache"  # each volunteer has a machine of their own
    leash, own_end = os.pipe()
    os.write(own_end, b"\n")  # there is no Hub token
    os.dup2(leash, 0)
    gradients: list[torch.Tensor] = []

    def sleep(self, batches) -> list[float]:
        time.sleep(sum(map(len, batches)) / samples_per_s)
        parameters = list(self.model.parameters())
        gradients.extend(torch.randn_like(each) * 1e-3 for each in parameters[len(gradients) :])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        return [1.0] * len(batches)

    def try_nothing(self, *_) -> None:
        self.computer.way = replace(self.computer.way, batch=MAX_AT_ONCE)

    trainer.Trainer._compute_gradient = sleep
    work.Work.choose_way = try_nothing
    loaded.release()
    gate.wait()
    main.main(Path(folder))


class Swarm:
    """Peers by name, each behind a link; the end of the block kills all."""

    def __init__(self, benchmark: Benchmark, folder: Path, card: RunCard) -> None:
        self.benchmark, self.folder = benchmark, folder
        self.peers: dict[str, Peer] = {}
        self._processes: list[multiprocessing.Process] = []
        self._ids: dict[str, str | None] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self.loaded, self.gate = self._context.Semaphore(0), self._context.Event()
        self._open = self._context.Event()
        self._open.set()
        self._run = card.save(folder / RUN)

    def __enter__(self) -> "Swarm":
        self._relay = Relay()
        self._relay.__enter__()
        self.start("first", role="bootstrap")
        addresses = self.wait("first", "connected")["addresses"]
        RunCard.load(self._run).with_changes(initial_peers=tuple(addresses)).save(self._run)
        return self

    def __exit__(self, *error) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        self._relay.__exit__(*error)

    def start(
        self, name: str, samples_per_s: float = 1.0, niceness: int = 0, at_gate: bool = False, **settings
    ) -> None:
        """Start a peer, which begins at once or, `at_gate`, when `gate` is set."""
        plug: Plug = self._relay.plug(Link(up_mbps=self.benchmark.mbps, down_mbps=self.benchmark.mbps))
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        place = {"host": LOCALHOST, "port": plug.listens_on, "announce": (plug.announced_at,)}
        PeerSettings(run=str(self._run), name=name, **place, **settings).save(folder / SETTINGS)
        gate = self.gate if at_gate else self._open
        process = self._context.Process(target=be_peer, args=(str(folder), samples_per_s, niceness, self.loaded, gate))
        process.start()
        plug.process = process.pid
        self._processes.append(process)
        self.peers[name] = Peer(folder)

    def wait(self, name: str, event: str) -> dict:
        """Return the first event of that kind of a peer, as soon as it is there."""
        wait_until(lambda: self.told(name, event), name)
        return self.told(name, event)[0]

    def told(self, name: str, event: str) -> list[dict]:
        """Return what a peer has told of one kind."""
        events = self.peers[name].events()
        if failed := [each for each in events if each["event"] == "failed"]:
            raise RuntimeError(f"{name} failed: {failed[0]['error']}")
        return [each for each in events if each["event"] == event]

    def epochs(self) -> dict[int, float]:
        """Return when each epoch ended for the median of the four."""
        ends: dict[int, list[float]] = {}
        for name in OTHERS:
            for event in self.told(name, "epoch"):
                ends.setdefault(event["epoch"], []).append(event["time"])
        return {epoch: statistics.median(times) for epoch, times in sorted(ends.items()) if len(times) == len(OTHERS)}

    def rounds_s(self, begin: float, end: float) -> float:
        """Return the mean seconds for which the four waited for an average between two times."""
        rounds = [event for name in OTHERS for event in self.told(name, "averaged")]
        return statistics.mean(event["seconds"] for event in rounds if begin < event["time"] <= end)

    def id_of(self, name: str) -> str | None:
        """Return a peer's id as soon as it has one; reading its key takes a moment of this machine's cores."""
        if self._ids.get(name) is None:
            self._ids[name] = own_id(self.peers[name].folder)
        return self._ids[name]

    def counts_at(self, name: str) -> float | None:
        """Return when a peer's gradient first counted in an average with others of the four."""
        own, others = self.id_of(name), set(map(self.id_of, OTHERS))
        counted = [event["time"] for event in self.told(name, "averaged") if event["shares"].get(own, 0) > 0
                   and others & event["shares"].keys()]  # fmt: skip
        return min(counted, default=None)


def wait_until(condition, what: str) -> None:
    """Wait for a condition, looking seldom, as peers share these cores. Raises TimeoutError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} took more than {PATIENCE_S} s")
        time.sleep(2.0)


def measure(benchmark: Benchmark, folder: Path, hub) -> dict:
    """Return the seconds of the others' epochs before and while newcomers join, and how soon these count."""
    (folder / "monitor").mkdir(parents=True)
    key = PeerKey.load_or_create(folder / "monitor" / IDENTITY)
    card = card_of(benchmark, key)
    with Swarm(benchmark, folder, card) as swarm:
        for name in OTHERS:
            swarm.start(name, benchmark.samples_per_s, batch_size=int(benchmark.samples_per_s))
        swarm.start("monitor", role="observer", state_every_s=3600)
        wait_until(lambda: max(swarm.epochs(), default=0) >= 2, "the first epochs")
        taken = swarm.wait("monitor", "checkpoint")
        send(hub, swarm.peers["monitor"].folder / CHECKPOINTS / taken["folder"], taken["epoch"], key)
        names, running = [f"new-{number}" for number in range(1, benchmark.newcomers + 1)], len(swarm.peers)
        for name in names:
            swarm.start(name, benchmark.newcomers_samples_per_s, NICE, at_gate=True, batch_size=1)
        for _ in range(running + len(names)):
            if not swarm.loaded.acquire(timeout=PATIENCE_S):
                raise TimeoutError(f"not all were loaded within {PATIENCE_S} s")
        first = max(swarm.epochs())
        wait_until(lambda: max(swarm.epochs()) >= first + benchmark.epochs + 1, "the epochs before")
        print(f"newcomers start in epoch {max(swarm.epochs())}", file=sys.stderr)
        began = time.time()
        swarm.gate.set()
        wait_until(lambda: all(swarm.counts_at(name) is not None for name in names), "until all newcomers count")
        ended = time.time()
        wait_until(lambda: max(swarm.epochs().values()) > ended, "the last epoch")
        times = swarm.epochs()
        seconds = {b: (times[b] - times[a]) / (b - a) for a, b in itertools.pairwise(times)}
        before = [s for epoch, s in seconds.items() if epoch > first + 1 and times[epoch] <= began]
        # The epoch in which all count has begun before that, and so belongs to those with newcomers.
        meanwhile = [
            seconds[epoch] for epoch in seconds if began < times[epoch] and times[epoch] - seconds[epoch] < ended
        ]
        joined = {name: swarm.told(name, "joined")[0]["time"] for name in names}
        after = [sum(joined[name] < at <= swarm.counts_at(name) for at in times.values()) for name in names]
        return {
            "figure": statistics.mean(meanwhile) / statistics.mean(before),
            "epochs after the download": max(after),
            "before": before,
            "meanwhile": meanwhile,
            "round before": swarm.rounds_s(times[first + 1], began),
            "round meanwhile": swarm.rounds_s(began, ended),
            "seconds until all had joined": max(joined.values()) - began,
            "seconds until all counted": ended - began,
            "each": after,
        }


def card_of(benchmark: Benchmark, key: PeerKey) -> RunCard:
    """Return the run's card."""
    mini = RunCard.load("emoji-mini")
    changes = {"target_batch_size": benchmark.target_batch_size, "timeout_s": 30.0}
    changes["matchmaking_s"] = 10.0  # much longer than a step of a newcomer on these busy cores
    told = {"checkpoints": REPOSITORY, "monitors": (key.peer_id,)} if benchmark.from_whom == "checkpoints" else {}
    return mini.with_changes(
        name=RUN,
        optimizer=mini.optimizer.model_dump() | {"total_epochs": 10_000},
        averaging=mini.averaging.model_dump() | changes,
        **told,
    )


def send(hub, checkpoint: Path, epoch: int, key: PeerKey) -> None:
    """Put a checkpoint on the Hub as the monitor does."""
    folder = folder_on_hub(epoch)
    files = {f"{folder}/{name}": (checkpoint / name).read_bytes() for name in (MODEL, OPTIMIZER)}
    hub.add(REPOSITORY, files | {LATEST: pointer(REPOSITORY, epoch, checkpoint, key)})


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended by `timeout`, it ends its peers too
    with tempfile.TemporaryDirectory() as made, hub_here(Path(made) / "hub") as hub:
        found = measure(benchmark, Path(made) / "run", hub)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f} before"
    result = {"figure": found["figure"], "reference": AIM, "ratio": found["figure"] / AIM} | found
    print(json.dumps(result | {"settings": asdict(benchmark), "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
