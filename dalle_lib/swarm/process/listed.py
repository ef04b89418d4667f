"""The peers of a user on this machine: a link to the folder of each, where programs keep the state of a user.

A peer's supervisor makes the link when it starts, and removes it when the peer has left. One that is killed leaves its
link: what is asked of a peer goes by the lock in its folder, and its next start makes the same link again.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from dalle_lib.files import state_folder
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.process.folder import PEERS, SETTINGS, folders_of_peers

LISTED = "peers"
"""Folder of the links."""


def enlist(folder: Path) -> None:
    """List the peer of a folder among those of this user. Raises OSError if that cannot be written."""
    link = _link(folder)
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder.resolve())


def delist(folder: Path) -> None:
    """List the peer of a folder no more. Raises OSError if that cannot be written."""
    _link(folder).unlink(missing_ok=True)


def listed() -> list[Path]:
    """Return the folders of the peers that this user has listed, sorted. Raises OSError if the list cannot be read.

    What another user has written there counts for nothing, nor does what is no link to the folder of a peer.
    """
    try:
        links = list(state_folder(LISTED).iterdir())
    except FileNotFoundError:
        return []
    return sorted({folder for link in links if (folder := _named_by(link)) is not None})


def peers_of(folder: Path | None, say: Callable[[str], None]) -> list[Path]:
    """Return the folders of the peers in `folder`, or for None of all that are listed and those in `PEERS`, sorted.

    If the list cannot be read, `say` is told so.
    """
    if folder is not None:
        return folders_of_peers(folder)
    here = {found.resolve() for found in folders_of_peers(PEERS)} if PEERS.is_dir() else set()
    try:
        return sorted(here.union(listed()))
    except OSError as error:
        why = in_one_line(error)
        say(f"The list of your peers on this machine is not known ({why}): name other folders by --folder PATH/peers.")
        return sorted(here)


def _link(folder: Path) -> Path:
    return state_folder(LISTED) / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]


def _named_by(link: Path) -> Path | None:
    """Return the folder of the peer that a link names; None for one that names none, or is another user's."""
    try:
        folder = Path(os.readlink(link))
        is_own = link.lstat().st_uid == os.geteuid()
        return folder if is_own and folder.is_absolute() and (folder / SETTINGS).is_file() else None
    except OSError:
        return None
