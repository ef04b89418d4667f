"""The process that a measurement runs in: it trains a few steps and counts."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from dalle_lib.checkpoint import load_tensors
from dalle_lib.measurement.workload import Offloaded, build_model, build_optimizer, lower_statistics
from dalle_lib.memory import Training

_MARK = 7919
"""Bytes of a tensor that marks a place in the profiler's record."""


class Trainer:
    """The steps to be measured."""

    def __init__(self, job: dict) -> None:
        torch.manual_seed(job["seed"])
        self.device, self.folder = torch.device(job["device"]), Path(job["folder"])
        self.training = Training(**job["training"])
        self.model = build_model(job["model"], self.training, job["from_file"]).to(self.device)

        def make(parameters):
            return build_optimizer(parameters, self.training, job["lr"], self.model)

        if self.training.is_offloaded:
            self.offloaded = Offloaded(self.model, make, self.folder)
            self.optimizer = self.offloaded.optimizer
        else:
            self.offloaded, self.optimizer = None, make(list(self.model.parameters()))
        is_fp16 = self.training.precision == "fp16"
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=2.0**10, enabled=is_fp16 and self.device.type == "cuda"
        )
        blocks = self.folder / "blocks.safetensors"
        self.blocks = load_tensors(blocks)[0]["blocks"] if blocks.exists() else None
        self.length, self.batches, self.losses = job["length"], 0, []

    def autocast(self) -> contextlib.AbstractContextManager:
        """Return the context of the forward pass."""
        if self.training.half is None:
            return contextlib.nullcontext()
        dtype = torch.float16 if self.training.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype)

    def batch(self) -> Tensor:
        """Return the next tokens [batch, sequence]."""
        self.batches += 1
        if self.blocks is not None:
            return self.blocks[(self.batches - 1) % len(self.blocks)].to(self.device)
        shape = (self.training.batch, self.length)
        return torch.randint(0, self.model.config.vocab_size, shape, device=self.device)

    def loss(self) -> Tensor:
        """Return the loss of the next batch."""
        from dalle_lib.model import DALLE

        if isinstance(self.model, DALLE):
            c, size = self.model.config, self.training.batch
            text = torch.randint(0, c.text_vocab, (size, c.text_length), device=self.device)
            codes = torch.randint(0, c.image_vocab, (size, c.image_length), device=self.device)
            with self.autocast():
                return self.model(text, codes).loss
        ids = self.batch()
        options = {} if self.model.config.model_type == "bert" else {"use_cache": False}
        with self.autocast():
            return self.model(input_ids=ids, labels=ids, **options).loss

    def step(self) -> None:
        """Take one step."""
        loss = self.loss()
        self.scaler.scale(loss).backward()
        self.losses.append(loss.item())
        del loss
        if self.offloaded:
            self.offloaded.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.training.offload == "statistics" and self.device.type == "cpu":
                lower_statistics(self.optimizer, self.folder)
        self.model.zero_grad(set_to_none=not self.training.accumulates)

    def saved(self) -> int:
        """Return the bytes that one forward pass keeps for its backward pass, weights left out."""
        known = set(_storages([*self.model.parameters(), *self.model.buffers()]))
        kept: dict[int, int] = {}
        held = []

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
                held.append(tensor)  # else its address could be used again
            return tensor

        before = self.batches
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss()
        self.batches = before
        return sum(kept.values())

    def peak(self) -> int:
        """Return the most bytes that tensors take during a step."""
        if self.device.type == "cuda":
            self.step()
            torch.cuda.reset_peak_memory_stats()
            self.step()
            return torch.cuda.max_memory_allocated()
        there = [*self.model.parameters(), *self.model.buffers()]
        there += [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.training.keeps_state:
            there += self.statistics()
        return sum(_storages(there).values()) + cpu_peak(self.step, self.folder)

    def statistics(self) -> list[Tensor]:
        """Return the optimizer's statistics."""
        return [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]


def cpu_peak(work: Callable[[], object], folder: Path) -> int:
    """Return the most bytes that the CPU's allocator hands out during `work`, beyond what was there before.

    `work` is done twice: what it replaces was made under the profiler's eyes only the second time.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
        mark = torch.empty(_MARK, dtype=torch.uint8)
        work()
    del mark
    trace = folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = [e["args"] for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    start = next(i for i, event in enumerate(events) if event["Bytes"] == _MARK)
    return max(event["Total Allocated"] for event in events[start:]) - events[start]["Total Allocated"]


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def main() -> None:
    """Measure the job on standard input, and print what came out."""
    job = json.load(sys.stdin)
    trainer = Trainer(job)
    trainer.step()
    while not trainer.optimizer.state:  # fp16's first steps may be left out, until the loss is scaled well
        trainer.step()
    saved, peak, seconds = trainer.saved(), trainer.peak(), []
    for _ in range(job["steps"]):
        started = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - started)
    result = {
        "peak": peak,
        "saved": saved,
        "weights": sum(_storages(trainer.model.parameters()).values()),
        "statistics": sum(_storages(trainer.statistics()).values()),
        "seconds": sorted(seconds)[len(seconds) // 2],
        "losses": trainer.losses,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
