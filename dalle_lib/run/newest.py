"""What a run's monitor has sent to the Hub: the newest checkpoint, and whether what comes is that."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dalle_lib.files import reading, sha256_of, small_bytes
from dalle_lib.run.card import RunCard
from dalle_lib.run.files import CHECKPOINTS, MAX_CARD_BYTES, MODEL, OPTIMIZER, checkpoint_name, download_small

LATEST = "latest.json"
"""The file in a repository of checkpoints that names the newest: epoch, folder, SHA-256 and bytes of each file, and the
signature of the monitor that made it."""
STATUS = "status.json"
"""The file there that says how the run stands."""
PLAYED = "played"
"""What such a file of a replay says besides: when it was played, in seconds since 1970. All else is recorded."""
CONFIRMED = "confirmed.json"
"""The file there that says what each peer was credited with, signed: what its receipt is confirmed by."""
USER_COLUMNS = ("rank", "user", "team", "compute_s", "present_s", "samples", "share", "percentile", "peers",
                "last_seen", "day", "week", "month")  # fmt: skip
"""What the values of a row of `users` in that file are."""
TEAM_COLUMNS = ("rank", "team", "compute_s", "samples", "share", "members")
"""The same for a row of `teams`."""
PURPOSE = b"dalle-lib newest checkpoint 1\n"
"""What is signed begins with this, so that the signature serves nothing else."""
MAX_BYTES_A_PARAMETER, MAX_OTHER_BYTES = 16, 2**24
"""Bytes of a file for each of the model's parameters, and besides, beyond which it belongs to no checkpoint: four for
the parameter, as many for each of LAMB's statistics at most, and one copy."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the Hub."""

    repository: str
    epoch: int
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
        return f"{folder_on_hub(self.epoch)}/{file}"

    def fetched(self, file: str, tell: Callable[[int], None] | None = None) -> Path:
        """Return one of its files, downloaded unless it is here; what was begun is gone on with.

        `tell` is told how many bytes have come, as by `download`.
        Raises ValueError if what comes is not what the repository promises, and ConnectionError if nothing comes.
        """
        missing = f"no {self.name(file)} in {self.repository}."
        path = download_small(self.repository, self.name(file), self.token, missing, tell, self.bytes[file])
        if (found := sha256_of(path)) != self.sha256[file]:
            path.resolve().unlink()  # else the cache would give it again
            raise ValueError(
                f"expected {self.name(file)} of {self.repository} with SHA-256 {self.sha256[file]:.16}..., but got "
                f"{found:.16}...: it was removed, try again later."
            )
        return path


class ForeignSignature(ValueError):
    """What names the newest checkpoint is not signed by a monitor that the run's card names."""


def folder_on_hub(epoch: int) -> str:
    """Return the folder of an epoch's checkpoint in a repository of checkpoints."""
    return f"{CHECKPOINTS}/{checkpoint_name(epoch)}"


def file_of_monitor(card: RunCard, name: str) -> Path:
    """Return a small file, such as STATUS, of the repository of checkpoints that a card names.

    Raises ValueError if it has none or a large one, and ConnectionError if the Hub cannot be asked.
    """
    return download_small(card.checkpoints, name, card.token, f"no {name} in {card.checkpoints} yet.")


def newest_checkpoint(card: RunCard) -> Checkpoint | None:
    """Return the newest checkpoint that the run's monitor has sent to the Hub, or None if there is none.

    A finished run has its last checkpoint in the card. Raises ConnectionError if the Hub cannot be asked, BrokenFile
    if what it says cannot be right, and ForeignSignature if none of the monitors in the card says it.
    """
    if card.checkpoints is None or (card.state == "finished" and card.checkpoint is not None):
        return None
    try:
        path = file_of_monitor(card, LATEST)
    except ValueError:
        return None  # none was sent yet
    with reading(path, "what names the newest checkpoint"):
        told = json.loads(small_bytes(path, MAX_CARD_BYTES))
        newest = _told(told, card)
    if card.monitors:
        _require_signed(told, card)
    return newest


def without_checkpoint(card: RunCard) -> str:
    """Return why one cannot draw with a run yet, and what to do, for one that has no checkpoint."""
    comes = f": its monitor sends the first one to {card.checkpoints}" if card.checkpoints else ""
    return (
        f"run {card.name!r} has no checkpoint to draw with yet{comes}. Try again later, ask its organiser, or name the "
        "folder of a peer of yours that has trained it and left, in place of the run."
    )


def signed_bytes(told: Mapping, repository: str) -> bytes:
    """Return what a monitor signs of the contents of LATEST: all but the signature, for this repository alone."""
    signed = {name: value for name, value in told.items() if name != "signature"}
    return PURPOSE + json.dumps([repository, signed], sort_keys=True, separators=(",", ":")).encode()


def _require_signed(told: Mapping, card: RunCard) -> None:
    from dalle_lib.peer_keys import signer_of  # cryptography comes with the extras

    ask = "Ask the run's organiser which monitor it has."
    try:
        key, signature = (str(told.get(name, "")) for name in ("public_key", "signature"))
        signer = signer_of(signed_bytes(told, card.checkpoints), key, signature)
    except ValueError as error:
        raise ForeignSignature(
            f"expected {LATEST} of {card.checkpoints} to be signed by a monitor of {card.name!r}, but {error}. {ask}"
        ) from error
    if signer not in card.monitors:
        raise ForeignSignature(
            f"expected {LATEST} of {card.checkpoints} to be signed by a monitor that the card of {card.name!r} names "
            f"({', '.join(card.monitors)}), but {signer} has signed it. {ask}"
        )


def _max_bytes(card: RunCard) -> int:
    from dalle_lib.memory.dalle import DALLEDescription

    return MAX_BYTES_A_PARAMETER * DALLEDescription(asdict(card.model)).parameter_count + MAX_OTHER_BYTES


def _told(told: object, card: RunCard) -> Checkpoint:
    """Return the checkpoint that the contents of LATEST name. Raises ValueError for others."""
    match told:
        case {"epoch": int() as epoch, "folder": folder, "files": {**files}} if folder == folder_on_hub(epoch):
            match [files.get(name) for name in (MODEL, OPTIMIZER)]:
                case [{"sha256": str() as model, "bytes": int() as a}, {"sha256": str() as state, "bytes": int() as b}]:
                    is_hashed = _SHA256.fullmatch(model) and _SHA256.fullmatch(state)
                    is_sized = min(a, b) > 0 and max(a, b) <= _max_bytes(card)
                    if is_hashed and is_sized and 0 <= epoch <= card.optimizer.total_epochs:
                        hashes, sizes = {MODEL: model, OPTIMIZER: state}, {MODEL: a, OPTIMIZER: b}
                        return Checkpoint(card.checkpoints, epoch, hashes, sizes, card.token)
    raise ValueError(f"expected epoch, folder and files of a checkpoint, but got {told!r:.200}")
