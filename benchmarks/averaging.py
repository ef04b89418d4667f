"""How close does averaging come to what the links allow?

Peers in networks of their own average the same gradients again and again: with hivemind's averager and codec, with the
kit's, and over plain sockets that exchange as many bytes at once, which shows the time of TCP itself. Prints JSON: the
kit's seconds (figure), the seconds that the fullest link needs for the bytes sent (reference), their ratio, and for
each way its seconds and ratio, with the seconds of each round and the share of this machine's processors that worked.
A round lasts from the moment the first peer knows its group until the last one has the average; seconds are medians of
rounds. With them comes what a round of the paper's size would take at that ratio, and which share of an epoch of 200 s
its peers would wait for it, if they wait and with delayed averaging.

Eight volunteers at home and two reducers of the organiser's: `--clients 8 --reducers 2 --megabits 1000 --client-up 10
--client-down 100 --round-trip-ms 30`.

One slow of eight, what the others need for a round beside it: `--reducers 8 --slow-up 5`.

Needs Linux, root, iproute2 (apt-get install iproute2), and numpy below 2.4, where hivemind's codec still works. On a
machine that does other work too, figures are too high: an averaging peer needs up to 0.3 seconds of a core each round.
"""

import functools
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import Any, NamedTuple

import hivemind
import psutil
import torch
import tyro
from averaging_setup import Benchmark, paper_waits
from hivemind.compression import Float16Compression, SizeAdaptiveCompression, Uniform8BitQuantization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.optim.grad_averager import GradientAverager
from shaped_network import ShapedNetwork, isolate

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import shared_options

TENSOR_SIZE, EIGHT_BIT_FROM = 2**20, 2**16
MAX_LOST = 0.2
PATIENCE_S = 300
fork = get_context("fork")


class Seen(NamedTuple):
    """What one peer saw of a round."""

    start: float
    busy_before: float
    end: float
    busy_after: float
    lost: float = 0.0
    """The norm of the average's error over the norm of the average."""
    is_slow: bool = False
    """Whether it is the slow peer, whose own time and average do not count."""


class Meeting(NamedTuple):
    """Queues and a barrier between the benchmark's process and its peers."""

    arrived: Any
    """A queue of the peers' addresses."""
    together: Any
    """A barrier before each round and after the last."""
    seen: Any
    """A queue of what each peer saw of each round."""


def busy() -> float:
    """Return the seconds that this machine's processors have worked."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def hivemind_averager(_benchmark: Benchmark, _identity: Identity) -> tuple[type[GradientAverager], dict]:
    """Return hivemind's averager class and its arguments."""
    small, large = Float16Compression(), Uniform8BitQuantization()
    compression = SizeAdaptiveCompression(threshold=EIGHT_BIT_FROM, less=small, greater_equal=large)
    return GradientAverager, {"compression": compression}


def kit_averager(benchmark: Benchmark, identity: Identity) -> tuple[type[GradientAverager], dict]:
    """Return the averager class of the kit's peers and its arguments."""
    codec.install()
    card = RunCard.load("emoji-mini")
    card = card.with_changes(averaging={**card.averaging.model_dump(), **benchmark.card})
    trust = Trust(identity=identity, least_wait_s=card.averaging.least_wait_s)
    compression = shared_options(card, None, trust)["grad_compression"]
    return RunGradientAverager, {"trust": trust, "compression": compression, "part_size_bytes": benchmark.part_bytes}


def timed(kind: type[GradientAverager], times: SynchronizedArray) -> type[GradientAverager]:
    """Return the averager, which notes when it has found its group and when it has the average."""

    class Timed(kind):
        async def _aggregate_with_group(self, *args, **kwargs):
            times[:2] = time.monotonic(), busy()
            result = await super()._aggregate_with_group(*args, **kwargs)
            times[2:] = time.monotonic(), busy()
            return result

    return Timed


def average(
    averager: Callable[[Benchmark, Identity], tuple[type[GradientAverager], dict]],
    address: str,
    benchmark: Benchmark,
    number: int,
    known: list[str],
    meeting: Meeting,
) -> None:
    """Be a peer that averages its gradients with the others; they are normal, with a scale that differs by peer."""
    warnings.simplefilter("ignore")  # hivemind's codec uses parts of torch that are deprecated
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_client = number >= benchmark.reducers
    hosts = [f"/ip4/{address}/tcp/0"]
    file = Path(tempfile.mkdtemp(), "identity.pem")
    identity = Identity.load_or_create(file)
    dht = hivemind.DHT(
        start=True, initial_peers=known, host_maddrs=hosts, client_mode=is_client, startup_timeout=60,
        identity_path=str(file), record_validators=[RSASignatureValidator(identity.private_key)],
    )  # fmt: skip
    meeting.arrived.put(None if is_client else str(dht.get_visible_maddrs()[0]))
    gradient = torch.randn(benchmark.parameters)
    parameters = [torch.nn.Parameter(part) for part in torch.zeros_like(gradient).split(TENSOR_SIZE)]
    for parameter, part in zip(parameters, gradient.split(TENSOR_SIZE), strict=True):
        parameter.grad = part * (1 + number / benchmark.peers)
    expected = gradient * (1.5 - 0.5 / benchmark.peers)
    kind, options = averager(benchmark, identity)
    group = {"target_group_size": benchmark.peers, "min_group_size": benchmark.peers}
    times = fork.Array("d", 4)
    peer = timed(kind, times)(
        parameters, dht=dht, prefix="benchmark", start=True, client_mode=is_client, min_matchmaking_time=5.0,
        request_timeout=2.0, next_chunk_timeout=60.0, reuse_grad_buffers=True, warn=False, **group, **options,
    )  # fmt: skip
    peer.accumulate_grads_(batch_size=1)
    for _ in range(1 + benchmark.rounds):
        meeting.together.wait()
        peer.step(weight=1.0, reset_accumulators=False, timeout=PATIENCE_S)
        with peer.get_tensors() as tensors:
            lost = (torch.cat(tensors) - expected).norm() / expected.norm()
        meeting.seen.put(Seen(*times, float(lost), benchmark.is_slow(number)))
    meeting.together.wait()
    peer.shutdown()
    dht.shutdown()


def exchange(address: str, benchmark: Benchmark, number: int, known: list[str], meeting: Meeting) -> None:
    """Be a peer that exchanges as many bytes as in averaging with the others, over a plain connection to each."""
    others = [
        other for other in range(benchmark.peers) if benchmark.sent(number, other) or benchmark.sent(other, number)
    ]
    server = socket.create_server((address, 5000), backlog=benchmark.peers)
    meeting.arrived.put(address)
    links = {other: socket.create_connection((known[other], 5000)) for other in others if other < number}
    for link in links.values():
        link.sendall(bytes([number]))
    for _ in range(len(others) - len(links)):
        link = server.accept()[0]
        links[link.recv(1)[0]] = link

    def receive(link: socket.socket, size: int) -> None:
        while size:
            size -= len(link.recv(min(size, 2**18)))

    with ThreadPoolExecutor(2 * len(links)) as pool:
        for _ in range(1 + benchmark.rounds):
            meeting.together.wait()
            start = time.monotonic(), busy()
            moves = [pool.submit(receive, link, int(benchmark.sent(other, number))) for other, link in links.items()]
            moves += [
                pool.submit(link.sendall, bytes(int(benchmark.sent(number, other)))) for other, link in links.items()
            ]
            for move in moves:
                move.result()
            end = time.monotonic(), busy()
            meeting.seen.put(Seen(*start, *end, is_slow=benchmark.is_slow(number)))
    meeting.together.wait()


WAYS = {
    "plain TCP": exchange,
    "hivemind": functools.partial(average, hivemind_averager),
    "kit": functools.partial(average, kit_averager),
}


def rounds(network: ShapedNetwork, benchmark: Benchmark, way: str) -> list[list[Seen]]:
    """Return what each peer saw of each round that counts."""
    together = fork.Barrier(benchmark.peers + 1, timeout=PATIENCE_S)
    meeting = Meeting(fork.Queue(), together, fork.Queue())
    known, processes, result = [], [], []
    for number in range(benchmark.peers):
        up, down = benchmark.rates(number)
        processes.append(network.start(WAYS[way], benchmark, number, list(known), meeting, up=up, down=down))
        where = meeting.arrived.get(timeout=PATIENCE_S)
        known += [where] if where else []
    for number in range(1 + benchmark.rounds):
        together.wait()
        result.append([meeting.seen.get(timeout=PATIENCE_S) for _ in processes])
        print(f"{way}: round {number}", file=sys.stderr)
    together.wait()
    for process in processes:
        process.join()
    return result[1:]


def report(network: ShapedNetwork, benchmark: Benchmark, way: str) -> dict:
    """Return a way's figures. Raises RuntimeError if it did not average."""
    seconds, shares, lost = [], [], []
    for of_all in rounds(network, benchmark, way):
        peers = [seen for seen in of_all if not seen.is_slow]
        first, last = min(peers), max(peers, key=lambda peer: peer.end)
        seconds.append(last.end - first.start)
        shares.append((last.busy_after - first.busy_before) / seconds[-1] / os.cpu_count())
        lost.append(max(peer.lost for peer in peers))
    if max(lost) > MAX_LOST:
        raise RuntimeError(f"{way} did not average: after a round, a peer's error was {max(lost):.0%} of the average.")
    median = statistics.median(seconds)
    ratio = median / benchmark.ideal_s
    told = {"rounds": seconds, "at work": shares, "lost": max(lost), "paper's size": paper_waits(median, benchmark)}
    return {"seconds": median, "ratio": ratio, **told}


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    isolate()
    network = ShapedNetwork(
        megabits=benchmark.megabits,
        round_trip_ms=benchmark.round_trip_ms,
        congestion_control=benchmark.congestion_control,
    )
    reports = {way: report(network, benchmark, way) for way in benchmark.ways}
    figure = reports[benchmark.ways[-1]]["seconds"]
    result = {"figure": figure, "reference": benchmark.ideal_s, "ratio": figure / benchmark.ideal_s, **reports}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    print(json.dumps(result | {"settings": asdict(benchmark), "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
