"""Who may take part: tokens that a run's authority signs, peers that carry them, and peers that ask for them.

Names are imported when first used: whoever only reads or issues tokens needs no hivemind.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalle_lib.auth.authority import Authority
    from dalle_lib.auth.identity import Identity
    from dalle_lib.auth.members import Members, clock_offset_s, current_token
    from dalle_lib.auth.roster import Roster, TokenValidator, find_token, publish_token, token_key
    from dalle_lib.auth.tokens import AccessToken, Refused, Role

_HOMES = {
    "AccessToken": "tokens",
    "Authority": "authority",
    "Identity": "identity",
    "Members": "members",
    "Refused": "tokens",
    "Role": "tokens",
    "Roster": "roster",
    "TokenValidator": "roster",
    "clock_offset_s": "members",
    "current_token": "members",
    "find_token": "roster",
    "publish_token": "roster",
    "token_key": "roster",
}

__all__ = [
    "AccessToken",
    "Authority",
    "Identity",
    "Members",
    "Refused",
    "Role",
    "Roster",
    "TokenValidator",
    "clock_offset_s",
    "current_token",
    "find_token",
    "publish_token",
    "token_key",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
