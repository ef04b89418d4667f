"""Users who want no name told: a monitor takes a tag in its place, before it remembers or tells anything."""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from dalle_lib.auth.authority import write_private
from dalle_lib.files import small_bytes
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.evidence import END
from dalle_lib.swarm.process.settings import ANONYMOUS
from dalle_lib.swarm.process.status import SwarmStatus

KEY, KEY_BYTES = "anonymous.key", 32
"""The file in a monitor's folder with the secret from which tags are made; with another one they are others."""
FORGOTTEN_S = 86_400.0
"""Seconds for which a peer must be away before it can be named that was not."""
TAG_DIGITS, ID_DIGITS = 8, 16
"""Hexadecimal digits of the tag of a user, and of a peer."""


def key_in(folder: Path) -> bytes:
    """Return the secret in a monitor's folder, made where there is none. Raises ValueError for a broken one."""
    file = folder / KEY
    if not file.exists():
        write_private(file, secrets.token_bytes(KEY_BYTES))
    key = small_bytes(file)
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"expected {KEY_BYTES} bytes in {file}, but it has {len(key)}: put a copy of before in its place, or "
            "remove it, and anonymous users get other tags from now on."
        )
    return key


def tags_in(database: MonitorDatabase, now: float) -> frozenset[str]:
    """Return the tags of the peers that were there in the last day and wanted no name told then."""
    query = "SELECT DISTINCT peer FROM starts WHERE last_seen > :since AND peer LIKE :tag"
    return frozenset(row["peer"] for row in database.rows(query, since=now - FORGOTTEN_S, tag=f"{ANONYMOUS}-%"))


def anonymised(status: SwarmStatus, key: bytes, before: Collection[str] = ()) -> SwarmStatus:
    """Return a look in which peers that want no name told have tags for their user, name and id.

    So have those that had one of the tags `before`: else the same hours under both names would show whose the tag is,
    and a peer that changed its mind again and again would be two.

    Who knows the tag and guesses the user cannot tell whether that is right, without the key. Where no access token
    names the user, each peer is a user of its own.
    """
    tags = {peer.peer_id: _tag_of(peer.peer_id, key) for peer in status.peers}
    asked = {peer.peer_id for peer in status.peers if peer.anonymous}
    ids = {peer: tag for peer, tag in tags.items() if peer in asked or tag in before}
    if not ids:
        return status
    users = {
        peer: f"{ANONYMOUS}-{_tag(key, 'user', status.users.get(peer, peer), TAG_DIGITS)}" for peer in ids
    }  # fmt: skip
    ends = {peer[-END:]: tag[-END:] for peer, tag in ids.items()}
    peers = [
        replace(
            peer, peer_id=ids.get(peer.peer_id, peer.peer_id), name=users.get(peer.peer_id, peer.name),
            witnessed=_with_ends(peer.witnessed, ends),
        )
        for peer in status.peers
    ]  # fmt: skip
    named = {peer: user for peer, user in status.users.items() if peer not in ids}
    return replace(status, peers=peers, users=named | {ids[peer]: user for peer, user in users.items()})


def tagged_among(peers: Iterable[str], key: bytes, tags: Collection[str]) -> set[str]:
    """Return those of these peers, by their ids, that have one of the tags made with `key`."""
    return {peer for peer in peers if _tag_of(peer, key) in tags}


def _tag_of(peer: str, key: bytes) -> str:
    return f"{ANONYMOUS}-{_tag(key, 'peer', peer, ID_DIGITS)}"


def _tag(key: bytes, what: str, name: str, digits: int) -> str:
    return hmac.new(key, f"{what} {name}".encode(), hashlib.sha256).hexdigest()[:digits]


def _with_ends(witnessed: str, ends: dict[str, str]) -> str:
    """Return what a peer tells of others (`evidence.witness`), with other ends of their ids."""
    epoch, *weights = witnessed.split(" ")
    parts = (weight.partition("=") for weight in weights)
    return " ".join([epoch, *(f"{ends.get(end, end)}={weight}" for end, _, weight in parts)])
