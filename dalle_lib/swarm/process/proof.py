"""Who a volunteer is, proved before their peers start, in a run whose authority has a server."""

from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.amounts import moment
from dalle_lib.auth.hub_authorizer import AuthorityAway, DeviceCode, HubAuthorizer, NotAdmitted
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.proof_time import proof_until
from dalle_lib.auth.tokens import AccessToken
from dalle_lib.swarm.process.folder import IDENTITY

if TYPE_CHECKING:
    from dalle_lib.run import RunCard


def prove_identity(
    card: "RunCard", folder: Path, hub_token: str | None = None, *, is_bootstrap: bool = False
) -> AccessToken:
    """Return the access token that the authority gives to the peer in `folder`, where it is kept from then on.

    One that is there is renewed, and nobody is asked, as long as the last proof counts. Otherwise the volunteer is
    shown a link and a code, and this waits until they have approved; or `hub_token`, a Hub token, is shown to the
    authority instead. A bootstrap peer that the authority's settings name is asked for nothing.
    Raises NotAdmitted, a ValueError, if the authority refuses, ValueError if the run takes no codes, and
    AuthorityAway, a ConnectionError, if the authority does not answer while no access token counts.
    """
    authorizer = HubAuthorizer(card, PeerKey.load_or_create(folder / IDENTITY), folder, folder.name)
    if authorizer.held.now() is not None:
        kept = authorizer.kept()
        try:
            return authorizer.renew()
        except AuthorityAway as away:
            if kept is None:
                raise
            _say(f"Going on with an access token until {kept.expires:%H:%M} UTC, because {away}.")
            return kept
        except NotAdmitted as refused:
            if kept is not None and refused.code != "proof_expired":
                raise
    if is_bootstrap and (token := _of_the_organiser(authorizer)) is not None:
        return token
    if hub_token is not None:
        token = authorizer.prove_by_token(hub_token)
    elif card.members.client_id is None:
        raise ValueError(f"run {card.name!r} takes no codes: prove who you are by your Hub token, with --hub-token.")
    else:
        token = authorizer.prove_by_code(lambda code: _say(_asking(card, folder.name, code)))
    until = proof_until(folder)
    counts = "" if until is None else f" Your proof of identity counts until {moment(until)}."
    _say(f"{folder.name} takes part as {token.user}, a {token.role.value} of {card.name}.{counts}")
    return token


def _of_the_organiser(authorizer: HubAuthorizer) -> AccessToken | None:
    """Return the access token of one of the organiser's own peers; None for another's peer."""
    try:
        return authorizer.prove_by_key()
    except NotAdmitted as refused:
        if refused.code != "not_a_member":
            raise
        return None


def _say(text: str) -> None:
    print(text, flush=True)  # in a notebook too, where nobody sees the log


def _asking(card: "RunCard", name: str, code: DeviceCode) -> str:
    of = f" as a member of {card.members.organization}" if card.members.organization else ""
    until = "as long as the authority says" if code.proof_until is None else f"until {moment(code.proof_until)}"
    return (
        f"Run {card.name} asks who you are{of}. Open this page, on this or another device:\n\n"
        f"    {code.page}\n\n"
        f"It must name the peer {name} and the code {code.code}, and leads to {code.link}. Your approval counts "
        f"{until}: then the peer saves and leaves, and the next start asks again. Waiting for up to "
        f"{code.expires_s // 60} minutes ..."
    )
