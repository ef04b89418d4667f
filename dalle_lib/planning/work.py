"""What a run has to compute and to average, from its card or from the paper."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from dalle_lib.memory.presets import describe
from dalle_lib.planning.constants import CODEBOOK_BYTES, FRAMES, MESSAGE_BYTES, STATE_BYTES, UP_BITS

if TYPE_CHECKING:
    from dalle_lib.model import ModelConfig
    from dalle_lib.run import AveragingCard, OptimizerCard, RunCard

LARGEST = 10**12
"""Beyond this, a number of a plan is a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the peers of a run do together; defaults are the paper's and the card's."""

    tensors: tuple[int, ...]
    """Elements of each trained tensor; shared weights count once."""
    epochs: int
    """Epochs of the whole run."""
    target_batch_size: int
    """Samples of an epoch, over all peers."""
    matchmaking_s: float
    """Seconds before an epoch's end in which peers find each other."""
    timeout_s: float
    """Seconds after which a round is given up."""
    state_every: int = 5
    """Epochs between averages of the parameters themselves."""
    delayed: Literal[False, "step", "averaging"] = "step"
    """What peers do not wait for."""
    strategy: Literal["gradients", "local"] = "gradients"
    """What peers average."""
    eight_bit_from: int = 2**16
    """Elements from which a tensor travels in 8 bits a value, others in 16."""
    up_bits: float = 8
    """Bits a value of these large tensors on their way to a reducer: 8, or 4.125 with the scales of blocks."""
    part_bytes: int = 2**19
    """Bytes of the messages that tensors are cut into."""
    audits: float = 1.0
    """Parts of a round that another peer averages again, on average."""
    codes: int = 0
    """Codes of a sample's picture, which are streamed; 0 for data that are already there."""
    optimizer_bits: Literal[8, 32] = 8
    """Bits of each number of the optimizer's statistics."""
    model: tuple[tuple[str, object], ...] = ()
    """The model's fields for the memory calculator, or () if memory is not to be told."""

    def __post_init__(self) -> None:
        if not self.tensors or any(type(size) is not int or not 0 < size <= LARGEST for size in self.tensors):
            raise ValueError(
                f"expected the elements of each tensor, as positive whole numbers, but got {self.tensors!r:.200}."
            )
        for name in "epochs", "target_batch_size", "state_every", "eight_bit_from", "part_bytes":
            if type(value := getattr(self, name)) is not int or not 0 < value <= LARGEST:
                raise ValueError(f"Work.{name} must be a positive whole number, but is {value!r}.")
        for name in "matchmaking_s", "timeout_s", "up_bits":
            if not 0 < (value := getattr(self, name)) < LARGEST:
                raise ValueError(f"Work.{name} must be above 0 and finite, but is {value!r}.")
        for name in "audits", "codes":
            if not 0 <= (value := getattr(self, name)) < LARGEST:
                raise ValueError(f"Work.{name} must be at least 0 and finite, but is {value!r}.")

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(self.tensors)

    @property
    def messages(self) -> int:
        """Messages that one peer's tensors make, up to the few that lie between two reducers."""
        return sum(-(-size // self._values_of_a_part(size)) for size in self.tensors)

    @property
    def up_bytes(self) -> float:
        """Bytes on a link of one peer's tensors on their way to reducers."""
        return self._bytes(self.up_bits)

    @property
    def answer_bytes(self) -> float:
        """Bytes on a link of all averages on their way to one peer, without the senders' weights."""
        return self._bytes(8)

    @property
    def state_bytes(self) -> float:
        """Bytes of the state that a newcomer takes over."""
        return STATE_BYTES[self.optimizer_bits] * self.parameters

    def _values_of_a_part(self, size: int) -> int:
        return self.part_bytes if size >= self.eight_bit_from else self.part_bytes // 2

    def _bytes(self, bits: float) -> float:
        large = sum(size for size in self.tensors if size >= self.eight_bit_from)
        books = sum(-(-size // self.part_bytes) for size in self.tensors if size >= self.eight_bit_from)
        values = bits / 8 * large + 2 * (self.parameters - large)
        return FRAMES * (values + CODEBOOK_BYTES * books + MESSAGE_BYTES * self.messages)

    def with_changes(self, **changes) -> "Work":
        """Return the same work with other fields."""
        return replace(self, **changes)

    @classmethod
    def of(cls, card: "RunCard") -> "Work":
        """Return what a run card asks for."""
        return cls._of(card.model, card.optimizer, card.averaging)

    @classmethod
    def paper(cls) -> "Work":
        """Return the paper's own run (arXiv:2207.03481): 31,250 epochs of 4,096 samples."""
        from dalle_lib.run.sizes import paper_sizes

        sizes = paper_sizes()
        return cls._of(sizes["model"], sizes["optimizer"], sizes["averaging"])

    @classmethod
    def _of(cls, config: "ModelConfig", optimizer: "OptimizerCard", averaging: "AveragingCard") -> "Work":
        model = {"model_type": "dalle", **asdict(config)}
        names = ("target_batch_size", "matchmaking_s", "timeout_s", "state_every", "delayed", "strategy",
                 "eight_bit_from", "part_bytes", "audits")  # fmt: skip
        return cls(
            tensors=tensors_of(model), epochs=optimizer.total_epochs, codes=config.image_length,
            optimizer_bits=optimizer.bits, up_bits=UP_BITS[averaging.upload_bits], model=tuple(model.items()),
            **{name: getattr(averaging, name) for name in names},
        )  # fmt: skip


def tensors_of(model: Mapping[str, object]) -> tuple[int, ...]:
    """Return the elements of each trained tensor of a model, given its fields for the memory calculator."""
    return tuple(parameter.count for parameter in describe(model).parameters)
