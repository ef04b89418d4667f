"""One process of `gpu_memory.py`: a training whose tensors, reserved memory and least limit are counted, or CUDA alone.

It reads its job as JSON from standard input, and prints what it found as one line of JSON.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch
from memory import describe_machine

from dalle_lib.measurement.worker import MeasuredTraining
from dalle_lib.memory import Training, estimate
from dalle_lib.memory.presets import describe

COUNTED = {
    "allocated": "allocated_bytes.all.peak",
    "requested": "requested_bytes.all.peak",
    "reserved": "reserved_bytes.all.peak",
    "split and unused": "inactive_split_bytes.all.peak",
    "retries": "num_alloc_retries",
}
"""Counts of PyTorch's allocator. A retry is a request that succeeded only after cached memory was given back."""
LIMITS = (0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01, 0.0)
"""Limits of reserved memory that are tried, as shares beyond the peak of tensors."""


def training_of(job: dict) -> dict:
    """Return what a training takes: peaks of tensors and of reserved memory, workspaces, context, and its limits."""
    training = Training(**job["training"])
    forecast = estimate(job["model"], training, job["device"])
    found = {"predicted": forecast.allocated, "predicted terms": forecast.gpu, "predicted saved": forecast.saved}
    if is_on_gpu(job):
        torch.zeros(1, device=job["device"])
        keep(found, "context at first", beside_tensors)
    with tempfile.TemporaryDirectory() as folder:
        measured = MeasuredTraining({
            **job, "training": asdict(training), "folder": folder, "from_file": False, "lr": 1e-3, "seed": 0,
            "length": training.sequence or describe(job["model"]).shape.sequence,
        })  # fmt: skip
        measured.step()
        while not measured.optimizer.state:  # the first steps in fp16 may be skipped
            measured.step()
        peak = measured.peak()
        found |= {"measured": peak.pop("peak"), **peak, "free of limits": counts()}
        found["saved"] = measured.saved()
        found["statistics"] = sum(tensor.untyped_storage().nbytes() for tensor in measured.statistics())
        if is_on_gpu(job):
            keep(found, "bytes of workspaces", workspaces)
            keep(found, "context", beside_tensors)
            keep(found, "emptied before each step", lambda: emptied(measured))
            if job["is_recorded"]:
                keep(found, "alive at the peak", lambda: recorded(measured.step))
            if job["has_limits"]:
                keep(found, "limits", lambda: list(limits(measured, found["free of limits"])))
    return found


def is_on_gpu(job: dict) -> bool:
    """Return whether a job is done on a GPU."""
    return job["device"] == "cuda"


def keep(found: dict, name: str, work: Callable[[], object]) -> None:
    """Put what `work` returns into `found`, or its error: the other results are still wanted."""
    try:
        found[name] = work()
    except Exception as error:
        found[name] = {"error": f"{type(error).__name__}: {error}"[:400]}


def counts() -> dict[str, int]:
    """Return the allocator's counts; on a processor all are 0."""
    stats = torch.cuda.memory_stats()
    return {name: stats.get(key, 0) for name, key in COUNTED.items()}


def workspaces() -> int:
    """Give cuBLAS's workspaces back to PyTorch's allocator, and return their bytes; the next step makes new ones."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated()


def beside_tensors() -> dict[str, int | None]:
    """Return the bytes of the GPU that are not PyTorch's allocator's.

    That is this process's alone, by the driver's own list of processes; None where the driver does not tell. And that
    of all processes together, which is this one's if no other is there.
    """
    torch.cuda.synchronize()
    reserved, (free, total) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    own = of_this_process()
    return {"own": own and own - reserved, "all": total - free - reserved}


def of_this_process() -> int | None:
    """Return the bytes of the GPU that this process takes, by the driver's list, or None if it tells none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)


def emptied(measured: MeasuredTraining) -> dict[str, int]:
    """Return the counts of a step before which all cached memory is given back, as a peer may do between batches."""
    for _ in range(2):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        measured.step()
    return counts()


def limits(measured: MeasuredTraining, free: dict[str, int]) -> Iterator[dict]:
    """Try two steps within ever lower limits of reserved memory, down to the first that is too low.

    `free` are the counts of a step without a limit. A limit above what was reserved then needs no trial.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    yield {"share": None, "runs": True, **timed_steps(measured)}
    for share in LIMITS:
        limit = (1 + share) * free["allocated"]
        if limit > free["reserved"]:
            continue
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(limit / total)
        try:
            found = {"share": share, "runs": True, **timed_steps(measured)}
        except RuntimeError as error:  # PyTorch's OutOfMemoryError is one, and cuBLAS has others
            yield {"share": share, "runs": False, "error": f"{type(error).__name__}: {error}"[:300]}
            return
        yield found


def timed_steps(measured: MeasuredTraining) -> dict[str, float]:
    """Take two steps; return the seconds of the second, its retries, and the most that was reserved in it."""
    measured.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    retries, started = counts()["retries"], time.perf_counter()
    measured.step()
    torch.cuda.synchronize()
    seconds, after = time.perf_counter() - started, counts()
    return {"seconds": seconds, "retries": after["retries"] - retries, "reserved": after["reserved"]}


def recorded(step: Callable[[], None]) -> list[dict]:
    """Return the largest groups of tensors that a step has made and that are alive at its peak."""
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=200_000)
    step()
    torch.cuda.synchronize()
    traces = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    return alive_at_peak(traces[0])


def alive_at_peak(events: list[dict], largest: int = 16) -> list[dict]:
    """Return groups of equal tensors that are alive when the allocated bytes of a trace of the allocator peak.

    Each has `size` in bytes, `count`, and `where`: the lines of Python that made it, which autograd's own do not have.
    """
    sizes = {"alloc": 1, "free_completed": -1}
    steps = [sizes.get(event["action"], 0) * event["size"] for event in events]
    total = highest = top = 0
    for number, step in enumerate(steps):
        total += step
        if total > highest:
            highest, top = total, number
    alive = {}
    for event in events[: top + 1]:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    groups = Counter((event["size"], lines_of(event)) for event in alive.values())
    order = sorted(groups.items(), key=lambda item: item[0][0] * item[1], reverse=True)
    return [{"size": size, "count": count, "where": where} for (size, where), count in order[:largest]]


def lines_of(event: dict) -> str:
    """Return the innermost lines that have made a tensor, without those of PyTorch."""
    frames = [frame for frame in event.get("frames", []) if "/torch/" not in frame["filename"]]
    return " < ".join(f"{frame['filename'].rsplit('/', 1)[-1]}:{frame['line']}" for frame in frames[:3])


def cuda_alone(job: dict) -> dict:
    """Return the bytes that CUDA takes as ever more of it is used; this process is to be the only one."""
    device, found = job["device"], {"machine": describe_machine(job["device"])}

    def ones(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.ones(shape, device=device, dtype=dtype, requires_grad=True)

    def attend() -> None:
        heads = (ones(2, 4, 256, 64) for _ in range(3))
        torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).sum().backward()

    stages = {
        "a tensor": lambda: ones(1),
        "a product in float32": lambda: ones(512, 512, dtype=torch.float32) @ ones(512, 512, dtype=torch.float32),
        "a product in bf16, and its gradient": lambda: (ones(512, 512) @ ones(512, 512)).sum().backward(),
        "attention in bf16, and its gradient": attend,
        "a training": lambda: training_of({**job, "has_limits": False, "is_recorded": False}),
    }
    for name, work in stages.items():
        work()
        if is_on_gpu(job):
            keep(found, name, lambda: beside_tensors() | {"reserved": torch.cuda.memory_reserved()})
    if is_on_gpu(job):
        torch_says = torch.cuda.get_device_properties(0).total_memory
        found["total"] = {"driver": torch.cuda.mem_get_info()[1], "torch": torch_says}
    return found


def main() -> None:
    """Do the job on standard input, and print what it found."""
    work = json.load(sys.stdin)
    print(json.dumps(cuda_alone(work) if work["part"] == "context" else training_of(work)))
