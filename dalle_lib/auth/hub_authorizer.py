"""The peer's side of an authority's server: proves an identity, gets and renews access tokens, follows the ban list.

Hub tokens pass through here once, to the server, and are kept nowhere.
"""

import base64
import json
import logging
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.bans import BANS, MAX_BYTES, Bans
from dalle_lib.auth.held import HeldToken
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.proof_time import note_proof
from dalle_lib.auth.signing import Refused, signed_text
from dalle_lib.auth.tokens import AccessToken
from dalle_lib.hub_http import httpx
from dalle_lib.names import is_web_address
from dalle_lib.one_line import printable

if TYPE_CHECKING:
    from dalle_lib.run import RunCard

logger = logging.getLogger(__name__)

TIMEOUT_S = 20.0
"""Seconds in which the server must have answered; each part of an answer has half of that."""
MAX_ANSWER_BYTES = 64 << 10
MAX_LETTERS = 600
"""Letters of a text from the server, at most."""
INTERVAL_S = range(1, 61)
"""Seconds between questions whether the user has approved."""
MAX_FLOW_S = 1800.0
BANS_EVERY_S, BANS_EVERY = 60, range(5, 3601)
"""Seconds between two looks at the ban list: where the server does not say, and what it may say (max-age)."""
PROVE = "start the peer again with dalle-lib join, which asks who you are"
_TEMPORARY = ("too_many_tries", "hub_away", "busy", "fault")
_HUB_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


class AuthorityAway(ConnectionError):
    """The authority's server does not answer, or not now: nobody is refused."""

    retry_after_s = 0


class NotAdmitted(Refused):
    """The authority refuses: the text says what was expected, what to do, and at which link."""

    def __init__(self, code: str, told: str) -> None:
        super().__init__(told)
        self.code = code


@dataclass(frozen=True)
class DeviceCode:
    """What a user needs to prove who they are, on any device with a browser."""

    page: str
    """The authority's page, which names run and peer, and leads on to the Hub."""
    link: str
    """Where the Hub asks for the code."""
    code: str
    expires_s: int
    """Seconds in which the user must have approved."""
    proof_until: float | None = None
    """Until when their approval counts, in seconds since 1970; None where the authority does not say."""


class HubAuthorizer:
    """Gets the access token of one peer from the server that its run's card names.

    The access token is kept in the peer's folder, for its owner alone, and the ban list beside it. Each method that
    asks the server raises NotAdmitted, with the cause and the remedy, if it refuses, and AuthorityAway, a
    ConnectionError, if it cannot answer now.
    """

    def __init__(self, card: "RunCard", key: PeerKey, folder: str | Path, peer_name: str = "volunteer") -> None:
        """Raises ValueError for a run whose card names no server."""
        if card.members is None or card.members.server is None:
            raise ValueError(f"expected a card with the address of its authority's server, but {card.name} has none.")
        self.run, self.name = card.name, peer_name
        self.server, self.authority = card.members.server.rstrip("/"), authority_key(card.members.authority)
        self.key, self.held = key, HeldToken(folder, key.peer_id, self.authority, self.run)
        self.bans = Bans(Path(folder) / BANS, self.authority, self.run)
        self._etag = ""

    def __repr__(self) -> str:
        return f"HubAuthorizer(run={self.run!r}, server={self.server!r}, peer_id={self.key.peer_id!r})"

    def kept(self) -> AccessToken | None:
        """Return the access token in the folder if it lets this peer take part now; None otherwise."""
        held = self.held.counting()
        return None if held is None or self.bans.names(held) else held

    def prove_by_code(self, show: Callable[[DeviceCode], None]) -> AccessToken:
        """Return an access token once the user has approved on the Hub what `show` tells them; this waits for it."""
        _, told = self._post("/device", self._signed("device", **self._peer()), 201)
        handle = _text(told, "handle")
        if not re.fullmatch(r"[\w-]{8,200}", handle, re.ASCII):
            raise self._unreadable()
        expires_s = min(_number(told, "expires_s"), MAX_FLOW_S)
        page, link, code = _link(_text(told, "page")), _link(_text(told, "url")), _text(told, "code")
        show(DeviceCode(page, link, code, int(expires_s), _time(told, "proof_until")))
        deadline = time.monotonic() + expires_s
        interval_s = _number(told, "interval_s")
        while True:
            time.sleep(min(max(interval_s, INTERVAL_S[0]), INTERVAL_S[-1]))
            try:
                status, told = self._post(f"/device/{handle}", self._signed("poll", nonce=handle), 200, 202)
            except AuthorityAway as away:
                if time.monotonic() > deadline:
                    raise
                logger.info("%s; asking again", away)
                interval_s = max(interval_s, away.retry_after_s)
                continue
            if status == 200:
                return self._keep(told)
            interval_s = _number(told, "interval_s")
            if time.monotonic() > deadline + INTERVAL_S[-1]:
                raise NotAdmitted("code_expired", "expected an approval before the code expired: begin again.")

    def prove_by_token(self, hub_token: str) -> AccessToken:
        """Return an access token for the peer of the user whose Hub token this is; the server alone is told it."""
        if not _HUB_TOKEN.fullmatch(hub_token):
            raise NotAdmitted("bad_hub_token", "expected a Hub token of one word, but this is none: copy it again.")
        headers = {"Authorization": f"Bearer {hub_token}"}
        return self._keep(self._post("/token", self._signed("token", **self._peer()), 200, headers=headers)[1])

    def prove_by_key(self) -> AccessToken:
        """Return an access token for a peer of the run's organiser, which the authority's settings name by its id."""
        return self._keep(self._post("/peer", self._signed("peer", **self._peer()), 200)[1])

    def renew(self) -> AccessToken:
        """Return a new access token in the place of the one in the folder, which may have expired.

        The server gives one as long as the user's proof of who they are counts, and to a peer of the organiser by its
        key, whatever the server has forgotten.
        """
        if (held := self.held.now()) is None:
            raise NotAdmitted("proof_expired", f"expected an access token of this peer in {self.held.file}: {PROVE}.")
        body = self._signed("renewal", access_token=base64.b64encode(held.to_bytes()).decode())
        try:
            return self._keep(self._post("/renewal", body, 200)[1])
        except NotAdmitted as refused:
            if refused.code != "proof_expired":
                raise
            try:
                return self.prove_by_key()
            except NotAdmitted:
                raise refused from None

    def look_at_bans(self) -> int:
        """Write the newest ban list to the folder, if there is a newer one; return the seconds until the next look.

        Raises ValueError for a false one.
        """
        headers = {"If-None-Match": self._etag} if self._etag and self.bans.current() is not None else {}
        status, answered, data = self._ask("GET", "/bans", MAX_BYTES, headers=headers)
        if status not in (200, 304):
            self._refuse(status, data)
        if status == 200:
            self.bans.keep(data)
            tag = answered.get("etag", "")
            self._etag = tag if re.fullmatch(r"[\x21-\x7e]{1,100}", tag) else ""
        told = re.fullmatch(r"max-age=([0-9]{1,6})", answered.get("cache-control", ""))
        every_s = int(told[1]) if told else BANS_EVERY_S
        return min(max(every_s, BANS_EVERY[0]), BANS_EVERY[-1])

    def _peer(self) -> dict[str, str]:
        key = base64.b64encode(self.key.public_key).decode()
        return {"public_key": key, "peer_name": self.name, "platform": platform.system()[:64]}

    def _signed(self, purpose: str, nonce: str | None = None, **fields: str) -> dict:
        """Return a request's body with this peer's signature; `nonce` is the handle where one is asked for."""
        body: dict = {"time": int(time.time()), **fields}
        if nonce is None:
            body["nonce"] = nonce = secrets.token_urlsafe(24)
        signature = self.key.sign(signed_text(purpose, self.run, nonce, body["time"]))
        return body | {"signature": signature}

    def _keep(self, told: dict) -> AccessToken:
        try:
            data = base64.b64decode(_text(told, "access_token", 8192), validate=True)
        except ValueError:
            raise self._unreadable() from None
        proof_until = _time(told, "proof_until")
        token = self.held.keep(data)
        note_proof(self.held.file.parent, proof_until)
        return token

    def _post(self, path: str, body: dict, *expected: int, headers: dict[str, str] | None = None) -> tuple[int, dict]:
        status, _, data = self._ask("POST", path, MAX_ANSWER_BYTES, json=body, headers=headers or {})
        if status not in expected:
            self._refuse(status, data)
        return status, self._read(data)

    def _ask(self, method: str, path: str, max_bytes: int, headers: dict[str, str], **options):
        """Return status, headers and body of the answer. A client for each: processes that fork share none."""
        deadline, data = time.monotonic() + TIMEOUT_S, b""
        url = f"{self.server}/runs/{self.run}{path}"
        try:
            with (
                httpx.Client(timeout=TIMEOUT_S / 2, follow_redirects=False) as http,
                _closed_after(TIMEOUT_S, http),
                http.stream(method, url, headers=headers | {"Accept-Encoding": "identity"}, **options) as response,
            ):
                for piece in response.iter_raw():
                    data += piece
                    if len(data) > max_bytes or time.monotonic() > deadline:
                        raise self._away("sends without end")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if isinstance(error, AuthorityAway):
                raise
            raise self._away(f"cannot be reached ({type(error).__name__})") from None
        return response.status_code, response.headers, data

    def _refuse(self, status: int, data: bytes) -> None:
        """Raise what an answer with another status than expected says."""
        if 300 <= status < 400:
            raise self._away(f"answers that it has moved ({status}): does its organiser have a newer card?")
        try:
            told = self._read(data)
            code, words = _text(told, "error"), [_text(told, "message"), _text(told, "remedy")]
            if "link" in told:
                words.append(_link(_text(told, "link")))
        except AuthorityAway:
            raise self._away(f"answers {status}, without a reason") from None
        if code in _TEMPORARY:
            away = self._away(f"says: {' '.join(words)}")
            away.retry_after_s = min(_number(told, "retry_after_s"), 600) if "retry_after_s" in told else 0
            raise away
        raise NotAdmitted(code, f"the authority of {self.run} refuses this peer: {' '.join(words)}")

    def _read(self, data: bytes) -> dict:
        try:
            told = json.loads(data)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise self._unreadable()
        return told

    def _unreadable(self) -> AuthorityAway:
        return self._away("gives an answer that cannot be read: is this kit too old, or something else in its place?")

    def _away(self, why: str) -> AuthorityAway:
        return AuthorityAway(f"the authority of {self.run}, {self.server}, {why}")


@contextmanager
def _closed_after(seconds: float, http: httpx.Client) -> Iterator[None]:
    """Close a client's connections if the block takes longer: headers that come a letter at a time have no end else."""
    timer = threading.Timer(seconds, http.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _text(told: dict, name: str, longest: int = MAX_LETTERS) -> str:
    """Return a text that the server told. Raises AuthorityAway if there is none, or a longer one."""
    text = told.get(name)
    if not isinstance(text, str) or not text or len(text) > longest:
        raise AuthorityAway(f"the authority's answer has no {name} that can be read: update dalle-lib, or try later.")
    return printable(text)


def _number(told: dict, name: str) -> float:
    number = told.get(name)
    if type(number) is not int or not 0 <= number < 2**40:
        raise AuthorityAway(f"the authority's answer has no {name} that can be read: update dalle-lib, or try later.")
    return float(number)


def _time(told: dict, name: str) -> float | None:
    """Return a time that the server told, in seconds since 1970; None without one, as from older authorities."""
    return _number(told, name) if name in told else None


def _link(link: str) -> str:
    """Return a link that may be shown. Raises AuthorityAway for one that is neither https nor of this machine."""
    if is_web_address(link) and "@" not in link:
        return link
    raise AuthorityAway(f"the authority names a link that is no https address: {link!r:.200}. Ask the organiser.")
