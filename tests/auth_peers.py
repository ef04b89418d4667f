"""Users of a run, its authority, and the tokens it gives them; keys are made once for all tests of a process."""

import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path

from dalle_lib.auth import AccessToken, Authority, Identity, Members, Role

RUN, RUN_KEY = "org/run", "run-0123"
AUTHORITY = Authority.generate()
_FOLDER = tempfile.TemporaryDirectory()


def identity_file(name: str) -> Path:
    return Path(_FOLDER.name) / name


@cache
def identity(name: str) -> Identity:
    return Identity.load_or_create(identity_file(name))


def issued(peer: Identity, user: str = "ada", valid_for: timedelta = timedelta(hours=1), **changes) -> AccessToken:
    options = {"role": Role.MEMBER, "run": RUN, **changes}
    authority = options.pop("authority", AUTHORITY)
    return authority.issue(user, public_key=peer.public_key, valid_for=valid_for, **options)


def members(peer: Identity, token: AccessToken, **options) -> Members:
    return Members(peer, token, AUTHORITY.public_key, RUN, **options)
