"""What does a training take of a GPU, beside its tensors?

The calculator adds ranges to the tensors that it counts: CUDA's context and the slack of PyTorch's allocator. Each job
is a process of its own that trains a real model for a few steps. As soon as it has ended, its result is a line of JSON
in `results.jsonl`, so that an error or the end of the time loses only what is still missing.

- context: CUDA with nothing else on the GPU, as ever more of it is used.
- points: those of benchmarks/memory.py; then again with cuBLAS's workspaces as small as can be, and with the tensors
  that are alive at the peak.
- slack: what the allocator reserves; if cached memory is given back before each step; with expandable segments; and
  the least limit within which the training still runs, since an allocator reserves generously while there is room.

Several jobs run at once, as many as the GPU has room for; nothing is timed, but for the jobs that run alone.

Prints JSON: the memory that a training needs, at the least limit within which it runs, over the upper end of the
calculator's range, the largest of all (figure), 1 (reference) and their ratio.
`python benchmarks/gpu_memory.py --tiny` tries this with tiny models, on a processor too.
`python benchmarks/gpu_memory.py --only-report` reads the results of an earlier run, and
`--only-report --write-table` writes the points into the table that the calculator shows.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro
from gpu_memory_report import in_one_line, machine_of, points_of, report
from memory import GPU_POINTS, PAPER, POINTS, TUTORIAL_POINTS, write

from dalle_lib.memory import Training, estimate

LAMB = {"optimizer": "lamb8bit"}
SLACK = [
    *(("dalle-paper", {"batch": batch, "precision": "bf16", **PAPER}) for batch in (1, 4, 8, 16, 2)),
    *(("dalle-paper", {"batch": batch, "precision": "bf16", **LAMB}) for batch in (1, 2, 4)),
    *(("dalle-paper", {"batch": batch, **PAPER}) for batch in (1, 4)),
    ("dalle-paper", {"batch": 8, "precision": "fp16", **PAPER}),
    *(("dalle-emoji", {"batch": batch, "precision": "bf16", **LAMB}) for batch in (16, 128)),
    *(("dalle-emoji", {"batch": batch, "precision": "bf16", **PAPER}) for batch in (16, 128)),
    *(("gpt2", {"batch": batch, "sequence": 512, "precision": "bf16"}) for batch in (1, 4, 16)),
    *(("gpt2", {"batch": batch, "sequence": 512, "precision": "bf16", "checkpointing": True}) for batch in (1, 4, 16)),
    ("gpt2", {"batch": 4, "sequence": 512, "precision": "bf16", "attention": "eager"}),
    ("gpt2", {"batch": 4, "sequence": 512}),
    *(("bert-base", {"batch": batch, "sequence": 512, "precision": "fp16"}) for batch in (8, 32)),
    ("bert-base", {"batch": 8, "sequence": 512, "precision": "fp16", "checkpointing": True}),
    ("t5-base", {"batch": 8, "sequence": 256, "precision": "bf16"}),
    ("t5-base", {"batch": 8, "sequence": 256, "precision": "bf16", "checkpointing": True}),
    TUTORIAL_POINTS[0],
]  # fmt: skip
"""Trainings whose slack is measured: several batches, with activations kept, reversible and with checkpointing."""
LARGEST = ("dalle-paper", {"batch": 32, "precision": "bf16", **PAPER})
"""The training that had lost most to slack; it is measured alone, so that its seconds within limits are true."""
FIRST = 5
"""Jobs that must not all fail, for the others to start."""
COMMAND = [sys.executable, "-c", "from gpu_memory_job import main; main()"]
"""The process of a job, which runs in this folder."""
SMALL_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "128"}
ALLOCATORS = {"default": "", "expandable": "expandable_segments:True"}

DALLE = {
    "model_type": "dalle", "dim": 32, "depth": 6, "heads": 2, "dim_head": 16, "text_length": 8, "text_vocab": 64,
    "image_vocab": 96, "grid": 4,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 64}
TINY = [(DALLE, {"batch": 2, "precision": "bf16", **PAPER}), (GPT2, {"batch": 2, "checkpointing": True})]
"""Trainings for trying the script on a processor."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure, and for how long."""

    out: Path = Path("outputs/gpu_memory")
    """Folder for the results."""
    seconds: float = 400.0
    """Seconds for all jobs together; those that did not end are left out, and said so."""
    workers: int = 12
    """Jobs that run at the same time, at most."""
    gigabytes: float = 76.0
    """Memory of the GPU that jobs may take together, in 10^9 bytes."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cuda or cpu."""
    tiny: bool = False
    """Use tiny models, to try the script."""
    only_report: bool = False
    """Measure nothing; read the results of an earlier run."""
    write_table: bool = False
    """Write the points into the calculator's table and its page in docs."""


@dataclass
class Job:
    """A job's request, the process that does it, and where that writes."""

    request: dict
    need: float
    """Bytes of the GPU that it may take."""
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpu_memory_")))
    process: subprocess.Popen | None = None
    started: float = 0.0

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the way to measure; few cores, since other jobs run beside it."""
        variables = {"OMP_NUM_THREADS": "2"}
        if self.request["workspaces"] == "small":
            variables |= SMALL_WORKSPACES
        if allocator := ALLOCATORS[self.request["allocator"]]:  # the second name is that of torch before 2.9
            variables |= {"PYTORCH_ALLOC_CONF": allocator, "PYTORCH_CUDA_ALLOC_CONF": allocator}
        return variables

    def start(self) -> None:
        """Start the process."""
        (self.folder / "request").write_text(json.dumps(self.request))
        with (
            (self.folder / "request").open() as request,
            (self.folder / "out").open("w") as out,
            (self.folder / "err").open("w") as err,
        ):
            self.process = subprocess.Popen(
                COMMAND, stdin=request, stdout=out, stderr=err, cwd=Path(__file__).parent,
                env=os.environ | self.variables,
            )  # fmt: skip
        self.started = time.monotonic()

    def result(self, problem: str = "") -> dict:
        """Return the request with what was found, or with what went wrong."""
        found = {"seconds of the job": round(time.monotonic() - self.started, 1)} if self.process else {}
        if not problem and self.process and self.process.returncode:
            problem = f"exit status {self.process.returncode}: {(self.folder / 'err').read_text()[-1500:]}"
        if problem:
            return self.request | found | {"problem": problem}
        return self.request | found | json.loads((self.folder / "out").read_text().splitlines()[-1])


def main(benchmark: Benchmark) -> None:
    """Run the jobs, and print the comparison."""
    benchmark.out.mkdir(parents=True, exist_ok=True)
    file = benchmark.out / "results.jsonl"
    if not benchmark.only_report:
        with file.open("w") as lines:
            for result in run_all(jobs(benchmark), benchmark):
                lines.write(json.dumps(result) + "\n")
                lines.flush()
                print(in_one_line(result), flush=True)
    results = [json.loads(line) for line in file.read_text().splitlines()]
    if benchmark.write_table:
        write(points_of(results), benchmark.device, machine_of(results))
    print(json.dumps(report(results), indent=1))


def jobs(benchmark: Benchmark) -> list[Job]:
    """Return the jobs, those that matter most first."""
    room, tiny = benchmark.gigabytes * 1e9, benchmark.tiny
    points = TINY if tiny else [*GPU_POINTS, *POINTS]
    slack = TINY if tiny else SLACK
    largest = TINY[0] if tiny else LARGEST
    first = TINY[0] if tiny else ("dalle-emoji", {"batch": 16, "precision": "bf16", **PAPER})
    requests = [
        (requested("context", first), True),
        (requested("slack", largest, has_limits=True), True),
        *((requested("point", point), False) for point in points),
        *((requested("slack", point, has_limits=True), False) for point in slack),
        *(
            (requested("point", point, workspaces="small", is_recorded=True), False)
            for point in points
            if point not in TUTORIAL_POINTS
        ),
        *((requested("slack", point, allocator="expandable"), False) for point in (largest, *slack)),
    ]
    return [
        Job(request | {"device": benchmark.device}, room if is_alone else min(room, need_of(request)))
        for request, is_alone in requests
    ]


def requested(
    part: str, point: tuple, allocator: str = "default", workspaces: str = "default", has_limits: bool = False,
    is_recorded: bool = False,
) -> dict:  # fmt: skip
    """Return a job's request."""
    return {
        "part": part, "model": point[0], "training": point[1], "allocator": allocator, "workspaces": workspaces,
        "has_limits": has_limits, "is_recorded": is_recorded,
    }  # fmt: skip


def need_of(request: dict) -> float:
    """Return the bytes of the GPU that a job may take: more than forecast, as this is to measure by how much."""
    training = Training(**request["training"])
    return (1.8 if training.reversible else 1.3) * estimate(request["model"], training).allocated + 1.5e9


def run_all(waiting: list[Job], benchmark: Benchmark) -> Iterator[dict]:
    """Run jobs side by side as far as there is room, until the time is over, and return an iterator over results.

    If the first jobs all fail, something is missing on this machine, and the others are left out.
    """
    end, running, room = time.monotonic() + benchmark.seconds, [], benchmark.gigabytes * 1e9
    ended, succeeded, why = 0, 0, "as the time was over"
    while waiting or running:
        for job in list(waiting):
            if len(running) < benchmark.workers and sum(other.need for other in (*running, job)) <= room:
                waiting.remove(job)
                running.append(job)
                job.start()
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            result = job.result()
            ended, succeeded = ended + 1, succeeded + ("problem" not in result)
            yield result
        if ended >= FIRST and not succeeded:
            why = f"as the first {ended} jobs failed"
            break
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    for job in running:
        job.process.kill()
        job.process.wait()
        yield job.result(f"stopped, {why}")
    yield from (job.result(f"left out, {why}") for job in waiting)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
