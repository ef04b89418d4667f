"""Identities, their run's authority, and its access tokens; each key is made once for all tests of a process."""

import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path

from dalle_lib.auth import AccessToken, Authority, Identity, Members, Role

RUN, RUN_KEY = "org/run", "run-0123"
AUTHORITY = Authority.generate()
_FOLDER = tempfile.TemporaryDirectory()


def identity_file(name: str) -> Path:
    """Return where the identity of that name is kept."""
    return Path(_FOLDER.name) / name


@cache
def identity(name: str) -> Identity:
    """Return the identity of that name, made at the first call."""
    return Identity.load_or_create(identity_file(name))


def issued(peer: Identity, user: str = "ada", valid_for: timedelta = timedelta(hours=1), **changes) -> AccessToken:
    """Return an access token for a peer; `changes` may name another authority, role or run."""
    options = {"role": Role.MEMBER, "run": RUN, **changes}
    authority = options.pop("authority", AUTHORITY)
    return authority.issue(user, public_key=peer.public_key, valid_for=valid_for, **options)


def members(peer: Identity, token: AccessToken, **options) -> Members:
    """Return the authorizer of a peer with that access token."""
    return Members(peer, token, AUTHORITY.public_key, RUN, **options)
