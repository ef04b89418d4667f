"""The process of a measurement: it trains a model for a few steps and counts bytes and seconds."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from dalle_lib.checkpoint import load_tensors
from dalle_lib.measurement.workload import Offloaded, build_model, lower_statistics, optimizer_of
from dalle_lib.memory import Training

_MARK = 7919
"""Bytes of the tensor that marks the start of a step in the profiler's record: a size that no other tensor has."""
_MARK_BACKWARD = 7907
"""Bytes of the tensor that marks the end of a backward pass there."""


class MeasuredTraining:
    """The training that is measured, step by step."""

    def __init__(self, job: dict) -> None:
        torch.manual_seed(job["seed"])
        self.device, self.folder = torch.device(job["device"]), Path(job["folder"])
        self.training = Training(**job["training"])
        self.model = build_model(job["model"], self.training, job["from_file"]).to(self.device)

        def make(parameters):
            return optimizer_of(self.training, parameters, job["lr"], self.model)

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
        self.gradient_addresses: set[int] = set()
        """Where the gradients of the last step were."""

    def autocast(self) -> contextlib.AbstractContextManager:
        """Return the context of the forward pass."""
        if self.training.half is None:
            return contextlib.nullcontext()
        dtype = torch.float16 if self.training.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype)

    def batch(self) -> Tensor:
        """Return the next batch of ids [batch, sequence]."""
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
        """Take one training step."""
        loss = self.loss()
        self.scaler.scale(loss).backward()
        self.losses.append(loss.item())
        del loss
        torch.empty(_MARK_BACKWARD, dtype=torch.uint8)
        self.gradient_addresses = set(_storages(p.grad for p in self.model.parameters() if p.grad is not None))
        if self.offloaded:
            self.offloaded.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.training.offload == "statistics" and self.device.type == "cpu":
                lower_statistics(self.optimizer, self.folder)
        self.model.zero_grad(set_to_none=not self.training.accumulates)

    def saved(self) -> int:
        """Return the bytes that one forward pass keeps for its backward pass, without weights."""
        known = set(_storages([*self.model.parameters(), *self.model.buffers()]))
        kept: dict[int, int] = {}
        held = []

        def pack(tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
                held.append(tensor)  # otherwise its address could be used again

        # The graph gets no tensor, and the list lets go of all: else graph and tensors keep each other for good.
        before = self.batches
        with saved_tensors_hooks(pack, lambda nothing: nothing):
            self.loss()
        held.clear()
        self.batches = before
        return sum(kept.values())

    def peak(self) -> dict:
        """Return the bytes of tensors at the peak of a step, those of gradients among them, and when it peaks."""
        if self.device.type == "cuda":
            return self.peak_on_gpu()
        present = [*self.model.parameters(), *self.model.buffers()]
        kept = [p.grad for p in self.model.parameters() if p.grad is not None]
        present += kept
        if self.training.keeps_state:
            present += self.statistics()
        added, gradients, is_in_step = _cpu_peak_and_gradients(self.step, lambda: self.gradient_addresses, self.folder)
        return {
            "peak": sum(_storages(present).values()) + added,
            "gradients": sum(_storages(kept).values()) + gradients,
            "peaks_in_optimizer_step": is_in_step,
        }

    def peak_on_gpu(self) -> dict:
        """Return what `peak` does, from CUDA's allocator: a gradient counts from when it is complete."""
        self.step()
        torch.cuda.reset_peak_memory_stats()
        sizes, peaks, handles = [], [], []
        for parameter in self.model.parameters():

            def note(own) -> None:
                peaks.append(torch.cuda.max_memory_allocated())
                sizes.append(own.grad.nbytes)

            handles.append(parameter.register_post_accumulate_grad_hook(note))
        self.step()
        for handle in handles:
            handle.remove()
        peak = torch.cuda.max_memory_allocated()
        before = [size for size, highest in zip(sizes, peaks, strict=True) if highest < peak]
        gradients = sum(sizes if self.training.accumulates else before)
        return {"peak": peak, "gradients": gradients, "peaks_in_optimizer_step": len(before) == len(sizes)}

    def statistics(self) -> list[Tensor]:
        """Return the tensors of the optimizer's state."""
        return [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]


def cpu_peak(work: Callable[[], object], folder: Path) -> int:
    """Return the peak of the bytes that the CPU's allocator hands out during `work`, beyond those in use before.

    `work` is done twice and counted the second time: only then has the profiler seen the creation of all tensors that
    `work` replaces. `folder` is for the profiler's record.
    """
    return _cpu_peak_and_gradients(work, set, folder)[0]


def _cpu_peak_and_gradients(
    work: Callable[[], object], gradient_addresses: Callable[[], Container[int]], folder: Path
) -> tuple[int, int, bool]:
    """Return what `cpu_peak` does, the bytes of new gradients at that moment, and if it is after the backward pass.

    `gradient_addresses` says, after `work`, where the gradients were.
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
    events = events[start:]
    end = next((i for i, event in enumerate(events) if event["Bytes"] == _MARK_BACKWARD), len(events))
    top = max(range(len(events)), key=lambda i: events[i]["Total Allocated"])
    complete, alive = _alive(events[:end]), _alive(events[: top + 1])
    gradients = {address: born for address, born in complete.items() if address in gradient_addresses()}
    at_peak = [events[born]["Bytes"] for address, born in gradients.items() if alive.get(address) == born]
    return events[top]["Total Allocated"] - events[0]["Total Allocated"], sum(at_peak), top >= end


def _alive(events: list[dict]) -> dict[int, int]:
    """Return the addresses that events of the profiler's record have left in use, each with its event's number."""
    found: dict[int, int] = {}
    for number, event in enumerate(events):
        if event["Bytes"] > 0:
            found[event["Addr"]] = number
        else:
            found.pop(event["Addr"], None)
    return found


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of the tensors' storages by address, so that shared ones count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def main() -> None:
    """Measure the job on standard input, and print the result as one line of JSON."""
    job = json.load(sys.stdin)
    training = MeasuredTraining(job)
    training.step()
    while not training.optimizer.state:  # the first steps in fp16 may be skipped, until the loss scale is right
        training.step()
    saved, peak, seconds = training.saved(), training.peak(), []
    for _ in range(job["steps"]):
        started = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - started)
    result = {
        **peak,
        "saved": saved,
        "weights": sum(_storages(training.model.parameters()).values()),
        "statistics": sum(_storages(training.statistics()).values()),
        "seconds": sorted(seconds)[len(seconds) // 2],
        "losses": training.losses,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
