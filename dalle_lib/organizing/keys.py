"""The keys of a run: its authority's root and signing keys, and the first peer's, in a folder beside the run's."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dalle_lib.auth.authority import Authority, write_private
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server.runs import organiser_of
from dalle_lib.auth.server.settings import Folder, RunSettings, ServerSettings
from dalle_lib.auth.tokens import TOKEN, Role
from dalle_lib.organizing.options import KeySettings, first_peer_address
from dalle_lib.run import CARD, RunCard
from dalle_lib.swarm.process.folder import IDENTITY, MONITOR, crew_folder

ROOT, AUTHORITY, PEERS = "root.pem", "authority", "peers"
"""What is in the folder of the keys beside the monitor's: the root key, the folder of the authority's server, and that
of the first peer."""
FIRST_PEER = "first-peer"
"""The first peer's name."""
DAYS = 90.0
"""Days for which a signing key may sign, and for which the organiser's peers in a run without a server are members."""


@dataclass(frozen=True)
class RunKeys:
    """What `make_keys` has made."""

    folder: Path
    """The folder of the keys, beside the run's. It is for the organiser alone, and never published."""
    card: RunCard
    """The run's card, which names the authority and the first peer from now on."""
    peer_id: str
    """The first peer's id."""

    @property
    def root(self) -> Path | None:
        """The root key's file, to be kept offline; None for a run that everybody may join."""
        return None if self.card.members is None else self.folder / ROOT

    @property
    def authority(self) -> Path | None:
        """The folder for `dalle-lib auth-server`; None for a run whose card names no server."""
        return self.folder / AUTHORITY if self.card.members is not None and self.card.members.server else None

    @property
    def peers(self) -> Path:
        """The folder with the first peer's identity, which `dalle-lib join --folder` takes."""
        return self.folder / PEERS

    @property
    def monitor(self) -> Path:
        """The folder with the identity of the monitor's peer, which `dalle-lib monitor --folder` takes."""
        return self.folder / MONITOR


def keys_folder(out: str | Path) -> Path:
    """Return where the keys of the run in the folder `out` lie: beside it."""
    out = Path(out)
    if out.name in ("", ".."):
        out = out.resolve()
    return out.with_name(f"{out.name}.keys")


def require_no_keys(out: str | Path) -> None:
    """Raise ValueError if the keys of a run in `out` are there already: they may be the only copy."""
    if keys_folder(out).exists():
        raise ValueError(
            f"{keys_folder(out)} is there already, and may be the only copy of a run's keys: move it, or name another "
            "folder for the run."
        )


def make_keys(card: RunCard, out: str | Path, settings: KeySettings) -> RunKeys:
    """Make the keys of the run in the folder `out`, and save its card, `card`, there with what follows from them.

    For a run for members: the root key, and, where a server is to give the access tokens, the folder of that server,
    with a signing key, the card and the ids of the organiser's peers. In any case the identities of the first peer and
    of the monitor's, whose id the card names from then on; where the first peer's place is given, its address too.
    Nobody may have joined yet: members change the run's fingerprint.

    Raises ValueError if there are keys already, or the card names an authority.
    """
    require_no_keys(out)
    if card.members is not None:
        raise ValueError(f"expected a run that everybody may join, but the card of {card.name} names an authority.")
    place = keys_folder(out)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
        folder = Path(beside, "keys")
        folder.mkdir(mode=0o700)
        peer = crew_folder(folder / PEERS, card, FIRST_PEER) / FIRST_PEER
        monitor = folder / MONITOR / MONITOR
        key, watches = (PeerKey.load_or_create(place / IDENTITY) for place in (peer, monitor))
        card = card.with_changes(monitors=(watches.peer_id,))
        if settings.first_peer is not None:
            card = card.with_changes(initial_peers=(first_peer_address(settings.first_peer, key.peer_id),))
        if settings.for_members:
            own = {peer: (key, Role.VOUCHED), monitor: (watches, Role.MEMBER)}
            card = _with_authority(card, folder, own, settings)
        os.replace(folder, place)
    card.save(out)
    made = RunKeys(place, RunCard.load(out), key.peer_id)
    if made.authority is not None:
        (made.authority / "card").mkdir()
        shutil.copyfile(Path(out, CARD), made.authority / "card" / CARD)
    return made


def authority_of(out: str | Path) -> Path | None:
    """Return the folder of the authority of the run in `out`; None if there is none, or it is elsewhere by now."""
    place = keys_folder(out) / AUTHORITY
    return place if Folder(place).settings_file.exists() else None


def follow(out: str | Path, repository: str) -> None:
    """Let the authority of the run in `out` take its card from owner/name on the Hub.

    So what `edit_run` changes there counts at the server within a minute.
    """
    if (folder := authority_of(out)) is None:
        return
    place = Folder(folder)
    settings = place.settings()
    runs = tuple(run.model_copy(update={"card": repository}) if run.card == "card" else run for run in settings.runs)
    place.save(settings.model_copy(update={"runs": runs}))


def make_signing_key(folder: Path, card: RunCard, root: Path, days: float = DAYS) -> None:
    """Write a new signing key for a run to the folder of a server, for some days.

    Raises ValueError if the root key in the file `root` is not the one that the card names.
    """
    authority = Authority.load(root)
    if card.members is None or authority.public_key != card.members.authority:
        raise ValueError(f"expected the root key of run {card.name!r} in {root}, but its card names another, or none.")
    _save_signing_key(folder, card, authority, days)


def _with_authority(
    card: RunCard, folder: Path, own: dict[Path, tuple[PeerKey, Role]], settings: KeySettings
) -> RunCard:
    """Write the authority's keys to `folder`, and return the card with its members; `own` are the organiser's peers."""
    root = Authority.generate()
    root.save(folder / ROOT)
    card = card.with_changes(members=settings.card_of(root.public_key))
    if card.members.server is None:
        for peer, (key, role) in own.items():
            token = root.issue(organiser_of(card), role, card.name, key.public_key, timedelta(days=DAYS))
            write_private(peer / TOKEN, token.to_bytes())
        return card
    _save_signing_key(folder / AUTHORITY, card, root, DAYS)
    is_behind_proxy = card.members.server.startswith("https")
    run = RunSettings(card="card", peers={key.peer_id: role for key, role in own.values()})
    Folder(folder / AUTHORITY).save(ServerSettings(runs=(run,), proxies=int(is_behind_proxy)))
    return card


def _save_signing_key(folder: Path, card: RunCard, root: Authority, days: float) -> None:
    file = Folder(folder).key(card.name)
    for each in folder, file.parent:
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    root.delegate(card.name, timedelta(days=days)).save(file)
