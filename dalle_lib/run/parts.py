"""The parts of a run card: what it says of data, optimizer, averaging, members and recipe."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dalle_lib.files import sha256_of
from dalle_lib.streaming import CodesFormat

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileCard(Part):
    """One file of the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Its name beside the card."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Its hash; a file with another one is refused."""


class DataCard(Part):
    """The captions and codes to train on."""

    train: str
    """A folder beside the card, or `hf://datasets/owner/name/folder`."""
    held_out: str
    """The same for pictures that are never trained on."""
    revision: str | None = None
    """Commit of the data set on the Hub."""
    format: CodesFormat
    """What the codes are; files that say otherwise are refused."""


class OptimizerCard(Part):
    """The LAMB optimizer and its schedule."""

    lr: float = Field(gt=0)
    warmup_epochs: int = Field(ge=0)
    total_epochs: Positive
    betas: tuple[float, float] = (0.9, 0.96)
    eps: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.045, ge=0)
    max_grad_norm: float = Field(default=4.0, gt=0)
    max_weight_norm: float = Field(default=10_000.0, gt=0)
    bits: Literal[8, 32] = 8


class AveragingCard(Part):
    """When and how peers average."""

    target_batch_size: Positive
    """Samples over all peers that make one epoch, which is one optimizer step."""
    matchmaking_s: float = Field(gt=0)
    """Seconds in which peers find each other before a round. Raise if rounds often lack peers."""
    timeout_s: float = Field(gt=0)
    """Seconds after which a round that hangs is given up."""
    state_every: Positive = 5
    """Epochs between averaging the parameters themselves."""
    delayed: Literal[False, "step", "averaging"] = "step"
    """What a peer does not wait for, but computes on: the optimizer's step (as in the paper), the averaging of
    gradients too, or neither. With "averaging", updates come late by as much of an epoch as averaging takes, at most
    all of it: choose it where that is much, with a smaller `lr`."""
    strategy: Literal["gradients", "local"] = "gradients"
    """What peers average in each epoch: their gradients, or how far each has come by steps of its own (DiLoCo,
    arXiv:2311.08105). "local" sends as much an epoch, and allows epochs of many more samples."""
    outer_lr: float = Field(default=0.7, gt=0)
    """Of the common step, with "local": 1 goes to the average of the peers, with the momentum beyond."""
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Nesterov's, of the common step, with "local"."""
    eight_bit_from: Positive = 2**16
    """Tensors with at least this many elements travel in 8 bits a value, smaller ones in 16."""
    part_bytes: Positive = 2**19
    """Of the messages that tensors are cut into. 2**19 is what plain hivemind's peers use; 2**17 is quicker where round
    trips take 50 ms or more (`python benchmarks/averaging.py`)."""
    rule: Literal["mean", "centered_clip", "coordinate_median", "trimmed_mean"] = "mean"
    """How gradients and parameters of several peers become one. All but the mean withstand some liars, and give slow
    peers, whose gradients are noisier, less of a say than their samples would; see docs/threats.md."""
    reducers: Literal["all", "members", "vouched"] = "all"
    """Who averages parts for the others, and gives newcomers the state; such a peer could lie about them. `vouched`
    wants a few peers of the organiser's with much bandwidth."""
    audits: float = Field(default=1.0, ge=0)
    """How many parts of a round are averaged a second time by another peer, which compares."""


class MembersCard(Part):
    """Who may take part: peers that show a token which the authority has signed."""

    authority: str = Field(pattern=r"^[A-Za-z0-9+/]{43}=$")
    """The authority's public key."""
    max_peers: Positive = 4
    """How many peers of one user take part at a time."""
    max_share: float = Field(default=0.5, gt=0, le=1)
    """How much of an average one user's gradients make at most, where there are others."""


class RecipeCard(Part):
    """What is done to a batch before training on it."""

    code_corruption: Share = 0.0
    """Share of the codes shown that are replaced by random ones."""
    caption_dropout: Share = 0.0
    """Share of captions left out, for guided sampling."""


def file_card(path: Path) -> FileCard:
    """Return the entry of a file in a card."""
    return FileCard(name=path.name, sha256=sha256_of(path))
