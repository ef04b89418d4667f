"""The run card: everything that the peers of one run must share, under one name."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from pydantic import Field, PrivateAttr, model_validator

from dalle_lib.files import sha256_of
from dalle_lib.model import ModelConfig
from dalle_lib.run.files import CARD, EMBEDDED, EMBEDDED_RUNS, download
from dalle_lib.run.parts import AveragingCard, DataCard, FileCard, MembersCard, OptimizerCard, Part, RecipeCard

PROTOCOL = 1
"""Raised when peers of this version can no longer train with peers of the last."""


class RunCard(Part):
    """What the peers of one run share. Loaded by name, from `run.json`.

    Peers whose cards differ in what matters have different fingerprints, and never meet.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)
    protocol: int = PROTOCOL
    model: ModelConfig
    data: DataCard
    tokenizer: FileCard
    vqgan: FileCard
    clip: str = Field(default="openai/clip-vit-base-patch32", pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")
    """The CLIP that chooses among drawn pictures: a folder beside the card, or its name on the Hub."""
    checkpoint: FileCard | None = None
    """Weights to start from, and to draw with; none starts from random ones."""
    seed: int = 0
    """Seed of those random ones, equal on all peers."""
    optimizer: OptimizerCard
    averaging: AveragingCard
    members: MembersCard | None = None
    """None lets everybody in."""
    recipe: RecipeCard = RecipeCard()
    initial_peers: tuple[str, ...] = ()
    """Addresses where newcomers find the swarm."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RunCard":
        if self.averaging.reducers != "all" and self.members is None:
            raise ValueError(f"reducers={self.averaging.reducers!r} needs `members`: without tokens nobody is known.")
        if self.averaging.strategy == "local" and self.averaging.delayed:
            raise ValueError(
                f'strategy="local" cannot be delayed={self.averaging.delayed!r}: the common step would undo the steps '
                f"that a peer makes meanwhile. Write delayed=false."
            )
        return self

    _folder: Path | None = PrivateAttr(default=None)
    _repository: str | None = PrivateAttr(default=None)
    _token: str | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, run: str | Path, token: str | None = None) -> "RunCard":
        """Return the card of a run: an embedded one, a folder or run.json file, or "owner/name" on the Hub.

        `token` reads what is private there; without it, huggingface_hub looks for one. It is never saved or printed.
        Raises ValueError if there is no such run, or its card is not valid for this version.
        """
        path = EMBEDDED / f"{run}.json" if run in EMBEDDED_RUNS else Path(run)
        repository = None
        if path.is_dir() and (path / CARD).is_file():
            path = path / CARD
        elif not path.is_file():
            repository = str(run)
            path = download(repository, CARD, token)
        card = cls.model_validate_json(path.read_bytes())
        if card.protocol != PROTOCOL:
            raise ValueError(
                f"run {card.name!r} needs protocol {card.protocol}, this version has {PROTOCOL}: "
                f"{'update dalle_lib' if card.protocol > PROTOCOL else 'ask its organiser for a newer card'}."
            )
        card._folder, card._repository, card._token = path.parent, repository, token
        return card

    def with_changes(self, **fields) -> "RunCard":
        """Return a checked copy with other values; its files stay where they are."""
        card = type(self).model_validate({**self.model_dump(), **fields})
        card._folder, card._repository, card._token = self._folder, self._repository, self._token
        return card

    def in_folder(self, folder: str | Path) -> "RunCard":
        """Return a copy whose files are looked for in `folder`."""
        card = self.with_changes()
        card._folder, card._repository = Path(folder), None
        return card

    def save(self, folder: str | Path, name: str = CARD) -> Path:
        """Write the card and the local files it names to `folder`, so that the folder is a run of its own."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() != (self._folder and self._folder.resolve()):
            for file in self._files():
                shutil.copyfile(self.path(file), folder / file.name)
            for source in self._folders():
                shutil.copytree(self._folder / source, folder / source, dirs_exist_ok=True)
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, folder / name)
        return folder

    def path(self, file: FileCard) -> Path:
        """Return where `file` lies, downloaded if the run is on the Hub. Raises ValueError for another hash."""
        if self._repository is not None:
            path = download(self._repository, file.name, self._token)
        elif self._folder is not None:
            path = self._folder / file.name
        else:
            raise ValueError(f"run card {self.name!r} was not loaded from anywhere, so {file.name} cannot be found.")
        if (found := sha256_of(path)) != file.sha256:
            raise ValueError(
                f"{path} is not the file that run {self.name!r} names: expected SHA-256 {file.sha256}, found {found}. "
                f"Delete it and load the run again."
            )
        return path

    def data_source(self, source: str) -> str:
        """Return where one of the card's data sets or other folders is, as `stream_codes` takes it.

        A folder beside a card on the Hub is downloaded.
        """
        if source.startswith("hf://"):
            return source
        if self._repository is not None:
            from huggingface_hub import snapshot_download

            folder = snapshot_download(self._repository, allow_patterns=f"{source}/*", token=self._token)
            return str(Path(folder) / source)
        if self._folder is None:
            raise ValueError(f"run card {self.name!r} was not loaded from a folder, so {source} cannot be found.")
        return str(self._folder / source)

    def downloads(self) -> tuple[int, int]:
        """Return the bytes that a peer of this run still has to download before it starts, and how many are weights.

        Data that the card names elsewhere on the Hub are not among them: they come as a stream. Raises ConnectionError
        if the Hub cannot be asked.
        """
        if self._repository is None:
            return 0, 0
        from huggingface_hub import HfApi, try_to_load_from_cache

        from dalle_lib.hub_http import httpx

        try:
            info = HfApi(token=self._token).model_info(self._repository, files_metadata=True)
        except (httpx.HTTPError, OSError) as error:
            raise ConnectionError(f"{self._repository} on the Hub cannot be reached: {error}") from error
        weights = self.checkpoint and self.checkpoint.name
        missing = {
            file.rfilename: file.size or 0
            for file in info.siblings
            if (file.rfilename in (weights, self.tokenizer.name) or file.rfilename.startswith(f"{self.data.train}/"))
            and not isinstance(try_to_load_from_cache(self._repository, file.rfilename), str)
        }
        return sum(missing.values()), missing.get(weights, 0)

    @property
    def fingerprint(self) -> str:
        """Short hash of all that peers must agree on; addresses, names and weights are not part of it."""
        others = {"name": True, "initial_peers": True, "checkpoint": True, "clip": True, "members": {"authority"}}
        shared = self.model_dump(mode="json", exclude=others)
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Prefix of everything that this run's peers store and look up."""
        return f"{self.name}-{self.fingerprint}"

    @property
    def repository(self) -> str | None:
        """The Hub repository that the card came from, if it did."""
        return self._repository

    @property
    def token(self) -> str | None:
        """The token that the card was loaded with."""
        return self._token

    @property
    def clip_is_beside(self) -> bool:
        """Whether the run's CLIP is a folder beside its card, not a repository of its own."""
        return "/" not in self.clip

    def clip_source(self) -> str:
        """Return where the run's CLIP is: a folder, downloaded if the run is on the Hub, or its name there."""
        return self.data_source(self.clip) if self.clip_is_beside else self.clip

    def _folders(self) -> list[str]:
        """Return the folders beside the card that it names."""
        sources = [source for source in (self.data.train, self.data.held_out) if not source.startswith("hf://")]
        return [*sources, self.clip] if self.clip_is_beside else sources

    def _files(self) -> list[FileCard]:
        return [file for file in (self.tokenizer, self.vqgan, self.checkpoint) if file is not None]
