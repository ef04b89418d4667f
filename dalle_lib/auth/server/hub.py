"""What the authority asks the Hugging Face Hub: device flows, whose a Hub token is, who is in an organisation.

Hub tokens and device codes pass through here, and are kept and logged nowhere. Source: RFC 8628 (device flow), and what
huggingface_hub 2.4 sends. It was tried on a stand-in, not on the live Hub.
"""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dalle_lib.auth.server.refusals import BEGIN_AGAIN, Refusal, hub_away
from dalle_lib.hub_http import httpx
from dalle_lib.names import is_web_address

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 2 << 20
MAX_PAGES = 200
"""Pages of an organisation's members that are read."""
LIST_S, LIST_AGAIN_S = 300.0, 10.0
"""Seconds for which a list of members counts, and after which it is read anew for who is not in it."""
LISTED_IN_S, LIST_PAUSE_S = 20.0, 30.0
"""Seconds in which a whole list must come, and for which the Hub is not asked again where it did not."""
SCOPE = "openid profile"
"""The narrowest scopes that are known to tell the user's organisations."""
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_IN_A_HEADER = re.compile(r"[\x21-\x7e]{1,4096}")
_USER = re.compile(r"\w[\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class DeviceFlow:
    """A device flow that the Hub has begun."""

    device_code: str
    user_code: str
    url: str
    """Where the user gives the code."""
    interval_s: int
    expires_s: int

    def __repr__(self) -> str:
        return "DeviceFlow(...)"


@dataclass(frozen=True)
class HubUser:
    """Whom the Hub has named."""

    name: str
    organisations: frozenset[str]
    """The organisations of which the Hub says that the user is a member."""
    is_whole: bool
    """Whether the Hub is known to have named all of them."""


class HubClient:
    """Asks the Hub at `endpoint`. Each method raises Refusal, with the cause, where the Hub says no or nothing."""

    def __init__(self, endpoint: str) -> None:
        limits = httpx.Limits(max_connections=50, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(base_url=endpoint, timeout=TIMEOUT_S, limits=limits, follow_redirects=False)
        self._members: dict[str, tuple[float, frozenset[str]]] = {}
        self._listing, self._list_from = asyncio.Lock(), -math.inf

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def begin(self, client_id: str) -> DeviceFlow:
        """Return a new device flow of an app of the Hub."""
        status, told = await self._ask("POST", "/oauth/device", data={"client_id": client_id, "scope": SCOPE})
        if status != 200:
            raise hub_away(f"it answered {status} to the request for a code: is the card's client_id right?")
        with _reading("its code for a device"):
            url = told.get("verification_uri_complete") or told["verification_uri"]
            flow = DeviceFlow(
                str(told["device_code"]),
                str(told["user_code"])[:64],
                str(url),
                min(max(int(told.get("interval", 5)), 1), 60),
                min(max(int(told.get("expires_in", 900)), 60), 1800),
            )
            (flow.device_code + flow.user_code).encode()  # JSON can hold halves of letters
        if not is_web_address(flow.url):
            raise hub_away("it names no https page for the code")
        return flow

    async def approved(self, client_id: str, device_code: str) -> str | int:
        """Return the user's OAuth access token if they have approved; otherwise the seconds to add to the interval."""
        form = {"grant_type": _GRANT, "device_code": device_code, "client_id": client_id}
        status, told = await self._ask("POST", "/oauth/token", data=form)
        if status == 200 and isinstance(token := told.get("access_token"), str) and _IN_A_HEADER.fullmatch(token):
            return token
        match told.get("error"):
            case "authorization_pending":
                return 0
            case "slow_down":
                return 5
            case "expired_token" | "invalid_grant":
                raise Refusal(
                    "code_expired", "expected an approval before the code expired, but none came.", BEGIN_AGAIN
                )
            case "access_denied":
                raise Refusal(
                    "denied",
                    "expected your approval, but you refused it on the Hub's page.",
                    "Begin again if this peer is yours. Nothing was signed.",
                )
        raise hub_away(f"it answered {status} when asked for an approval")

    async def user_of_approval(self, token: str) -> HubUser:
        """Return the user who approved, of whom the Hub gave this OAuth access token."""
        for attempt in range(3):  # the code is spent, so a Hub that is away for a moment is asked again
            try:
                status, told = await self._ask("GET", "/oauth/userinfo", token=token)
                break
            except Refusal:
                if attempt == 2:
                    raise
                await asyncio.sleep(1 + attempt)
        if status != 200:
            raise hub_away(f"it answered {status} when asked who approved")
        with _reading("its answer to who approved"):
            organisations = told.get("orgs") or []
            # An organisation's `name` is for show, and anybody may choose it; `preferred_username` is its own.
            names = _names([one for one in organisations if not _is_pending(one)], "preferred_username")
            is_whole = bool(names) and len(names) == len(organisations)
        return HubUser(_user_name(told.get("preferred_username")), names, is_whole)

    async def user_of_token(self, token: str) -> HubUser:
        """Return whose a Hub token is."""
        status, told = (401, {}) if not _IN_A_HEADER.fullmatch(token) else await self._ask(
            "GET", "/api/whoami-v2", token=token
        )  # fmt: skip
        if status in (401, 403) or (status == 200 and told.get("type") != "user"):
            raise _bad_token("the Hub does not know this one")
        if status != 200:
            raise hub_away(f"it answered {status} when asked whose a Hub token is")
        with _reading("its answer to whose a Hub token is"):
            auth = told.get("auth") or {}
            names, role = _names(told.get("orgs") or [], "name"), (auth.get("accessToken") or {}).get("role")
            kind = auth.get("type", "access_token")
        if kind != "access_token":  # any app that the user once let in has one of these
            raise _bad_token("this one was given to an app")
        return HubUser(_user_name(told.get("name")), names, role in ("read", "write"))

    async def is_listed(self, organisation: str, user: str, token: str) -> bool | None:
        """Return whether a user is among an organisation's members, as `token` may list them; None if nobody knows."""
        async with self._listing:
            read_at, names = self._members.get(organisation, (-math.inf, frozenset()))
            age = time.monotonic() - read_at
            if time.monotonic() < self._list_from:
                return None
            if age > LIST_S or (age > LIST_AGAIN_S and user.casefold() not in names):
                try:
                    async with asyncio.timeout(LISTED_IN_S):
                        names = await self._list(organisation, token)
                except (Refusal, TimeoutError) as error:
                    logger.warning("the members of %s cannot be listed: %s", organisation, error or "it takes too long")
                    self._list_from = time.monotonic() + LIST_PAUSE_S
                    return None
                self._members[organisation] = time.monotonic(), names
        return user.casefold() in names

    async def _list(self, organisation: str, token: str) -> frozenset[str]:
        names, path = set(), f"/api/organizations/{organisation}/members"
        for _ in range(MAX_PAGES):
            status, told, following = await self._page(path, token)
            if status != 200 or not isinstance(told, list):
                raise hub_away(f"it answered {status} when asked for the members of {organisation}")
            names |= {str(one["user"]).casefold() for one in told if isinstance(one, dict) and "user" in one}
            if not following:
                return frozenset(names)
            path = following
        raise hub_away(f"{organisation} has more than {MAX_PAGES} pages of members")

    async def _page(self, path: str, token: str) -> tuple[int, object, str | None]:
        response, told = await self._send("GET", path, token=token)
        following = response.links.get("next", {}).get("url")
        if following is None:
            return response.status_code, told, None
        url = response.url.join(following)
        if (url.scheme, url.host, url.port) != (response.url.scheme, response.url.host, response.url.port):
            raise hub_away("its next page of members is on another machine, which must not see the Hub token")
        return response.status_code, told, str(url)

    async def _ask(self, method: str, path: str, **options) -> tuple[int, dict]:
        response, told = await self._send(method, path, **options)
        if not isinstance(told, dict):
            raise hub_away(f"its answer with status {response.status_code} is no JSON object")
        return response.status_code, told

    async def _send(self, method: str, path: str, token: str | None = None, data: dict | None = None):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                async with self._http.stream(method, path, headers=headers, data=data) as response:
                    body = b""
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > MAX_ANSWER_BYTES:
                            raise hub_away("it sends without end")
        except TimeoutError:
            raise hub_away("none came in time") from None
        except (httpx.HTTPError, OSError) as error:
            raise hub_away(f"it cannot be reached ({type(error).__name__})") from None
        if response.status_code == 429 or response.status_code >= 500:
            raise hub_away(f"it answered {response.status_code}", _retry_after(response.headers))
        try:
            return response, json.loads(body)
        except (ValueError, RecursionError):
            return response, {}


def require_member(user: HubUser, organisation: str | None, invitation: str | None, of_token: bool) -> None:
    """Return None if a user may join a run of that organisation, or of anybody. Raises Refusal otherwise."""
    if organisation is None or organisation.casefold() in _folded(user.organisations):
        return
    if not user.organisations and not user.is_whole:
        remedy = (
            "Use a token of type read, or let a fine-grained one read the organisation; or join by a code."
            if of_token
            else f"Begin again, and grant access to {organisation} on the Hub's page."
        )
        raise Refusal(
            "organizations_hidden",
            f"expected the Hub to say whether {user.name} is a member of {organisation}, but it names no organisation.",
            remedy,
        )
    hidden = "" if user.is_whole else f" If you are a member, the Hub hid it: let it name {organisation}."
    raise Refusal(
        "not_a_member",
        f"expected a member of the Hugging Face organisation {organisation}, but the Hub does not name {user.name}.",
        f"Join it at the link, then try again.{hidden}",
        link=invitation or f"https://huggingface.co/{organisation}",
    )


def _folded(names: Collection[str]) -> set[str]:
    return {name.casefold() for name in names}


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raise a Refusal in the place of what Python raises where an answer of the Hub is not as it should be."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        raise hub_away(f"{what} cannot be read") from None


def _bad_token(why: str) -> Refusal:
    return Refusal(
        "bad_hub_token",
        f"expected a Hub token of a user, but {why}.",
        "Make one at the link, with the right to read, and copy all of it.",
        link="https://huggingface.co/settings/tokens",
    )


def _names(organisations: list, field: str) -> frozenset[str]:
    """Return the names of organisations; what has none, and is no organisation, is left out."""
    found = (one.get(field) for one in organisations if isinstance(one, dict))
    return frozenset(name for name in found if isinstance(name, str))


def _is_pending(organisation: object) -> bool:
    """Return whether the Hub waits for a sign-in that the organisation asks for."""
    if not isinstance(organisation, dict):
        return False
    return bool(organisation.get("pendingSSO") or organisation.get("missingMFA"))


def _user_name(name: object) -> str:
    if not isinstance(name, str) or not _USER.fullmatch(name):
        raise hub_away("its name for the user cannot be read")
    return name


def _retry_after(headers) -> int:
    told = headers.get("retry-after", "")
    return min(max(int(told), 1), 600) if re.fullmatch(r"[0-9]{1,6}", told) else 30
