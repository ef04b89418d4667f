"""A peer's folder belongs to one run: which run that is, what is saved there, and where the peers of a run live."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.auth.tokens import TOKEN
from dalle_lib.files import BrokenFile, read_record, reading, replace_file, require_file
from dalle_lib.one_line import in_one_line
from dalle_lib.run.files import BEFORE
from dalle_lib.run.files import MODEL as MODEL  # the files of the state that a peer has saved last
from dalle_lib.run.files import OPTIMIZER as OPTIMIZER
from dalle_lib.swarm.process.addresses import peer_in
from dalle_lib.swarm.process.settings import WRITTEN_ANEW, PeerSettings

if TYPE_CHECKING:
    from dalle_lib.run import RunCard

PEERS = Path("peers")
"""Folder in which `dalle-lib join` keeps peers unless it is told another."""
MONITOR = "monitor"
"""Name of a monitor's own peer, which lies in a folder of this name in the monitor's."""
SETTINGS = "settings.json"
BOUND = "bound_to.json"
IDENTITY = "identity.key"
"""The key by which a peer is known."""
START_ANEW = "Remove it: `dalle-lib join` then takes over the others' progress, or begins anew if there are none."
"""What to do with broken progress."""


@dataclass(frozen=True, kw_only=True)
class BoundRun:
    """The run that a peer's folder belongs to."""

    name: str
    """The run's name; for a folder of a version that did not write it, the run as the volunteer called it."""
    fingerprint: str
    total_epochs: int | None
    """Epochs of the whole run; None for a folder of a version that did not write it."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and isinstance(self.fingerprint, str)):
            raise ValueError(f"expected texts, but got {self.name!r} and {self.fingerprint!r}")
        if self.total_epochs is not None and not 0 < self.total_epochs < math.inf:
            raise ValueError(f"expected a number of epochs above 0, but got {self.total_epochs!r}")

    @classmethod
    def of(cls, card: "RunCard") -> "BoundRun":
        """Return what a folder that belongs to the run of `card` says of it."""
        return cls(name=card.name, fingerprint=card.fingerprint, total_epochs=card.optimizer.total_epochs)


def run_of(folder: Path) -> BoundRun | None:
    """Return the run that a peer's folder belongs to, or None for a folder of no run.

    Raises BrokenFile if the file that says so cannot be read.
    """
    if (folder / BOUND).exists():
        return read_record(folder / BOUND, lambda told: BoundRun(**told), WRITTEN_ANEW)
    if (fingerprint := _saved(folder).get("fingerprint")) is None:
        return None
    return BoundRun(name=PeerSettings.load(folder / SETTINGS).run, fingerprint=fingerprint, total_epochs=None)


def saved_epoch(folder: Path) -> int | None:
    """Return the epoch of the progress in a peer's folder from which it would go on, or None where nothing is saved.

    Raises BrokenFile if neither the last progress nor the one before can be read.
    """
    saved = _saved(folder)
    return epoch_in(saved) if saved else None


def epoch_in(metadata: Mapping[str, str]) -> int:
    """Return the epoch in the metadata of saved progress. Raises ValueError if there is none."""
    if not re.fullmatch("[0-9]{1,9}", epoch := metadata.get("epoch", "")):
        raise ValueError(f"expected an epoch in its metadata, but got {epoch!r:.80}")
    return int(epoch)


def bind(folder: Path, card: "RunCard") -> None:
    """Make a folder that is there belong to the run of `card`. Raises ValueError as `require_own` does."""
    require_own(folder, card)
    with replace_file(folder / BOUND) as unfinished:
        unfinished.write_text(json.dumps(asdict(BoundRun.of(card))) + "\n", encoding="utf-8")


def require_own(folder: Path, card: "RunCard") -> None:
    """Raise ValueError if a folder belongs to another run than that of `card`; nothing there is changed.

    A run is one training with one card: cards of one name with unlike fingerprints are two runs, whose peers never
    meet, and the progress of one is of no use in the other.
    """
    held, own = run_of(folder), BoundRun.of(card)
    if held is None or (held.fingerprint == own.fingerprint and (held.name == own.name or held.total_epochs is None)):
        return
    epoch = saved_epoch(folder)
    of_total = f" of {held.total_epochs}" if held.total_epochs else ""
    progress = "no progress yet" if epoch is None else f"progress up to epoch {epoch}{of_total}"
    other = f"run {held.name!r}" if held.name != own.name else f"a run {held.name!r} with other settings in its card"
    raise ValueError(
        f"expected a folder for run {own.name!r}, but {folder} belongs to {other} and holds {progress}. It was not "
        f"changed. To join {own.name!r}, choose another name or another folder for your peer, or move that one away "
        f"and keep who your peer is: {_moving_away(folder)}"
    )


def own_id(folder: Path) -> str | None:
    """Return the id of the peer whose folder this is, or None where it has no identity that can be read."""
    if not (folder / IDENTITY).exists():
        return None
    from dalle_lib.auth.keys import PeerKey

    try:
        return PeerKey.load(folder / IDENTITY).peer_id
    except (OSError, ValueError):
        return None


def _moving_away(folder: Path) -> str:
    """Return the command that moves a peer's folder away, and begins a new one with its identity and access token."""
    number = next(number for number in count(1) if not folder.with_name(f"{folder.name}-old{number}").exists())
    aside = folder.with_name(f"{folder.name}-old{number}")
    commands = [["mv", folder, aside]]
    if kept := [aside / name for name in (IDENTITY, TOKEN) if (folder / name).exists()]:
        commands += [["mkdir", folder], ["cp", *kept, folder]]
    return " && ".join(shlex.join(map(str, words)) for words in commands)


def crew_folder(folder: Path, card: "RunCard", name: str) -> Path:
    """Return the folder in `folder` for the volunteer's peers in the run of `card`; their first peer is called `name`.

    Each run has one, called after the run: `emoji-mini`, or `owner--name` for a run on the Hub. Earlier versions kept
    the peers in `folder` itself: it is returned where it still holds that peer's progress in this run. A first peer
    that the card names by its id stays where it was before the run got to the Hub.
    """
    old = run_of(folder / name)
    if old is not None and old.fingerprint == card.fingerprint:
        return folder
    unpublished = folder / card.name
    if card.initial_peers and own_id(unpublished / name) in map(peer_in, card.initial_peers):
        return unpublished
    return folder / (card.repository or card.name).replace("/", "--")


def folders_of_peers(folder: Path) -> list[Path]:
    """Return the folders of peers in `folder`, and in the folders of runs in it, sorted; none where it is not there."""
    return sorted(settings.parent for pattern in ("", "*/", "*/*/") for settings in folder.glob(f"{pattern}{SETTINGS}"))


def _saved(folder: Path) -> dict[str, str]:
    """Return the metadata of the last progress that can be read; none where nothing is saved. Raises BrokenFile."""
    broken = {}
    for file in states_in(folder):
        try:
            return _metadata_of(file)
        except BrokenFile as error:
            broken[file] = error
    if broken:
        raise none_usable(broken)
    return {}


def none_usable(broken: Mapping[Path, BrokenFile]) -> BrokenFile:
    """Return the error that names all states of a peer, where none of them can be used."""
    (_, error), *before = broken.items()
    told = [f" Remove {file}, too: it is broken as well ({in_one_line(of.__cause__ or of)})." for file, of in before]
    return BrokenFile(f"{error}{''.join(told)}")


def states_in(folder: Path) -> list[Path]:
    """Return the files of the states that a trainer has saved, the last one first."""
    return [folder / name for name in (OPTIMIZER, BEFORE) if (folder / name).exists()]


def place_of_last(folder: Path, next_epoch: int) -> Path | None:
    """Return where the last state is kept when that of `next_epoch` is saved; None if the one before it stays there.

    It stays where the last one is of the same epoch, as after a peer has gone back to it, or cannot be read.
    """
    try:
        last_epoch = epoch_in(_metadata_of(folder / OPTIMIZER))
    except (OSError, BrokenFile):
        return None
    return None if last_epoch == next_epoch else folder / BEFORE


def _metadata_of(file: Path) -> dict[str, str]:
    from safetensors import safe_open

    with reading(file, "progress", START_ANEW):
        require_file(file)
        with safe_open(file, "numpy") as handle:
            saved = handle.metadata() or {}
        epoch_in(saved)
    return saved
