"""The memory of one training step, by term."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from dalle_lib.memory import hardware
from dalle_lib.memory.accuracy import not_measured
from dalle_lib.memory.graph import Memory, Node, Storage, graph_of
from dalle_lib.memory.models import Model, Run
from dalle_lib.memory.presets import build
from dalle_lib.memory.tape import Device, Tape
from dalle_lib.memory.training import Training, state_bytes, step_bytes, unpaged_bytes

TERMS = {
    "weights": "parameters × bytes of a weight, and the model's tables",
    "optimizer state": "two statistics × 4 bytes × parameters; in 8 bits 1 byte and a scale a block; 0 if offloaded",
    "gradients": "parameters × bytes of a weight, as far as the backward pass has come at the highest moment",
    "activations": "what the forward pass keeps for the backward pass: see the list of one layer",
    "recomputed layer": "what one layer keeps while it is run again, with checkpointing or reversible layers",
    "logits and loss": "batch × sequence × vocabulary × 4 bytes, for the softmax, and as often again on the way back",
    "autocast copies": "16-bit copies of the weights that matrix products read",
    "backward": "gradients of activations on their way",
    "optimizer step": "what the optimizer needs for the largest tensor while it takes its step",
    "averaging buffers": "gradients that hivemind accumulates: 4 bytes × parameters",
    "CUDA context": "what CUDA and its kernels take: an assumed range, of which this is the middle",
    "allocator slack": "what the allocator cannot use: an assumed range, of which this is the middle",
}
"""Each term of GPU memory, and where it comes from."""

RAM_TERMS = {
    "master copies": "32-bit weights that the offloaded optimizer changes: 4 bytes × parameters",
    "offloaded gradients": "gradients brought down for the optimizer: 4 bytes × parameters",
    "averaging buffers": "gradients that hivemind averages, and the optimizer reads: 4 bytes × parameters",
    "offloaded state": "the optimizer's statistics",
    "optimizer step": "what the optimizer needs for the largest tensor while it takes its step",
    "snapshot": "the last good weights and statistics, to which a peer of this kit can go back",
    "data": "a stream of text or codes: an assumed range, of which this is the middle",
    "Python and libraries": "torch and what comes with it: an assumed range, of which this is the middle",
}
"""Each term of RAM, and where it comes from."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes by term at the highest moment of a step, from the second step on."""

    gpu: dict[str, int]
    """On the GPU; the sum is the middle of `gpu_range`."""
    ram: dict[str, int]
    """In RAM; the sum is the middle of `ram_range`."""
    allocated: int
    """What tensors take of the GPU: torch.cuda.max_memory_allocated, but for workspaces of CUDA's libraries."""
    gpu_range: tuple[int, int]
    """From the least to the most that the assumed terms make it."""
    ram_range: tuple[int, int]
    moment: str
    """When the highest moment is."""
    parameters: int
    saved: int
    """Bytes that the forward pass keeps for the backward pass, weights left out."""
    layer: list[tuple[str, str, int]]
    """What one layer in the middle keeps, or has to make again: by operation, as a formula, in bytes."""
    flops: int
    """Floating point operations of matrix products in one step, those run again included."""
    sent: int
    """Bytes that one of many peers sends for each update they make together: its gradients in 8 bits (16 where small),
    and as much of others' averages. Averaging weights now and then comes on top."""
    unmeasured: list[str]
    """What of all this no measurement covers yet."""
    training: Training

    @property
    def tensors(self) -> dict[str, int]:
        """The terms on the GPU that are tensors, whose sum is `allocated`."""
        return {term: size for term, size in self.gpu.items() if term not in ("CUDA context", "allocator slack")}

    def fits(self, size: int) -> bool | None:
        """Return whether this fits a GPU of `size` bytes: True, False, or None if the assumed terms decide."""
        low, high = self.gpu_range
        return True if high <= size else False if low > size else None

    def verdict(self, size: int) -> str:
        """Return the same in words."""
        return {True: "fits", False: "does not fit", None: "may fit"}[self.fits(size)]

    def samples_per_second(self, flops_per_second: float) -> float:
        """Return sequences a second on a device that computes so fast; nothing else is counted."""
        return self.training.batch * flops_per_second / self.flops

    def seconds_to_send(self, bits_per_second: float) -> float:
        """Return how long a peer sends its share of one update over such a link."""
        return 8 * self.sent / bits_per_second

    def as_dict(self) -> dict:
        """Return all of it as plain numbers and names."""
        return {**asdict(self), "training": asdict(self.training)}


def estimate(model: str | Mapping, training: Training | None = None, device: Device = "cuda") -> Estimate:
    """Return what one step needs: the model is run in symbols, forward and backward, and all that is alive is counted.

    `model` is the name of a preset or a Hub config's fields. On `device` "cpu" there is no context and no slack.
    Source for what is kept: PyTorch's own operations; for a layer in 16 bits with dropout it comes to the
    34·s·b·h + 5·a·s²·b bytes of arXiv:2205.05198, equation 2.
    Raises ValueError for models and options that are not described.
    """
    key = model if isinstance(model, str) else tuple(sorted((k, v) for k, v in model.items() if _is_plain(v)))
    result = _estimate(key, training or Training(), device)
    return replace(result, gpu=dict(result.gpu), ram=dict(result.ram), layer=list(result.layer))  # the cache's own stay


@lru_cache(maxsize=512)
def _estimate(key: str | tuple, training: Training, device: Device) -> Estimate:
    model = build(key if isinstance(key, str) else dict(key), training.distinct_layers)
    _check(model, training)
    memory = Memory()
    tape = Tape(memory, training.weight_width, training.half, device)
    kept = _resident(model, training, memory, tape)
    memory.moment = "forward"
    run = Run(
        tape, training.batch, training.sequence or model.shape.sequence,
        training.attention or model.attentions[-1], training.dropout, training.layer,
    )  # fmt: skip
    loss = model.loss(run)
    graph, flops = graph_of(loss), tape.flops
    if training.layer == "plain":
        layer = _middle_layer(graph, model, run)
    else:
        layer = _estimate(key, replace(training, checkpointing=False, reversible=False), device).layer
    storages = [*tape.streams, *(storage for node in graph for storage in node.saved)]
    saved = sum({id(storage): storage.size for storage in storages}.values())
    del graph, storages
    memory.moment = "backward"
    tape.autocast_copies.clear()
    tape.backward(loss)
    memory.moment = "optimizer step"
    if device == "cpu" or not training.is_offloaded:
        extra = step_bytes(training, model.parameters, device)
        kept.append(Storage(memory, extra, "optimizer step"))
    terms = {term: size for term in TERMS if (size := memory.at_peak.get(term, 0))}
    assumed = _assumed(memory.peak, device)
    gpu = terms | {term: sum(ends) // 2 for term, ends in assumed.items()}
    ram, fixed = _ram(model, training)
    return Estimate(
        gpu=gpu,
        ram=ram | {term: sum(ends) // 2 for term, ends in fixed.items()},
        allocated=memory.peak,
        gpu_range=tuple(memory.peak + sum(ends[i] for ends in assumed.values()) for i in (0, 1)),
        ram_range=tuple(sum(ram.values()) + sum(ends[i] for ends in fixed.values()) for i in (0, 1)),
        moment=memory.moment_of_peak,
        parameters=model.parameter_count,
        saved=saved,
        layer=layer,
        flops=tape.flops + 2 * flops,
        sent=2 * sum(p.count * (1 if p.count >= 2**16 else 2) for p in model.parameters),
        unmeasured=not_measured(training, device),
        training=training,
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))


def _check(model: Model, training: Training) -> None:
    name, longest = type(model).__name__, model.shape.sequence
    if training.attention and training.attention not in model.attentions:
        known = " or ".join(model.attentions)
        raise ValueError(f"this kit runs {name} with attention {known}, but {training.attention} was asked for.")
    if training.precision not in model.precisions:
        raise ValueError(f"{name} runs in {', '.join(model.precisions)}, but {training.precision} was asked for.")
    if training.dropout and not model.has_dropout:
        raise ValueError(f"{name} has no dropout, but it was asked for.")
    least = 1 if model.takes_any_length else longest
    if training.sequence and not least <= training.sequence <= (longest if model.has_limit else training.sequence):
        raise ValueError(f"{name} takes {least} to {longest} tokens, but {training.sequence} were asked for.")


def _resident(model: Model, training: Training, memory: Memory, tape: Tape) -> list[Storage]:
    """Return what is there before the step: weights, statistics, gradients of earlier batches."""
    count = model.parameter_count
    sizes = {"weights": count * training.weight_width + model.table_bytes}
    if training.keeps_state:
        sizes["optimizer state"] = state_bytes(training, model.parameters)
    elif not training.is_offloaded and tape.device == "cuda":
        sizes["optimizer state"] = unpaged_bytes(training, model.parameters)
    if training.swarm:
        sizes["averaging buffers"] = 4 * count
    if training.keeps_gradients:
        for parameter in model.parameters:
            parameter.grad = tape.new(parameter.count * tape.width, "gradients")
    return [Storage(memory, size, term) for term, size in sizes.items()]


def _assumed(allocated: int, device: Device) -> dict[str, tuple[int, int]]:
    if device == "cpu":
        return {}
    return {
        "CUDA context": hardware.CONTEXT,
        "allocator slack": tuple(round(share * allocated) for share in hardware.SLACK),
    }


def _ram(model: Model, training: Training) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Return the bytes of RAM that are known, and those that are assumed, by term."""
    ram, count, state = {}, model.parameter_count, state_bytes(training, model.parameters)
    if training.is_offloaded:
        ram["master copies"] = 4 * count
        ram["averaging buffers" if training.swarm else "offloaded gradients"] = 4 * count
        ram["optimizer step"] = step_bytes(training, model.parameters, "cpu")
    if not training.keeps_state:
        ram["offloaded state"] = state
    if training.swarm:
        ram["snapshot"] = 4 * count + state
    return ram, {"data": hardware.DATA, "Python and libraries": hardware.PROCESS}


def _middle_layer(graph: list[Node], model: Model, run: Run) -> list[tuple[str, str, int]]:
    """Return what a middle layer keeps, by operation: all that it has saved, less what layers before it have."""
    number = len(run.layer_starts) // 2
    start, end = [*run.layer_starts, graph[-1].number][number : number + 2]
    seen = {id(storage) for node in graph if node.number < start for storage in node.saved}
    kept: dict[tuple[str, str], int] = {}
    for node in graph:
        for storage in node.saved if start <= node.number < end else ():
            if id(storage) not in seen:
                seen.add(id(storage))
                key = node.name, formula(storage, model, run)
                kept[key] = kept.get(key, 0) + storage.size
    return [(name, text, size) for (name, text), size in kept.items()]


def formula(storage: Storage, model: Model, run: Run) -> str:
    """Return bytes in the sizes of the batch: b sequences of s tokens, h wide, a heads."""
    hidden, heads, size = model.shape.hidden, model.shape.heads, storage.size
    units = [
        ("b·s·h", run.tokens * hidden),
        ("b·a·s²", run.tokens * run.sequence * heads),
        ("b·a·s", run.tokens * heads),
        ("b·s", run.tokens),
        ("s²", run.sequence**2),
    ]
    for text, unit in [("h²", hidden**2)] if storage.term == "autocast copies" else units:
        if size >= unit and size * 100 % unit == 0:
            return f"{size / unit:g}·{text}"
    return f"{size:,} bytes"
