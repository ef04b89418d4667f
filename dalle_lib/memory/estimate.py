"""The memory of one training step, by term, and what else the step costs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from dalle_lib.memory import hardware
from dalle_lib.memory.accuracy import not_measured
from dalle_lib.memory.graph import Memory, Node, Storage, graph_of
from dalle_lib.memory.hardware import GPU
from dalle_lib.memory.models import ForwardPass, ModelDescription
from dalle_lib.memory.presets import describe
from dalle_lib.memory.tape import Device, Tape
from dalle_lib.memory.training import Training, state_bytes, step_bytes, unpaged_bytes

TERMS = {
    "weights": "parameters × bytes of a weight, and the model's tables",
    "optimizer state": "two statistics × 4 bytes × parameters; in 8 bits 1 byte and a scale a block; 0 if offloaded",
    "gradients": "parameters × bytes of a weight, for the part of the backward pass that is done at the peak",
    "activations": "results of the forward pass kept for the backward pass: see the list of one layer",
    "recomputed layer": "results of one layer while it is run again, with checkpointing or reversible layers",
    "logits and loss": "batch × sequence × vocabulary × 4 bytes for the softmax, and again in the backward pass",
    "autocast copies": "16-bit copies of the weights that matrix products read",
    "backward": "gradients of activations",
    "optimizer step": "working memory of the optimizer's step, which grows with the largest tensor",
    "averaging buffers": "gradients that hivemind accumulates: 4 bytes × parameters",
    "library workspaces": "working memory of cuBLAS for each of the two threads that compute, forward and backward",
    "CUDA context": "memory of CUDA and its kernels: the middle of a range",
    "allocator slack": "memory that PyTorch's allocator holds beyond tensors: the middle of a range",
}
"""Each term of GPU memory, with its formula in words."""

RAM_TERMS = {
    "master copies": "32-bit weights that the offloaded optimizer updates: 4 bytes × parameters",
    "offloaded gradients": "gradients copied to RAM for the optimizer: 4 bytes × parameters",
    "averaging buffers": "gradients that hivemind averages and the optimizer reads: 4 bytes × parameters",
    "offloaded state": "the optimizer's statistics",
    "optimizer step": "working memory of the optimizer's step, which grows with the largest tensor",
    "snapshot": "the last good weights and statistics, to which a peer of this kit can go back",
    "data": "a stream of text or codes: the middle of an assumed range",
    "Python and libraries": "torch and the packages it loads: the middle of an assumed range",
}
"""Each term of RAM, with its formula in words."""

ASSUMED = ("CUDA context", "allocator slack", "data", "Python and libraries")
"""The terms that are not calculated. Each has a range, whose middle stands among the other terms."""

ANY = GPU("any GPU", 0, has_bf16=True, teraflops=None, workspace=hardware.ANY_WORKSPACE)
"""What all families of GPUs take beside tensors."""

EIGHT_BIT_FROM = 2**16
"""Elements from which a peer sends a tensor in 8 bits; smaller tensors are sent in 16."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one training step needs: bytes by term at its peak, from the second step on, and its costs."""

    gpu: dict[str, int]
    """Bytes on the GPU by term; the sum is the middle of `gpu_range`."""
    ram: dict[str, int]
    """Bytes in RAM by term; the sum is the middle of `ram_range`."""
    allocated: int
    """Bytes of tensors and libraries' workspaces on the GPU: `torch.cuda.max_memory_allocated`, which also counts up to
    4% by which the allocator rounds up."""
    gpu_range: tuple[int, int]
    """Bytes needed on the GPU, from the lower to the upper end of the assumed terms."""
    ram_range: tuple[int, int]
    """Bytes needed in RAM, from the lower to the upper end of the assumed terms."""
    moment: str
    """The part of the step in which memory peaks: forward, backward or optimizer step."""
    parameters: int
    """Number of trained values; tied weights count once."""
    saved: int
    """Bytes that the forward pass keeps for the backward pass, without weights."""
    layer: list[tuple[str, str, int]]
    """What a layer in the middle keeps or recomputes: for each operation its name, a formula and the bytes."""
    flops: int
    """Floating point operations of matrix products in one step, recomputed ones included."""
    sent: int
    """Bytes that one of many peers sends for each common update: its gradients, in 8 bits (small tensors in 16), and as
    many bytes of averages. The occasional averaging of weights is not included."""
    unmeasured: list[str]
    """Options of this estimate that no measurement covers yet."""
    training: Training
    """The options that were estimated."""

    @property
    def tensors(self) -> dict[str, int]:
        """The terms of GPU memory that are tensors and workspaces; their sum is `allocated`."""
        return {term: size for term, size in self.gpu.items() if term not in ASSUMED}

    def fits(self, size: int) -> bool | None:
        """Return whether this fits a GPU of `size` bytes: True, False, or None if that depends on the assumed terms."""
        low, high = self.gpu_range
        return True if high <= size else False if low > size else None

    def verdict(self, size: int) -> str:
        """Return the answer of `fits` in words: fits, does not fit, may fit."""
        return {True: "fits", False: "does not fit", None: "may fit"}[self.fits(size)]

    def samples_per_second(self, flops_per_second: float) -> float:
        """Return sequences per second if a device did these operations at `flops_per_second` and nothing else."""
        return self.training.batch * flops_per_second / self.flops

    def seconds_to_send(self, bits_per_second: float) -> float:
        """Return how long a peer sends for one common update, over a link of `bits_per_second`."""
        return 8 * self.sent / bits_per_second

    def as_dict(self) -> dict:
        """Return all fields as a dictionary that JSON can hold."""
        return {**asdict(self), "training": asdict(self.training)}


def estimate(
    model: str | Mapping, training: Training | None = None, device: Device = "cuda", gpu: GPU | None = None
) -> Estimate:
    """Return the memory that one training step of `model` needs, by term, and its operations and traffic.

    The model is run in symbols, forward and backward, and every byte in use is counted. `model` is the name of a preset
    or the fields of a Hub config. On `device` "cpu" there are no workspaces, no CUDA context and no allocator slack.
    They depend on the `gpu`; without one, their ranges span all GPUs.

    Raises ValueError for models and options that are not described.

    Source for what is kept: PyTorch's operations. For a layer in 16 bits with dropout this comes to the
    34·s·b·h + 5·a·s²·b bytes of arXiv:2205.05198, equation 2 (b sequences of s positions, h wide, a heads).
    """
    key = model if isinstance(model, str) else tuple(sorted((k, v) for k, v in model.items() if _is_plain(v)))
    result, biased = _estimate(key, training or Training(), device)
    # The cached result stays as it is when a caller changes what it got.
    result = replace(result, gpu=dict(result.gpu), ram=dict(result.ram), layer=list(result.layer))
    return result if device == "cpu" else _on_gpu(result, gpu or ANY, biased)


def _on_gpu(result: Estimate, gpu: GPU, biased: int) -> Estimate:
    """Return the estimate with what `gpu` takes beside tensors; `biased` threads of the two add biases to products."""
    spaces = [2 * size + biased * hardware.BIAS_WORKSPACE for size in gpu.workspace]
    allocated = [result.allocated + size for size in spaces]
    low_share, high_share = hardware.SLACK if result.training.layer == "plain" else hardware.RECOMPUTED_SLACK
    slack = [round(low_share * allocated[0]), round(high_share * allocated[1]) + hardware.SEGMENT]
    ranges = {"library workspaces": spaces, "CUDA context": gpu.context, "allocator slack": slack}
    low, high = (result.allocated + sum(ends[i] for ends in ranges.values()) for i in (0, 1))
    return replace(
        result,
        gpu=result.gpu | {term: sum(ends) // 2 for term, ends in ranges.items()},
        allocated=sum(allocated) // 2,
        gpu_range=(low, high),
    )


@lru_cache(maxsize=512)
def _estimate(key: str | tuple, training: Training, device: Device) -> tuple[Estimate, int]:
    """Return what `estimate` does, of tensors alone on a GPU, and in how many threads products get biases."""
    model = describe(key if isinstance(key, str) else dict(key), training.distinct_layers)
    _check(model, training)
    memory = Memory()
    tape = Tape(memory, training.weight_width, training.half, device)
    kept = _resident(model, training, memory, tape)
    memory.moment = "forward"
    forward = ForwardPass(
        tape, training.batch, training.sequence or model.shape.sequence,
        training.attention or model.attentions[-1], training.dropout, training.layer,
    )  # fmt: skip
    loss = model.loss(forward)
    graph, flops = graph_of(loss), tape.flops
    if training.layer == "plain":
        layer = _middle_layer(graph, model, forward)
    else:
        layer = _estimate(key, replace(training, checkpointing=False, reversible=False), device)[0].layer
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
    ram, fixed = _ram(model, training)
    result = Estimate(
        gpu=terms,
        ram=ram | {term: sum(ends) // 2 for term, ends in fixed.items()},
        allocated=memory.peak,
        gpu_range=(memory.peak, memory.peak),
        ram_range=tuple(sum(ram.values()) + sum(ends[i] for ends in fixed.values()) for i in (0, 1)),
        moment=memory.moment_of_peak,
        parameters=model.parameter_count,
        saved=saved,
        layer=layer,
        flops=tape.flops + 2 * flops,
        sent=2 * sum(p.count * (1 if p.count >= EIGHT_BIT_FROM else 2) for p in model.parameters),
        unmeasured=not_measured(training, device),
        training=training,
    )
    return result, len(tape.biased_in)


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))


def _check(model: ModelDescription, training: Training) -> None:
    name, longest = model.config.model_type, model.shape.sequence
    if training.attention and training.attention not in model.attentions:
        known = " or ".join(model.attentions)
        raise ValueError(f"this kit runs {name} with attention {known}, but the training has {training.attention}.")
    if training.precision not in model.precisions:
        raise ValueError(f"{name} runs in {', '.join(model.precisions)}, but the training has {training.precision}.")
    if training.dropout and not model.has_dropout:
        raise ValueError(f"{name} has no dropout, but the training switches it on: leave it off.")
    shortest = 1 if model.takes_any_length else longest
    if training.sequence and not shortest <= training.sequence <= (longest if model.has_limit else training.sequence):
        raise ValueError(
            f"{name} takes sequences of {shortest} to {longest}, but the training has {training.sequence}."
        )


def _resident(model: ModelDescription, training: Training, memory: Memory, tape: Tape) -> list[Storage]:
    """Return the storages that exist before the step: weights, statistics, gradients of earlier batches."""
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


def _ram(model: ModelDescription, training: Training) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Return the known bytes of RAM by term, and the assumed range of each of the other terms."""
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


def _middle_layer(graph: list[Node], model: ModelDescription, forward: ForwardPass) -> list[tuple[str, str, int]]:
    """Return what a middle layer keeps, by operation: what it has saved, without what earlier layers saved too."""
    number = len(forward.layer_starts) // 2
    start, end = [*forward.layer_starts, graph[-1].number][number : number + 2]
    seen = {id(storage) for node in graph if node.number < start for storage in node.saved}
    kept: dict[tuple[str, str], list[int]] = {}
    for node in graph:
        for storage in node.saved if start <= node.number < end else ():
            if id(storage) not in seen:
                seen.add(id(storage))
                kept.setdefault((node.name, formula(storage, model, forward)), []).append(storage.size)
    return [
        (name, text if len(sizes) == 1 else f"{len(sizes)} × {text}", sum(sizes))
        for (name, text), sizes in kept.items()
    ]


def formula(storage: Storage, model: ModelDescription, forward: ForwardPass) -> str:
    """Return a storage's bytes as a formula in b sequences of s positions, h wide, with a heads."""
    hidden, heads, size = model.shape.hidden, model.shape.heads, storage.size
    if storage.is_of_pairs:
        units = [("b·a·s²", forward.positions * forward.sequence * heads)]
    elif storage.term == "autocast copies":
        units = [("h²", hidden**2)]
    else:
        units = [
            ("b·s·h", forward.positions * hidden),
            ("b·a·s", forward.positions * heads),
            ("b·s", forward.positions),
            ("s²", forward.sequence**2),
        ]
    for text, unit in units:
        if size >= unit and size * 100 % unit == 0:
            return f"{size / unit:g}·{text}"
    return f"{size:,} bytes"
