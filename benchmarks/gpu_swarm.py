"""Do a peer on a GPU and peers on other devices train one model, and does it go on where memory runs out?

- together: three trainers of the embedded run on this machine, on the GPU as its trials choose, on the GPU in fp16 with
  a loss scale and a small part of its memory, and on the processor. Only averaged gradients keep them together:
  parameters are averaged by nobody.
- memory: another program takes all memory of the GPU while a peer trains there, without PyTorch's cache, and gives it
  back. What the peer tells, and in how many rounds it counts before and afterwards.

Prints JSON: the distance between the parameters of the peer on the GPU and the one on the processor at the end, as a
share of the way from the first parameters (figure), what tests allow peers on processors (reference), their ratio, and
what each peer told. It took 160 s on an H200. `python benchmarks/gpu_swarm.py --device cpu` tries the first part on a
processor.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from memory import describe_machine

from dalle_lib.checkpoint import load_model
from dalle_lib.run import RunCard, initial_model
from dalle_lib.run.files import MODEL
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.process.events import EVENTS
from dalle_lib.swarm.process.folder import SETTINGS
from dalle_lib.swarm.process.history import counted_by, epochs_of, names_of, samples_of
from dalle_lib.swarm.process.join import LOG
from dalle_lib.swarm.process.local import LOCALHOST

ALLOWED = 0.2
"""Distance that tests/test_swarm.py allows."""
TOLD = {"joined", "computing", "skipped", "problem", "left_out", "rolled_back", "again", "failed", "left"}
"""Events of a peer that are reported, and what of them."""
FIELDS = {"event", "told", "why", "tried", "problem", "error", "loss", "loss_scale", "device", "epoch", "samples"}
IN_FP16 = """
import sys
from pathlib import Path
import torch
from dalle_lib import machine
machine.autocast_dtype = lambda device: torch.float16
from dalle_lib.swarm.peer.main import main
main(Path(sys.argv[1]))
"""
"""A peer that computes as on a GPU below capability 8, which has no bfloat16."""
SHARE = 0.0025
"""Part of a GPU's memory, in which 64 samples at a time have no room."""
LEFT_BYTES = 96_000_000
"""What the other program leaves of a GPU's memory, in which 64 samples at a time have no room."""
HELD_S = 8.0
"""Seconds for which it has the memory after a peer has told that there is too little."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to try."""

    device: str = "cuda:0"
    """Device of the first peer; the second one computes there too, the third on the processor."""
    epochs: int = 15
    target: int = 4096
    """Samples of an epoch."""
    threads: int = 6
    """Threads of the peer on the processor."""
    part: Literal["both", "together", "memory"] = "both"
    """What to try."""
    seconds: float = 120.0
    """After which a part ends that is not complete by then."""
    out: Path | None = None
    """File for what was found so far, and each peer's log beside it."""


def main(benchmark: Benchmark) -> None:
    """Try all, and print JSON."""
    report = {"machine": describe_machine(torch.device(benchmark.device).type), "settings": f"{benchmark}"}
    if benchmark.part != "memory":
        report["together"] = together(benchmark)
        figure = report["together"]["distance"]["processor"]
        report = {"figure": figure, "reference": ALLOWED, "ratio": round(figure / ALLOWED, 3)} | report
        _keep(benchmark, report)
    if benchmark.part != "together" and benchmark.device != "cpu":
        report["memory"] = memory(benchmark)
        _keep(benchmark, report)
    print(json.dumps(report, indent=1))


def together(benchmark: Benchmark) -> dict:
    """Return how three peers have trained."""
    card = _card(benchmark, benchmark.epochs)
    with _folder(benchmark, "together") as folder, local_swarm(card, folder) as swarm:
        gpu = swarm.add(PeerSettings(name="gpu", device=benchmark.device, threads=2, **_common(swarm.run)))
        swarm.add(PeerSettings(name="processor", device="cpu", threads=benchmark.threads, **_common(swarm.run)))
        half = PeerSettings(name="half", device=benchmark.device, gpu_share=SHARE, threads=1, **_common(swarm.run))
        with _in_fp16(half, gpu.folder.with_name("half")) as process:
            _wait(benchmark.seconds, lambda: process.poll() is not None and not _running(swarm.peers.values()))
            peers = [*swarm.peers.values(), Peer(gpu.folder.with_name("half"))]
            swarm.ask_to_stop()
        _wait(30.0, lambda: not _running(swarm.peers.values()))
        start = _flat(initial_model(card))
        ends = {peer.folder.name: _flat(load_model(peer.folder / MODEL, card.model)) for peer in peers}
        way = (ends["gpu"] - start).norm()
        distance = {name: float((end - ends["gpu"]).norm() / way) for name, end in ends.items()}
        return {"distance": distance, "way": float(way)} | _seen(peers)


def memory(benchmark: Benchmark) -> dict:
    """Return how a peer goes on whose GPU has no memory for a while."""
    with _folder(benchmark, "memory") as folder, local_swarm(_card(benchmark, 1000), folder) as swarm:
        with _changed_environment(PYTORCH_NO_CUDA_MEMORY_CACHING="1"):
            gpu = swarm.add(PeerSettings(name="gpu", device=benchmark.device, threads=2, **_common(swarm.run)))
        swarm.add(PeerSettings(name="processor", device="cpu", threads=benchmark.threads, **_common(swarm.run)))
        _wait(benchmark.seconds, lambda: _rounds(gpu) >= 3 or not gpu.is_running)
        before, taken = _rounds(gpu), _all_but(LEFT_BYTES, torch.device(benchmark.device))
        taken_at = time.time()
        _wait(30.0, lambda: _ran_out(gpu, taken_at) or not gpu.is_running)
        time.sleep(HELD_S)
        amount, told = sum(each.nbytes for each in taken), len(_ran_out(gpu, taken_at))
        taken.clear()
        torch.cuda.empty_cache()
        meanwhile = _rounds(gpu)
        _wait(30.0, lambda: _rounds(gpu) >= meanwhile + 3 or not gpu.is_running)
        rounds = {"before": before, "meanwhile": meanwhile - before, "afterwards": _rounds(gpu) - meanwhile}
        swarm.ask_to_stop()
        _wait(30.0, lambda: not _running(swarm.peers.values()))
        found = {"taken from": taken_at, "bytes taken": amount, "told that memory ran out": told, "rounds": rounds}
        return found | _seen(list(swarm.peers.values()))


def _card(benchmark: Benchmark, epochs: int) -> RunCard:
    """Return the card of the embedded run, whose peers average gradients and nothing else."""
    card = RunCard.load("emoji-mini")
    return card.with_changes(
        optimizer={**card.optimizer.model_dump(), "total_epochs": epochs, "warmup_epochs": 1},
        averaging={
            **card.averaging.model_dump(),
            **{"target_batch_size": benchmark.target, "delayed": False, "state_every": 10_000},
        },
    )


def _common(run: str) -> dict:
    return {"run": run, "host": LOCALHOST, "max_minutes": 5.0}  # too few for compiling to pay


@contextlib.contextmanager
def _folder(benchmark: Benchmark, part: str) -> Iterator[Path]:
    """Make a folder for peers, whose logs are kept."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            if benchmark.out is not None:
                for file in (*Path(folder).rglob(LOG), *Path(folder).rglob(EVENTS)):
                    shutil.copy(file, benchmark.out.with_name(f"{part}_{file.parent.name}_{file.name}"))


@contextlib.contextmanager
def _in_fp16(settings: PeerSettings, folder: Path) -> Iterator[subprocess.Popen]:
    """Let a peer train that computes in fp16, and ask it to leave when the block ends."""
    folder.mkdir(parents=True)
    settings.save(folder / SETTINGS)
    command = [sys.executable, "-c", IN_FP16, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        process.stdin.write(b"\n")  # no Hub token
        process.stdin.flush()
        yield process
        process.stdin.close()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()


@contextlib.contextmanager
def _changed_environment(**changes: str) -> Iterator[None]:
    """Give processes that are started in the block these variables."""
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]


def _all_but(left: int, device: torch.device) -> list[torch.Tensor]:
    """Take all memory of a GPU but so many bytes."""
    taken, size = [], 2**33
    while size >= 2**22:
        if torch.cuda.mem_get_info(device)[0] - size < left:
            size //= 2
            continue
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:  # a peer was faster
            size //= 2
    return taken


def _wait(seconds: float, is_over: Callable[[], object]) -> None:
    """Wait until something is so, at most so many seconds."""
    ends_at = time.monotonic() + seconds
    while not is_over() and time.monotonic() < ends_at:
        time.sleep(0.2)


def _running(peers: Iterable[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.is_running]


def _rounds(peer: Peer) -> int:
    """Return in how many rounds a peer's gradients counted together with those of others."""
    own = next((event["peer_id"] for event in peer.events() if event["event"] == "joined"), None)
    counted = [event["counted"] for event in peer.events() if event["event"] == "averaged"]
    return sum(each.get(own, 0) > 0 and sum(n > 0 for n in each.values()) > 1 for each in counted)


def _ran_out(peer: Peer, since: float) -> list[dict]:
    return [e for e in peer.events() if e["event"] == "computing" and e["time"] > since and "ran out" in e["why"]]


def _seen(peers: list[Peer]) -> dict:
    """Return what peers have told, their losses by epoch, and whose samples counted by the first one's reports."""
    names, seen = names_of(peers), {}
    for peer in peers:
        epochs = epochs_of(peer)
        losses = dict(zip(map(int, epochs["epoch"]), map(float, epochs["loss"]), strict=True))
        first = peer.events()[0]["time"] if peer.events() else 0.0
        told = [
            {name: value for name, value in e.items() if name in FIELDS} | {"s": round(e["time"] - first, 1)}
            for e in peer.events()
            if e["event"] in TOLD
        ]
        together = {"samples": samples_of(peer), "rounds together": _rounds(peer), "losses": losses, "told": told}
        seen[peer.folder.name] = together
    counted = counted_by(peers[0], names).fillna(0.0)
    return {"counted": {name: counted[name].astype(int).to_list() for name in counted}, "peers": seen}


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _keep(benchmark: Benchmark, report: dict) -> None:
    if benchmark.out is not None:
        benchmark.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
