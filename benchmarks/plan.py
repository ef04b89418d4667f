"""Do the figures of `dalle-lib run plan` hold in a real swarm?

Eight peers on this machine train together through a relay with a slow link for each (`dalle_lib.rehearsal.links`, no
root). They are the kit's optimizer and averagers; in place of computing, they sleep. Prints JSON: the measured seconds
of an epoch (figure), the planned ones (reference) and their ratio for each scenario, and with them the bytes that each
kind of peer sends and receives in an epoch. Epochs count from the second to the last, averages of parameters included.

The planned bytes are those of `Plan.traffic`. On a machine that does other work too, seconds are too high.
"""

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
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro

from dalle_lib.planning import Machines, Work, plan_run
from dalle_lib.rehearsal.links import Link, Plug, Relay

TENSOR_SIZE = 2**18
TARGET = 192
PATIENCE_S = 600


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is averaged, and how long."""

    parameters: int = 2_097_152
    epochs: int = 4
    """Epochs after the first one, which does not count."""
    state_every: int = 4
    """Epochs between averages of parameters; `epochs` should be a multiple of it."""
    matchmaking_s: float = 3.0
    scenarios: tuple[str, ...] = ("equal", "two slow uplinks", "clients", "local updates")


def scenarios() -> dict[str, tuple[list[Machines], dict]]:
    """Return the peers and the settings of each scenario, by name."""
    equal = {"samples_per_second": 2.0, "batch_size": 1}
    home = {"up_mbps": 10, "down_mbps": 40}
    fast = {"up_mbps": 60, "down_mbps": 60}
    return {
        "equal": ([Machines(name="peer", count=8, reduces=True, up_mbps=20, down_mbps=20, **equal)], {}),
        "two slow uplinks": (
            [
                Machines(name="fast", count=6, reduces=True, **fast, **equal),
                Machines(name="slow", count=2, reduces=True, up_mbps=8, down_mbps=40, **equal),
            ],
            {},
        ),
        "clients": (
            [
                Machines(name="reducer", count=2, reduces=True, **fast, **equal),
                Machines(name="client", count=6, **home, **equal),
            ],
            {},
        ),
        "local updates": (
            [Machines(name="peer", count=8, reduces=True, up_mbps=20, down_mbps=20, **equal)],
            {"strategy": "local"},
        ),
    }


def work_of(benchmark: Benchmark, changes: dict) -> Work:
    """Return what the peers of a scenario do."""
    full, rest = divmod(benchmark.parameters, TENSOR_SIZE)
    return Work(
        tensors=(*[TENSOR_SIZE] * full, *([rest] if rest else [])), epochs=1000, target_batch_size=TARGET,
        matchmaking_s=benchmark.matchmaking_s, timeout_s=60.0, state_every=benchmark.state_every, delayed=False,
        **changes,
    )  # fmt: skip


def train(work: Work, group: Machines, plug: dict, known: list[str], meeting: tuple) -> None:
    """Be a peer: sleep for each batch, and report each epoch's end, with whatever went wrong in its round."""
    import hivemind
    from hivemind.dht.crypto import RSASignatureValidator

    from dalle_lib.auth import Identity
    from dalle_lib.swarm import hash_table
    from dalle_lib.swarm.averaging import codec
    from dalle_lib.swarm.averaging.local_updates import LocalUpdateOptimizer
    from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
    from dalle_lib.swarm.averaging.trust import Trust

    os.setsid()  # all that it forks ends with it
    multiprocessing.set_start_method("fork", force=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    codec.install()
    hash_table.install()
    arrived, together, ended = meeting
    file = Path(tempfile.mkdtemp(), "identity.pem")
    identity = Identity.load_or_create(file)
    own = {} if not group.reduces else {"host_maddrs": [plug["listens_at"]], "announce_maddrs": [plug["announced_at"]]}
    dht = hivemind.DHT(
        start=True, initial_peers=known, client_mode=not group.reduces, startup_timeout=60, identity_path=str(file),
        record_validators=[RSASignatureValidator(identity.private_key)], **own,
    )  # fmt: skip
    arrived.put([str(address) for address in dht.get_visible_maddrs()] if group.reduces else [])
    parameters = [torch.nn.Parameter(torch.randn(size) * 1e-3) for size in work.tensors]
    compression = codec.compression(work.eight_bit_from)
    options = {
        "dht": dht, "trust": Trust(identity=identity, audits=work.audits), "run_id": "benchmark",
        "total_epochs": work.epochs, "target_batch_size": work.target_batch_size, "offload_optimizer": True,
        "delay_optimizer_step": False, "average_state_every": work.state_every, "part_bytes": work.part_bytes,
        "matchmaking_time": work.matchmaking_s, "averaging_timeout": work.timeout_s,
        "next_chunk_timeout": work.timeout_s / 2, "grad_compression": compression,
        "state_averaging_compression": compression, "params": parameters,
        "tracker_opts": {"max_refresh_period": min(10.0, work.matchmaking_s),
                         "default_refresh_period": min(3.0, work.matchmaking_s / 3)},
    }  # fmt: skip
    if work.strategy == "local":
        inner = torch.optim.SGD(parameters, lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda _: 1.0)
        optimizer = LocalUpdateOptimizer(
            inner=inner, inner_schedule=schedule, outer_lr=0.7, outer_momentum=0.9, **options
        )
    else:
        optimizer = CollaborativeOptimizer(optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-3), **options)
    together.wait()
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    epoch = 0
    while True:
        time.sleep(group.batch_size / group.samples_per_second)
        optimizer.step(batch_size=group.batch_size)
        failures = []
        while not optimizer.rounds.empty():
            told = optimizer.rounds.get()
            if (failure := getattr(told, "failure", None) or getattr(told, "reason", None)) is not None:
                failures.append(failure)
        failures += [what for _peer, what in optimizer.problems()]
        if optimizer.local_epoch != epoch or failures:
            epoch = optimizer.local_epoch
            ended.put((group.name, epoch, failures))


def measure(work: Work, machines: list[Machines], epochs: int) -> dict:
    """Return seconds of epochs, bytes of each kind of peer in one, and what went wrong."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "hivemind", "dalle_lib.swarm.averaging.local_updates"])
    peers = [group for group in machines for _ in range(int(group.count))]
    meeting = context.Queue(), context.Barrier(len(peers) + 1), context.Queue()
    arrived, together, ended = meeting
    plugs, known, processes, problems = [], [], [], []
    with Relay() as relay:
        for group in peers:
            plug = relay.plug(Link(up_mbps=group.up_mbps, down_mbps=group.down_mbps))
            places = {"listens_at": plug.listens_at, "announced_at": plug.announced_at}
            process = context.Process(target=train, args=(work, group, places, known, meeting))
            process.start()
            plug.process = process.pid
            plugs.append(plug)
            processes.append(process)
            known = known or arrived.get(timeout=PATIENCE_S)
        together.wait(PATIENCE_S)
        marks: dict[int, tuple[float, list[tuple[int, int]]]] = {}
        while len(marks) <= epochs:
            name, epoch, failures = ended.get(timeout=PATIENCE_S)
            problems += [f"{name}, epoch {epoch}: {failure}" for failure in failures]
            if epoch not in marks:
                marks[epoch] = time.monotonic(), [_through(plug) for plug in plugs]
                print(f"epoch {epoch}", file=sys.stderr)
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
    (begun, before), (over, after) = marks[1], marks[max(marks)]
    count = max(marks) - 1
    times = [marks[number][0] for number in sorted(marks) if number >= 1]
    moved = [
        ((b[0] - a[0]) / count, (b[1] - a[1]) / count, group.name)
        for a, b, group in zip(before, after, peers, strict=True)
    ]
    return {
        "seconds": (over - begun) / count,
        "epochs": [b - a for a, b in itertools.pairwise(times)],
        "bytes": {
            group.name: [statistics.mean(m[way] for m in moved if m[2] == group.name) for way in (0, 1)]
            for group in machines
        },
        "problems": problems[:20],
    }


def _through(plug: Plug) -> tuple[int, int]:
    return plug.up.bytes_through, plug.down.bytes_through


def compared(benchmark: Benchmark, name: str) -> dict:
    """Return what was planned and measured in a scenario."""
    machines, changes = scenarios()[name]
    work = work_of(benchmark, changes)
    plan, seen = plan_run(work, machines), measure(work, machines, benchmark.epochs)
    planned = {group.name: [group.sent_per_epoch, group.received_per_epoch] for group in plan.traffic}
    ratios = {
        peer: [measured / expected for measured, expected in zip(seen["bytes"][peer], both, strict=True)]
        for peer, both in planned.items()
    }
    report = {
        "seconds": {"measured": seen["seconds"], "planned": plan.epoch_s, "ratio": seen["seconds"] / plan.epoch_s},
        "phases": plan.phases,
        "bytes": {"measured": seen["bytes"], "planned": planned, "ratio": ratios},
        "epochs": seen["epochs"],
        "problems": seen["problems"],
    }
    print(name, json.dumps(report), file=sys.stderr)
    return report


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    load_before = os.getloadavg()[0]
    reports = {name: compared(benchmark, name) for name in benchmark.scenarios}
    figure, reference, ratio = (
        {name: report["seconds"][of] for name, report in reports.items()} for of in ("measured", "planned", "ratio")
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load_before:.1f} before"
    result = {"figure": figure, "reference": reference, "ratio": ratio, "scenarios": reports}
    print(json.dumps(result | {"settings": asdict(benchmark), "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
