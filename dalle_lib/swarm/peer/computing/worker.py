"""The process that computes on one further device of a trainer, which starts it."""

import contextlib
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from dalle_lib.machine import check_gpu
from dalle_lib.model import DALLE
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.room import limit_gpu
from dalle_lib.swarm.peer.computing.shared import Computed, Failed, Job, SharedFloats, batches_in, copy_into
from dalle_lib.swarm.peer.computing.trials import MAX_OVERFLOWS, Trials, random_batch
from dalle_lib.swarm.peer.computing.way import Way

LOOK_EVERY_S = 0.5
"""Seconds between looks at whether the trainer's process is still there."""
FIRST_TO_GO = 1000
"""The highest score that Linux knows: it counts as if this process held all memory."""


def main() -> None:
    """Do what the trainer asks for, and end when it asks for nothing more, or has ended."""
    line, memory, part, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _go_first()
    serve(Connection(line), memory, part)


def serve(messages: Connection, memory: int, part: int) -> None:
    """Answer a trainer's messages until it closes its end, or something fails, which it is told.

    `memory` is the file of the memory that all share; the first part has the parameters, `part` takes the gradient.
    """
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer has closed its end
        try:
            _answer(messages, memory, part)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            traceback.print_exc()
            messages.send(Failed(f"{type(error).__name__}: {in_one_line(error)}"[:300]))


def _answer(messages: Connection, memory: int, part: int) -> None:
    job: Job = messages.recv()
    torch.set_num_threads(job.threads)
    device, why = torch.device(job.device), []
    if device.type == "cuda" and (problem := check_gpu(job.device).problem):
        raise ValueError(f"it does not compute here: {problem}")
    limit_gpu(device, job.gpu_share)
    model = DALLE(job.config).to(device)
    parameters = list(model.parameters())
    computer = Computer(model, device, lambda _way, told: why.append(told))
    shared = SharedFloats(part + 1, sum(parameter.numel() for parameter in parameters), memory)
    given, found = shared.like(0, parameters), shared.like(part, computer.parameters)
    copy_into(parameters, given)  # a loss scale is found for these, not for random ones
    messages.send(_ready(computer, job))
    while True:
        asked = messages.recv()
        copy_into(parameters, given)
        mean = computer.gradient(batches_in(asked))
        copy_into(found, [parameter.grad for parameter in computer.parameters])
        messages.send(Computed(mean, computer.way, "; ".join(why)))
        why.clear()


def _ready(computer: Computer, job: Job) -> Way:
    """Take the way of the job, or find one, and compute until kernels are chosen and the loss scale is right."""
    if job.way is None:
        return Trials(computer, job.limit, trains_for_s=job.trains_for_s).find()
    computer.use(job.way)
    batch = random_batch(computer.model.config, job.rows or job.way.batch)
    for _ in range(MAX_OVERFLOWS):
        if computer.gradient([batch]).is_finite:
            break
    return computer.way


def _go_first() -> None:
    """Let Linux end this process where memory runs out, before the trainer's own, which can go on without it."""
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that came."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
