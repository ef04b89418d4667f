"""Says who may take part: access tokens that a run's authority signs, and peers that carry and check them.

Names are imported when first used: code that only reads or issues access tokens needs no hivemind.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.auth.authority import Authority
    from dalle_lib.auth.bans import BanList, Bans
    from dalle_lib.auth.held import HeldToken
    from dalle_lib.auth.hub_authorizer import AuthorityAway, DeviceCode, HubAuthorizer, NotAdmitted
    from dalle_lib.auth.identity import Identity
    from dalle_lib.auth.members import Members, clock_offset_s
    from dalle_lib.auth.roster import Roster, TokenValidator, find_token, publish_token, token_key
    from dalle_lib.auth.server.app import create_app
    from dalle_lib.auth.tokens import AccessToken, Refused, Role
    from dalle_lib.auth.upkeep import NoLongerAdmitted, Upkeep

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "authority": ("Authority",),
        "bans": ("BanList", "Bans"),
        "held": ("HeldToken",),
        "hub_authorizer": ("AuthorityAway", "DeviceCode", "HubAuthorizer", "NotAdmitted"),
        "identity": ("Identity",),
        "members": ("Members", "clock_offset_s"),
        "roster": ("Roster", "TokenValidator", "find_token", "publish_token", "token_key"),
        "server.app": ("create_app",),
        "tokens": ("AccessToken", "Refused", "Role"),
        "upkeep": ("NoLongerAdmitted", "Upkeep"),
    },
)
