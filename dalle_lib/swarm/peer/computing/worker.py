"""The process that computes on one further device of a trainer, which starts it."""

import contextlib
import os
import sys
import threading
import time
from multiprocessing.connection import Connection

import torch

from dalle_lib.model import DALLE
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.room import limit_gpu
from dalle_lib.swarm.peer.computing.shared import (
    Computed,
    Failed,
    Job,
    Order,
    Ready,
    SharedFloats,
    batches_in,
    copy_into,
)
from dalle_lib.swarm.peer.computing.trials import MAX_OVERFLOWS, Trials, random_batch

LOOK_EVERY_S = 0.5
"""Seconds between looks at whether the trainer's process is still there."""


def main() -> None:
    """Do what the trainer asks for, and end when it asks for nothing more, or has ended."""
    line, parameters, gradient, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    serve(Connection(line), parameters, gradient)


def serve(messages: Connection, parameters: int, gradient: int) -> None:
    """Answer a trainer's messages until it closes its end, or something fails, which it is told.

    `parameters` and `gradient` are the files of the memory that both share.
    """
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer has closed its end
        try:
            _answer(messages, parameters, gradient)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            messages.send(Failed(f"{type(error).__name__}: {in_one_line(error)}"[:300]))


def _answer(messages: Connection, parameters: int, gradient: int) -> None:
    job: Job = messages.recv()
    torch.set_num_threads(job.threads)
    device, why = torch.device(job.device), []
    limit_gpu(device, job.gpu_share)
    model = DALLE(job.config).to(device)
    count = sum(parameter.numel() for parameter in model.parameters())
    computer = Computer(model, device, lambda _way, told: why.append(told))
    given = SharedFloats(count, parameters).like(list(model.parameters()))
    found = SharedFloats(count, gradient).like(computer.parameters)
    while True:
        asked = messages.recv()
        if isinstance(asked, Order):
            messages.send(_ready(computer, asked))
            continue
        started = time.monotonic()
        copy_into(list(model.parameters()), given)
        mean = computer.gradient(batches_in(asked))
        copy_into(found, [parameter.grad for parameter in computer.parameters])
        seconds = time.monotonic() - started
        messages.send(Computed(mean.losses, mean.norm, mean.scale, seconds, computer.way, "; ".join(why)))
        why.clear()


def _ready(computer: Computer, order: Order) -> Ready:
    """Choose the way that is ordered, or find one, and compute until kernels are chosen and the loss scale is right."""
    if order.way is None:
        return Ready(Trials(computer, order.limit, trains_for_s=order.trains_for_s).find())
    computer.use(order.way)
    batch = random_batch(computer.model.config, order.way.batch)
    for _ in range(MAX_OVERFLOWS):
        if computer.gradient([batch]).is_finite:
            break
    return Ready(computer.way)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that came."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
