"""The parts of a run card: what it says about files, data, optimizer, averaging, members and recipe."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dalle_lib.files import sha256_of
from dalle_lib.names import is_web_address
from dalle_lib.one_line import printable
from dalle_lib.streaming import CodesFormat, Filters

MAX_PROBLEMS = 10
"""Fields of which it is told what is wrong with them."""
Positive = Annotated[int, Field(gt=0, le=10**9)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""Part of a running mean that stays at each step."""
Share = Annotated[float, Field(ge=0, le=1)]


class Part(BaseModel):
    """A frozen part of a card that refuses fields it does not know, and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileCard(Part):
    """One file of the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$", max_length=200)
    """Its name beside the card."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Its SHA-256 hash; a file with another one is refused."""


def _is_source(source: str) -> str:
    if not re.fullmatch(r"(hf://datasets/)?\w[\w.-]*(/\w[\w.-]*)*", source) or len(source) > 200:
        raise ValueError(
            f"expected a folder beside the card, such as train, or hf://datasets/owner/name, but got {source!r:.60}"
        )
    return source


Source = Annotated[str, AfterValidator(_is_source)]
"""A folder that lies beside the card, and nowhere above it, or one on the Hub."""


Pin = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
"""The SHA-256 of a folder, or a commit on the Hub."""


class DataCard(Part):
    """The captions and codes to train on."""

    train: Source
    """Training data: a folder beside the card, or ``hf://datasets/owner/name/folder``."""
    held_out: Source
    """Data that are never trained on, by which a model is examined, in the same words."""
    revision: str | None = Field(default=None, pattern=r"^[\w./-]+$", max_length=200)
    """Commit of the data set on the Hub, 40 hexadecimal digits, so that all peers see the same data: needed where data
    are there."""
    manifest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the training data's `manifest.json`: files that differ from it are refused, wherever they are."""
    format: CodesFormat
    """What the codes mean; files that say otherwise are refused."""
    filters: Filters = Filters()
    """Which pairs of picture and caption are trained on."""


class OptimizerCard(Part):
    """The LAMB optimizer (arXiv:1904.00962) and its schedule."""

    lr: float = Field(gt=0, le=100)
    """Learning rate at the end of the warm-up. Lower it if the loss rises or jumps."""
    warmup_epochs: int = Field(ge=0, le=10**9)
    """Epochs in which the learning rate rises from 0. Raise it if the loss jumps early in the run."""
    total_epochs: Positive
    """Epochs after which the learning rate has fallen to 0 and the run is complete."""
    betas: tuple[Decay, Decay] = (0.9, 0.96)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0, le=1)
    """Added to the root of the mean square, so that no parameter's update is divided by 0."""
    weight_decay: float = Field(default=0.045, ge=0, le=100)
    """Multiple of each matrix that joins its update before LAMB scales it; biases, norms and scales do not decay."""
    max_grad_norm: float = Field(default=4.0, gt=0)
    """Norm to which larger gradients are scaled down. Lower it if single batches make the loss jump."""
    max_weight_norm: float = Field(default=10_000.0, gt=0)
    """Norm of a tensor above which LAMB's steps no longer grow with it."""
    bits: Literal[8, 32] = 8
    """Bits of each number of the optimizer's statistics: 8 need a quarter of the memory of 32, which are exact."""


class AveragingCard(Part):
    """When and how peers average."""

    target_batch_size: Positive
    """Samples over all peers that make one epoch, which is one optimizer step. Raise it if averaging takes much of an
    epoch."""
    matchmaking_s: float = Field(gt=0, le=3600)
    """Seconds in which peers find each other before a round; it begins sooner if all are there."""
    longest_matchmaking_s: float | None = Field(default=None, gt=0, le=3600)
    """Seconds for which a round waits for peers that compute in its epoch, at most. None: it waits for nobody longer
    than `matchmaking_s`. Raise it if rounds often lack peers."""
    timeout_s: float = Field(gt=0, le=86_400)
    """Seconds after which a round that hangs is given up; who lets the others wait for half of them is left out, and
    among four peers and more who lets them wait much longer than the others do. Raise it if slow links make rounds
    fail."""
    least_wait_s: float = Field(default=5.0, gt=0, le=3600)
    """Seconds for which a round waits for any peer that was not late in the last one, up to half of `timeout_s`. Raise
    it if peers are left out that are slow for moments only; lower it if epochs take seconds."""
    state_every: Positive = 5
    """Epochs between averages of the parameters themselves. Lower it if peers often miss rounds and drift apart; with
    an `lr` of 0.0025, 20 keep them as equal as 5, since 8 bits are no more exact (benchmarks/parameter_rounds.py)."""
    delayed: Literal[False, "step", "averaging"] = "step"
    """What a peer does not wait for while it computes on: the optimizer's step (as in the paper), the averaging of
    gradients too, or nothing. With "averaging", updates come late by the part of an epoch that averaging takes. Choose
    it, with a smaller `lr`, where that part is large."""
    strategy: Literal["gradients", "local"] = "gradients"
    """What peers average in each epoch: their gradients, or the change that each peer's own steps made to the
    parameters (DiLoCo, arXiv:2311.08105). "local" sends as much in an epoch, and allows epochs of many more samples."""
    outer_lr: float = Field(default=0.7, gt=0, le=100)
    """Learning rate of the outer step of "local": 1 moves to the peers' average; momentum may go past it."""
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Nesterov momentum of the outer step of "local"."""
    eight_bit_from: Positive = 2**16
    """Tensors with at least this many elements travel in 8 bits a value, smaller ones in 16."""
    upload_bits: Literal[8, 4] = 8
    """Bits a value of these large tensors on their way to reducers, in rounds of gradients or local updates; averages
    come back in 8. Choose 4 where volunteers' uploads are slow and others reduce."""
    part_bytes: int = Field(default=2**19, ge=2**8, le=2**20)
    """Bytes of the messages that tensors are cut into. `2**19` is what plain hivemind's peers use; `2**17` is quicker
    where many peers share a reducer's link, or round trips are long (`python benchmarks/averaging.py`)."""
    rule: Literal["mean", "centered_clip", "coordinate_median", "trimmed_mean"] = "mean"
    """Rule by which reducers combine the peers' gradients and parameters. All but the mean withstand some liars, and
    give slow peers, whose gradients are noisier, less weight than their samples would; see docs/threats.md."""
    reducers: Literal["all", "members", "vouched"] = "all"
    """Who averages parts for the others and gives newcomers the state: such a peer could lie about them. `vouched`
    needs a few peers of the organiser's with much bandwidth."""
    parts: Literal["equal", "measured"] = "equal"
    """How much each reducer averages for the others: all the same, or as much as the organiser's vouched peers have
    measured that its link carries beside its own parts, and nothing where that is no more. Choose "measured" where
    links differ much and two peers or more are vouched for; without these both are the same."""
    audits: float = Field(default=1.0, ge=0, le=1000)
    """How many parts of a round, on average, another peer averages a second time and compares. Raise it if reducers are
    strangers."""

    @property
    def search_s(self) -> float:
        """Seconds in which a peer finds a group, if there is one."""
        return max(self.matchmaking_s, self.longest_matchmaking_s or 0.0)


def is_printable(text: str) -> str:
    """Return `text`. Raises ValueError unless it is one line of letters that a terminal shows as they are."""
    if not text.isprintable():
        raise ValueError(f"expected one line of printable characters, but got {text!r:.60}")
    return text


def _is_address(text: str) -> str:
    """Return an address of a web page. Raises ValueError unless it is encrypted, or of this machine, and no secret."""
    if not is_web_address(text):
        raise ValueError(
            "expected an address such as https://run.example.org (http for this machine alone), in ASCII letters, "
            f"without a user or password, but got {text.rpartition('@')[2]!r:.60}"
        )
    return text.rstrip("/")


Address = Annotated[str, AfterValidator(_is_address)]
"""A page on the web, by HTTPS; this machine may use HTTP."""


class MembersCard(Part):
    """Who may take part: peers that show an access token which the authority has signed."""

    authority: str = Field(pattern=r"^[A-Za-z0-9+/]{43}=$")
    """The authority's public key."""
    max_peers: Positive = 4
    """How many peers of one user may take part at a time."""
    max_share: float = Field(default=0.5, gt=0, le=1)
    """Cap on one user's share of an average, in rounds with other users."""
    server: Annotated[Address | None, Field(max_length=300)] = None
    """Address of the authority's server, which gives access tokens to the members of `organization`; without it, the
    organiser gives them by hand."""
    organization: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=96)
    """The organisation on the Hub whose members may take part."""
    client_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$", max_length=100)
    """Public client id of the authority's application on the Hub, through which volunteers prove who they are."""
    invitation: Annotated[Address | None, Field(max_length=300)] = None
    """Link by which somebody joins the organisation."""


class RecipeCard(Part):
    """What is done to a batch before training on it."""

    code_corruption: Share = 0.0
    """Share of the codes shown that are replaced by random ones. Raise it if drawings fall apart after a first wrong
    code."""
    caption_dropout: Share = 0.0
    """Share of captions left out. Guided drawing needs it to be above 0."""


def file_card(path: Path) -> FileCard:
    """Return a file's entry for a card: its name and its hash."""
    return FileCard(name=path.name, sha256=sha256_of(path))


def problems_in(error: ValidationError) -> str:
    """Return what is wrong with a card, field by field, in one line: the first MAX_PROBLEMS, and how many more."""
    found = error.errors(include_url=False)
    more = [f"and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else []
    return "; ".join([*map(_problem, found[:MAX_PROBLEMS]), *more])


def _problem(one: ErrorDetails) -> str:
    """Return what is wrong with one field: where, what was expected, and what came."""
    if one["type"] == "value_error":  # ours, which says all of this
        told = str(one["ctx"]["error"]).rstrip(".")
    elif one["type"] == "missing":
        told = one["msg"]
    else:
        told = f"{one['msg']}, but got {one['input']!r:.60}"
    return ": ".join(filter(None, [printable(".".join(map(str, one["loc"]))[:200]), told]))
