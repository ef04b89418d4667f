"""What a run's monitor has sent to the Hub: the newest checkpoint, and whether what comes is that."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dalle_lib.files import reading, sha256_of, small_bytes
from dalle_lib.run.card import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES, download, require_small

LATEST = "latest.json"
"""The file in a repository of checkpoints that names the newest: epoch, folder, SHA-256 and bytes of each file."""
STATUS = "status.json"
"""The file there that says how the run stands."""
USER_COLUMNS = ("rank", "user", "team", "compute_s", "present_s", "samples", "share", "percentile", "peers",
                "last_seen", "day", "week", "month")  # fmt: skip
"""What the values of a row of `users` in that file are."""
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
_FOLDER = re.compile(r"checkpoints/epoch-\d{7,10}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the Hub."""

    repository: str
    epoch: int
    folder: str
    """Its folder in the repository."""
    sha256: Mapping[str, str]
    """The hash of each of its files, by name."""
    bytes: Mapping[str, int]
    """The size of each."""
    token: str | None = None
    """A Hub token for a private repository."""

    def __repr__(self) -> str:
        return f"<Checkpoint of epoch {self.epoch:,} at {self.repository}>"

    def name(self, file: str) -> str:
        """Return the name of one of its files in the repository."""
        return f"{self.folder}/{file}"

    def fetched(self, file: str) -> Path:
        """Return one of its files, downloaded unless it is here; what was begun is gone on with.

        Raises ValueError if what comes is not what the repository promises, and ConnectionError if nothing comes.
        """
        path = download(self.repository, self.name(file), self.token, f"no {self.name(file)} in {self.repository}.")
        if (found := sha256_of(path)) != self.sha256[file]:
            raise ValueError(
                f"expected {self.name(file)} of {self.repository} with SHA-256 {self.sha256[file]:.16}..., but got "
                f"{found:.16}...: remove {path} and try again."
            )
        return path


def newest_checkpoint(card: RunCard) -> Checkpoint | None:
    """Return the newest checkpoint that the run's monitor has sent to the Hub, or None if there is none.

    A finished run has its last checkpoint in the card. Raises ConnectionError if the Hub cannot be asked, and
    ValueError if what it says cannot be right.
    """
    if card.checkpoints is None or (card.state == "finished" and card.checkpoint is not None):
        return None
    try:
        require_small(card.checkpoints, LATEST, card.token)
        path = download(card.checkpoints, LATEST, card.token, f"no checkpoints in {card.checkpoints} yet.")
    except ValueError:
        return None  # none was sent yet
    with reading(path, "what names the newest checkpoint"):
        return _told(json.loads(small_bytes(path, MAX_CARD_BYTES)), card)


def _told(told: object, card: RunCard) -> Checkpoint:
    """Return the checkpoint that the contents of LATEST name. Raises ValueError for others."""
    match told:
        case {"epoch": int() as epoch, "folder": str() as folder, "files": {**files}} if _FOLDER.fullmatch(folder):
            hashes = {name: each.get("sha256") for name, each in files.items() if isinstance(each, dict)}
            sizes = {name: each.get("bytes") for name, each in files.items() if isinstance(each, dict)}
            are_right = all(
                isinstance(hashes.get(name), str) and _SHA256.fullmatch(hashes[name]) and type(sizes[name]) is int
                for name in (MODEL, OPTIMIZER)
            )
            if are_right and 0 <= epoch <= card.optimizer.total_epochs:
                return Checkpoint(card.checkpoints, epoch, folder, hashes, sizes, card.token)
    raise ValueError(f"expected epoch, folder and files of a checkpoint, but got {told!r:.200}")
