"""The run card: everything that the peers of one run must share, under one name."""

import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, FailFast, Field, PrivateAttr, ValidationError, model_validator

from dalle_lib.files import copy_folder, files_in, reading, replace_file, sha256_of, sha256_of_folder, small_bytes
from dalle_lib.model import ModelConfig
from dalle_lib.run.files import CARD, MAX_CARD_BYTES, Home, has_file
from dalle_lib.run.fingerprint import fingerprint_of
from dalle_lib.run.parts import (
    AveragingCard,
    DataCard,
    FileCard,
    MembersCard,
    OptimizerCard,
    Part,
    Pin,
    RecipeCard,
    is_printable,
    problems_in,
)
from dalle_lib.run.sense import OPENAI_CLIP, require_sense
from dalle_lib.run.state import check_kit, require_this_kit
from dalle_lib.streaming import code_files
from dalle_lib.version import __version__

PROTOCOL = 4
"""Version of what peers say to each other; raised when new peers can no longer train with old ones."""
CLIP_CONFIG = "config.json"
"""The file by which a CLIP is known to be there."""


class RunCard(Part):
    """What the peers of one run share, as its `run.json` says it.

    Peers look each other up under the card's fingerprint. Where cards differ in what all must share, fingerprints
    differ too, and the peers never meet.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)
    """The run's name: letters, digits, "_" and "-"."""
    protocol: int = PROTOCOL
    """Version of what peers say to each other; a version of this package refuses all but its own."""
    model: ModelConfig
    """Sizes of the model."""
    data: DataCard
    """The captions and codes to train on."""
    tokenizer: FileCard
    """The file, as the `tokenizers` library writes it, that makes text tokens of captions."""
    vqgan: FileCard
    """The VQ-GAN that makes pictures of codes."""
    clip: str = Field(default=OPENAI_CLIP, pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")
    """The CLIP that chooses among drawn pictures: a folder beside the card, or owner/name on the Hub."""
    checkpoint: FileCard | None = None
    """Weights to start from and to draw with; without it, training starts from random ones."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of random weights, so that all peers start from the same."""
    optimizer: OptimizerCard
    """The optimizer and its schedule."""
    averaging: AveragingCard
    """When and how peers average."""
    members: MembersCard | None = None
    """Who may take part; without it, everybody may."""
    recipe: RecipeCard = RecipeCard()
    """What is done to a batch before training on it."""
    initial_peers: Annotated[tuple[Annotated[str, Field(max_length=500)], ...], FailFast()] = Field(
        default=(), max_length=100
    )
    """Addresses of peers that newcomers contact first."""
    checkpoints: str | None = Field(default=None, pattern=r"^\w[\w.-]*/\w[\w.-]*$", max_length=100)
    """The repository on the Hub, owner/name, to which the run's monitor sends checkpoints and how the run stands."""
    monitors: tuple[Annotated[str, Field(pattern=r"^Qm[1-9A-HJ-NP-Za-km-z]{44}$")], ...] = Field(
        default=(), max_length=10
    )
    """Ids of the monitors' peers: only their keys may sign what names the newest checkpoint. Without any, whoever may
    write to that repository names it."""
    pins: dict[Annotated[str, Field(max_length=200)], Pin] = Field(default={}, max_length=10)
    """What is in each folder beside the card, by its name: its `sha256_of_folder`, which `save` records; another is
    refused. For a CLIP on the Hub, its commit there; data there have `data.revision`."""
    state: Literal["open", "paused", "finished"] = "open"
    """Whether peers may join: a paused run takes nobody until its organiser opens it again, a finished one nobody any
    more. Drawing works in each state."""
    message: Annotated[str, AfterValidator(is_printable)] = Field(default="", max_length=500)
    """What the organiser tells volunteers: one line, of at most 500 characters."""
    kit: Annotated[str | None, AfterValidator(check_kit)] = Field(default=None, max_length=100)
    """Versions of this package that the run takes, as pip writes them: `>=0.2,<0.4`; without it, all do that have its
    protocol."""

    _home: Home = PrivateAttr(default=Home())

    @model_validator(mode="after")
    def _fits_together(self) -> "RunCard":
        require_sense(self)
        return self

    @classmethod
    def load(cls, run: str | Path, token: str | None = None) -> "RunCard":
        """Return the card of a run: an embedded one, a folder or run.json file, or "owner/name" on the Hub.

        `token` is a Hub token that reads what is private there; without it, huggingface_hub looks for one. It is never
        saved or printed. Raises ValueError if there is no such run, or its card is not valid for this version, and
        ConnectionError if the Hub cannot be asked.
        """
        home, path = Home.of(run, token)
        with reading(path, "a run card"):
            text = small_bytes(path, MAX_CARD_BYTES).decode()
        require_this_kit(text, PROTOCOL, __version__)
        try:
            card = cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(
                f"{path} is no valid run card: {problems_in(error)}. Ask the run's organiser for another; a card that "
                "is newer than this program needs a newer dalle-lib."
            ) from error
        card._home = home
        return card

    @classmethod
    def of(cls, **fields) -> "RunCard":
        """Return a checked card with these values. Raises ValueError, which says what is wrong with which of them."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ValueError(f"no run card can be so: {problems_in(error)}.") from error

    def with_changes(self, **fields) -> "RunCard":
        """Return a copy with other values, as `of` does; its files stay where they are."""
        card = self.of(**{**self.model_dump(), **fields})
        card._home = self._home
        return card

    def in_folder(self, folder: str | Path) -> "RunCard":
        """Return a copy whose files are looked for in `folder`."""
        card = self.with_changes()
        card._home = Home(Path(folder), token=self.token)
        return card

    def save(self, folder: str | Path, name: str = CARD) -> Path:
        """Write the card and the files and folders beside it to `folder`, a run of its own from then on, and return it.

        Files of a card on the Hub are downloaded for that. Raises ValueError if a file is not there, or is another, if
        a folder beside the card leads elsewhere by a link, or if one in `folder` already holds other files.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() != (self._home.folder and self._home.folder.resolve()):
            for file in self._files():
                shutil.copyfile(self.path(file), folder / file.name)
            for source in self._folders():
                copy_folder(self._home.without_link(source, self.data_source(source)), folder / source)
        there = [source for source in self._folders() if (folder / source).exists()]
        pinned = self.with_changes(pins=self.pins | {source: sha256_of_folder(folder / source) for source in there})
        with replace_file(folder / name) as unfinished:
            unfinished.write_text(pinned.as_text(), encoding="utf-8")
        return folder

    def as_text(self) -> str:
        """Return what stands in the card's `run.json`."""
        return self.model_dump_json(indent=1) + "\n"

    def files(self) -> dict[str, Path]:
        """Return all that the card names beside itself, by its name there: files, and those in folders.

        Raises ValueError as `save` does. A CLIP or data that are not there are left out.
        """
        folders = {name: self._home.without_link(name, self.data_source(name)) for name in self._folders()}
        found = {f"{name}/{path}": file for name, folder in folders.items() for path, file in files_in(folder).items()}
        return {file.name: self.path(file) for file in self._files()} | found

    def path(self, file: FileCard) -> Path:
        """Return where `file` lies, downloaded if the run is on the Hub.

        Raises ValueError if it is not there, or has another hash.
        """
        path = self._home.file(file.name)
        if not path.is_file():
            raise ValueError(f"run {self.name!r} names the file {file.name}, but {path} is not there: copy it there.")
        if (found := sha256_of(path)) != file.sha256:
            raise ValueError(
                f"{path} is not the file that run {self.name!r} names: expected SHA-256 {file.sha256}, found {found}. "
                f"Delete it and load the run again."
            )
        return path

    def require_beside(self) -> None:
        """Raise ValueError if something that a trainer needs should lie beside the card, and does not.

        A card on the Hub is not asked: what it names is downloaded when it is needed.
        """
        if self.repository is not None:
            return
        missing = [file.name for file in (self.tokenizer, self.checkpoint) if file and not self._home.has(file.name)]
        if not self.data.train.startswith("hf://") and not code_files(self._home.subfolder(self.data.train)):
            missing.append(f"{self.data.train}, a folder of Parquet files")
        if missing:
            raise ValueError(
                f"run {self.name!r} names what is not beside its card in {self._home.folder}: {', '.join(missing)}. "
                "Copy the organiser's whole folder there."
            )

    def data_source(self, source: str) -> str:
        """Return where one of the card's data sets or other folders is, as `stream_codes` takes it.

        A folder beside a card on the Hub is downloaded. Raises ValueError if the card was not loaded from anywhere, or
        the folder holds something else than the card's pin says.
        """
        if source.startswith("hf://"):
            return source
        folder, expected = self._home.subfolder(source), self.pins.get(source)
        if expected is not None and folder.exists() and (found := sha256_of_folder(folder)) != expected:
            raise ValueError(
                f"{folder} is not the folder that run {self.name!r} names: expected SHA-256 {expected}, found {found}. "
                "Copy the organiser's whole folder there anew."
            )
        return str(folder)

    def downloads(self) -> tuple[int, int]:
        """Return the bytes that a peer of this run still has to download before it starts, and how many are weights.

        Data that the card names elsewhere on the Hub are not counted: they come as a stream. Raises ConnectionError if
        the Hub cannot be asked.
        """
        weights = self.checkpoint and self.checkpoint.name
        missing = {
            name: file.bytes or 0
            for name, file in self._home.hub_files().items()
            if not file.is_here and (name in (weights, self.tokenizer.name) or name.startswith(f"{self.data.train}/"))
        }
        return sum(missing.values()), missing.get(weights, 0)

    @property
    def fingerprint(self) -> str:
        """Short hash of all that peers must agree on.

        Names, addresses, weights and keys are not part of it, so they may change while peers train, nor is a field that
        has its default (`dalle_lib.run.fingerprint`). The run's name stands before it in `key`.
        """
        return fingerprint_of(self)

    @property
    def key(self) -> str:
        """Prefix of everything that this run's peers store and look up."""
        return f"{self.name}-{self.fingerprint}"

    @property
    def repository(self) -> str | None:
        """The Hub repository that the card came from; None for a card from this machine."""
        return self._home.repository

    @property
    def commit(self) -> str | None:
        """The commit on the Hub that the card came from; None for a card from this machine."""
        return self._home.folder.name if self.repository else None  # the Hub's cache names a copy so

    @property
    def token(self) -> str | None:
        """The Hub token that the card was loaded with, if any."""
        return self._home.token

    @property
    def clip_is_beside(self) -> bool:
        """Whether the run's CLIP is a folder beside its card rather than a repository of its own."""
        return "/" not in self.clip

    def clip_source(self) -> str:
        """Return where the run's CLIP is: a folder, downloaded if the run is on the Hub, or its name there.

        Raises ValueError if it should be a folder beside the card on this machine, but is not there.
        """
        if self.clip_is_beside and self.repository is None and not self.has_clip():
            raise ValueError(
                f"the run's CLIP, the folder {self.clip!r}, is not beside its card. It chooses among pictures: "
                "ask the run's organiser for it, or draw without one (--no-clip). Training needs none."
            )
        return self.data_source(self.clip) if self.clip_is_beside else self.clip

    def has_clip(self) -> bool:
        """Return whether the run's CLIP is there. Raises ConnectionError if the Hub cannot be asked for it."""
        if self.clip_is_beside:
            return self._home.has(f"{self.clip}/{CLIP_CONFIG}")
        return has_file(self.clip, CLIP_CONFIG, self.token, self.clip_commit)

    @property
    def clip_commit(self) -> str | None:
        """The commit of a CLIP on the Hub; None for one beside the card, and for OPENAI_CLIP."""
        return None if self.clip_is_beside else self.pins.get(self.clip)

    def _folders(self) -> list[str]:
        """Return the folders that the card names beside itself."""
        sources = [source for source in (self.data.train, self.data.held_out) if not source.startswith("hf://")]
        return [*sources, self.clip] if self.clip_is_beside else sources

    def _files(self) -> list[FileCard]:
        """Return the files that the card names beside itself."""
        return [file for file in (self.tokenizer, self.vqgan, self.checkpoint) if file is not None]
