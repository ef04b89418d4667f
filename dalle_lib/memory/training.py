"""The options of a training, and the memory that its optimizer needs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from dalle_lib.memory.graph import Parameter
from dalle_lib.memory.hardware import summing_bytes
from dalle_lib.memory.tape import Device

Precision = Literal["fp32", "fp16", "bf16", "pure-bf16"]
OptimizerName = Literal["adamw", "adamw8bit", "lamb", "lamb8bit", "adafactor"]
Offload = Literal["none", "statistics", "optimizer"]
AttentionKernel = Literal["sdpa", "eager"]

_CHOICES = {"precision": Precision, "optimizer": OptimizerName, "offload": Offload, "attention": AttentionKernel}

QUANTISED_FROM = {"adamw8bit": 4096, "lamb8bit": 65536}
"""Elements from which a tensor's statistics are kept in 8 bits."""
PAGED_FROM = 100_000
"""Elements from which bitsandbytes keeps a paged optimizer's statistics in RAM."""
BLOCK = {"adamw8bit": 256, "lamb8bit": 4096}
"""Values of an 8-bit statistic that share one 32-bit scale."""
LAMB_CHUNK = {"cpu": 2**18, "cuda": 2**22}
"""Values that this kit's LAMB updates at a time."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The options with which a model is trained."""

    batch: int = 1
    """Sequences that go through the model together."""
    sequence: int | None = None
    """Positions of a sequence, each a text token or a code; by default the most that the model takes."""
    optimizer: OptimizerName = "adamw"
    """adamw is torch's, fused; adamw8bit is bitsandbytes'; lamb and lamb8bit are this kit's; adafactor is torch's."""
    embeddings_32bit: bool = True
    """Keep adamw8bit's statistics of embeddings in 32 bits."""
    precision: Precision = "fp32"
    """fp16 and bf16 compute under autocast with 32-bit weights; pure-bf16 keeps the weights in 16 bits too."""
    checkpointing: bool = False
    """Save only the input of each layer, and run the layer again in the backward pass."""
    reversible: bool = False
    """Save nothing between layers: each layer's input is computed back from its result."""
    offload: Offload = "none"
    """What is kept in RAM: `statistics` of the optimizer (paged), or the `optimizer` with 32-bit weights of its own."""
    accumulates: bool = False
    """Keep gradients from batch to batch until the optimizer takes its step."""
    distinct_layers: int | None = None
    """Number of layers with weights of their own; the others take turns with these weights."""
    attention: AttentionKernel | None = None
    """eager stores all scores, sdpa never does; by default sdpa where this kit runs the model with it.
    An efficient kernel of sdpa is assumed; for Llamas with fewer keys than queries, only GPUs with bf16 have one, and
    none in fp32."""
    dropout: bool = False
    """Train with dropout, whose masks are saved for the backward pass."""
    swarm: bool = False
    """Average gradients with other peers through hivemind, which keeps the optimizer in RAM and needs buffers."""

    def __post_init__(self) -> None:
        for name in "batch", "sequence", "distinct_layers":
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"Training.{name} must be a whole number of at least 1, but is {value!r}.")
        for name, kind in _CHOICES.items():
            if (value := getattr(self, name)) not in get_args(kind) and (name, value) != ("attention", None):
                raise ValueError(f"Training.{name} must be one of {', '.join(get_args(kind))}, but is {value!r}.")
        if self.offload == "statistics" and self.optimizer not in ("adamw", "adamw8bit"):
            raise ValueError(
                f"Training.offload statistics needs AdamW, whose statistics bitsandbytes keeps in RAM, "
                f"but the optimizer is {self.optimizer}: choose adamw, adamw8bit or offload optimizer."
            )
        if self.checkpointing and self.reversible:
            raise ValueError("checkpointing and reversible layers save the same memory: switch one of them off.")

    @property
    def weight_width(self) -> int:
        """Bytes of a weight on the GPU."""
        return 2 if self.precision == "pure-bf16" else 4

    @property
    def half(self) -> int | None:
        """Bytes of a number under autocast, or None without it."""
        return 2 if self.precision in ("fp16", "bf16") else None

    @property
    def layer(self) -> str:
        """How a layer is run: plain, checkpoint or reversible."""
        return "checkpoint" if self.checkpointing else "reversible" if self.reversible else "plain"

    @property
    def is_offloaded(self) -> bool:
        """Whether the optimizer lives in RAM, with weights of its own."""
        return self.offload == "optimizer" or self.swarm

    @property
    def keeps_gradients(self) -> bool:
        """Whether the gradients stay in memory all the time, as accumulation and hivemind need them."""
        return self.accumulates or self.swarm

    @property
    def keeps_state(self) -> bool:
        """Whether the optimizer's statistics are on the GPU."""
        return self.offload == "none" and not self.swarm


def state_bytes(training: Training, parameters: Iterable[Parameter]) -> int:
    """Return the bytes of the optimizer's statistics.

    AdamW and LAMB keep two numbers an element. In 8 bits these are two bytes, and for each statistic one 32-bit scale a
    block of elements; small tensors stay in 32 bits (arXiv:2110.02861). Adafactor keeps one number for each row and one
    for each column of a matrix (arXiv:1804.04235).
    """
    width = 4 if training.is_offloaded else training.weight_width
    return sum(_state_of(training, parameter, width) for parameter in parameters)


def _state_of(training: Training, parameter: Parameter, width: int) -> int:
    name, count = training.optimizer, parameter.count
    if name == "adafactor":
        return width * (sum(parameter.shape) if len(parameter.shape) > 1 else count) + 4
    if name in ("adamw", "lamb"):
        return 2 * count * (width if name == "adamw" else 4) + 4 * (name == "adamw")
    if not _is_quantised(training, parameter):
        return 8 * count
    return 2 * (count + 4 * -(-count // BLOCK[name]))


def _is_quantised(training: Training, parameter: Parameter) -> bool:
    name = training.optimizer
    is_kept = name == "adamw8bit" and parameter.is_embedding and training.embeddings_32bit
    return name in QUANTISED_FROM and not is_kept and parameter.count >= QUANTISED_FROM[name]


def unpaged_bytes(training: Training, parameters: Iterable[Parameter]) -> int:
    """Return the bytes that a paged optimizer leaves on the GPU: small tensors' statistics, and 8-bit ones' scales."""
    return sum(
        _state_of(training, p, training.weight_width)
        if p.count < PAGED_FROM
        else 8 * -(-p.count // BLOCK["adamw8bit"]) * _is_quantised(training, p)
        for p in parameters
    )


def step_bytes(training: Training, parameters: Iterable[Parameter], device: Device) -> int:
    """Return the bytes of working memory that the optimizer's step needs; they grow with the largest tensor.

    Fused AdamW needs none, and bitsandbytes needs none on a GPU. On a CPU bitsandbytes is written in torch's operations
    and needs 20 bytes an element with 8-bit statistics, 12 with 32-bit ones. Adafactor makes one update of a tensor's
    size; before, a GPU sums squares over rows. This kit's LAMB works on a chunk at a time: 32 bytes an element of the
    chunk, or 24 if a tensor has only one.
    """
    width = 4 if training.is_offloaded else training.weight_width
    on_cpu = device == "cpu" or training.is_offloaded
    if training.optimizer.startswith("lamb"):
        chunk = LAMB_CHUNK["cpu" if on_cpu else "cuda"]
        return max(24 * p.count if p.count <= chunk else 32 * chunk for p in parameters)
    if training.optimizer == "adamw8bit" and on_cpu:
        return max((20 if _is_quantised(training, p) else 12) * p.count for p in parameters)
    if training.optimizer != "adafactor":
        return 0
    return max(
        max(width * p.count, 0 if on_cpu else summing_bytes(p.shape[0], p.count // p.shape[0])) for p in parameters
    )
