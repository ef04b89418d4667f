"""Lets the hash table call and answer members only."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import hivemind
from cryptography.hazmat.primitives import serialization
from hivemind.proto import auth_pb2, dht_pb2
from hivemind.utils.auth import TokenAuthorizerBase
from hivemind.utils.crypto import RSAPublicKey
from hivemind.utils.timed_storage import get_dht_time

from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.bans import Bans
from dalle_lib.auth.clocks import ClockWatch
from dalle_lib.auth.identity import Identity
from dalle_lib.auth.tokens import AccessToken, Refused
from dalle_lib.one_line import in_one_line

logger = logging.getLogger(__name__)

RENEW_BEFORE = timedelta(minutes=10)
"""An access token is renewed when it expires within this time."""
MAX_NONCE_BYTES = 64
"""hivemind remembers the nonce of each call for three minutes, and its own have 8 bytes."""
BANS_EVERY = timedelta(minutes=1)
"""How often a member looks for a newer ban list."""
_RETRY_AFTER = timedelta(minutes=1)
_NEVER = datetime.max.replace(tzinfo=UTC)


class Members(TokenAuthorizerBase):
    """Sends this peer's access token with its calls, and accepts calls and answers of other members only.

    For `hivemind.DHT(authorizer=...)`, with the identity's file as `identity_path`. `renew` returns a new access token
    for the same identity; a thread of the hash table's process calls it when the old one expires within RENEW_BEFORE.
    Members that `bans` names are none any more; `look_at_bans`, which that process calls every BANS_EVERY, may change
    its file.
    Raises Refused for an access token that is not this peer's, or not valid now.
    """

    def __init__(
        self,
        identity: Identity,
        token: AccessToken,
        authority: str,
        run: str,
        renew: Callable[[], AccessToken] | None = None,
        bans: Bans | None = None,
        look_at_bans: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(identity.private_key)
        self.clocks = ClockWatch()
        self._peer_id, self._authority, self._run = identity.peer_id, authority_key(authority), run
        self._ask, self._renewal = renew, None
        self._bans, self._look, self._looking, self._look_at = bans, look_at_bans, None, _now()
        self.renewal_problem: str | None = None
        """Why the last attempt to renew the access token failed; None if it did not."""
        self._carry(token)

    def _carry(self, token: AccessToken) -> None:
        """Use this access token from now on. Raises Refused if it is not this peer's, or not valid now."""
        token.check(self._authority, self._run, _now())
        if token.peer_id != self._peer_id:
            raise Refused(
                f"the access token is for peer {token.peer_id}, but this is {self._peer_id}: ask for one for this "
                "identity, or take the identity file that it was issued for."
            )
        self.token = token
        self._act_at = token.expires - RENEW_BEFORE

    async def get_token(self) -> auth_pb2.AccessToken:
        """Return the access token as hivemind sends it with each call."""
        return _message(self.token)

    def does_token_need_refreshing(self, access_token: auth_pb2.AccessToken) -> bool:
        """Return whether this peer has a newer access token than the one that hivemind sends."""
        return access_token.signature != self.token.to_bytes()

    def is_token_valid(self, access_token: auth_pb2.AccessToken) -> bool:
        """Return whether an access token is a member's and has not expired."""
        try:
            self._issued(access_token).check_unexpired(_now())
        except ValueError as error:
            logger.debug("refused: %s", error)
            return False
        return True

    def _issued(self, message: auth_pb2.AccessToken) -> AccessToken:
        """Return the access token in a message, expired or not. Raises ValueError if the authority did not issue it."""
        token = AccessToken.from_bytes(message.signature)
        token.check_issued(self._authority, self._run)
        if self._bans is not None:
            self._bans.check(token)
        if message != _message(token):
            raise Refused("hivemind's fields do not say what the authority signed")
        return token

    async def refresh_token_if_needed(self) -> None:
        """Renew the access token before it expires, in the background: calls must not wait for a slow server."""
        now = _now()
        if now >= self._act_at:
            if self._ask is None:
                self._tell_of_the_end(now)
            elif self._renewal is None or self._renewal.done():
                self._act_at = now + _RETRY_AFTER
                self._renewal = asyncio.create_task(self._renew())
        if self._look is not None and now >= self._look_at and (self._looking is None or self._looking.done()):
            self._look_at = now + BANS_EVERY
            self._looking = asyncio.create_task(self._look_for_bans())
        await super().refresh_token_if_needed()

    async def _look_for_bans(self) -> None:
        try:
            await asyncio.to_thread(self._look)
        except (OSError, ValueError) as error:  # the list that is known counts on
            logger.warning("No newer ban list was read: %s", error)

    def _tell_of_the_end(self, now: datetime) -> None:
        """Log that nobody renews the access token: a warning before it expires, an error after that."""
        if now < self.token.expires:
            minutes = (self.token.expires - now).total_seconds() / 60
            logger.warning(
                "This peer's access token expires in %.0f minutes and is not renewed: other members will then refuse "
                "this peer. Ask for a new one, and start the peer again.",
                minutes,
            )
            self._act_at = self.token.expires
        else:
            logger.error("This peer's access token has expired: get a new one, and start the peer again.")
            self._act_at = _NEVER

    async def _renew(self) -> None:
        try:
            self._carry(await asyncio.to_thread(self._ask))
        except Exception as error:  # `renew` may raise anything, and the old access token may still be valid
            self._act_at = _now() + max(_RETRY_AFTER, timedelta(seconds=getattr(error, "retry_after_s", 0)))
            self.renewal_problem = in_one_line(error)
            logger.warning(
                "This peer's access token, which expires at %s, could not be renewed (%s: %s); trying again in %.0f s.",
                f"{self.token.expires:%Y-%m-%d %H:%M:%S} UTC",
                type(error).__name__,
                error,
                (self._act_at - _now()).total_seconds(),
            )
        else:
            self.renewal_problem = None
            logger.info("This peer's access token was renewed.")

    async def validate_request(self, request) -> bool:
        """Return whether a member made this call, within a minute by our clock; a ping may be older or from the future.

        Our answer to a ping tells our time, so its sender can learn that their clock is off. hivemind 1.1.12 neither
        answers them nor logs it.
        """
        if len(request.auth.nonce) > MAX_NONCE_BYTES:
            return False
        sender, ahead_s = request.auth.client_access_token, request.auth.time - get_dht_time()
        if abs(ahead_s) <= self._MAX_CLIENT_SERVICER_TIME_DIFF.total_seconds():
            is_valid = is_signed = await super().validate_request(request)
        else:  # NaN too, which passes hivemind 1.1.12's own check
            is_signed = self._is_signed(request, sender)
            is_valid = is_signed and isinstance(request, dht_pb2.PingRequest) and self.is_token_valid(sender)
        if is_signed:
            self.clocks.hear(sender.public_key, sender.username, ahead_s)
        return is_valid

    async def validate_response(self, response, request) -> bool:
        """Return whether a member gave this answer to our call."""
        is_answer = isinstance(response, dht_pb2.PingResponse) and response.auth.nonce == request.auth.nonce
        sender = response.auth.service_access_token
        # The sender's access token may have expired by our clock: if our clock is wrong, this is how we learn it.
        if is_answer and self._is_signed(response, sender):
            # The sender read their clock between our call and now; only what lies outside is a difference.
            since_sent_s, since_now_s = response.dht_time - request.auth.time, response.dht_time - get_dht_time()
            self.clocks.hear(sender.public_key, sender.username, min(since_sent_s, 0.0) + max(since_now_s, 0.0))
        return await super().validate_response(response, request)

    def _is_signed(self, message, sender: auth_pb2.AccessToken) -> bool:
        """Return whether the owner of the access token signed a message; the token may have expired."""
        try:
            self._issued(sender)
        except ValueError as error:
            logger.debug("refused: %s", error)
            return False
        signature, message.auth.signature = message.auth.signature, b""
        is_signed = RSAPublicKey.from_bytes(sender.public_key).verify(message.SerializeToString(), signature)
        message.auth.signature = signature
        return is_signed


def current_token(dht: hivemind.DHT) -> AccessToken:
    """Return the access token that a hash table with `Members` sends now, which may have been renewed."""
    return dht.run_coroutine(partial(_ask_members, question=_token_of))


def clock_offset_s(dht: hivemind.DHT) -> float | None:
    """Return the seconds by which this computer's clock is ahead of other members', as the hash table heard them."""
    return dht.run_coroutine(partial(_ask_members, question=_offset_of))


def renewal_problem(dht: hivemind.DHT) -> str | None:
    """Return why a peer's access token could not be renewed, and until when it counts; None if nothing is wrong."""
    return dht.run_coroutine(partial(_ask_members, question=_problem_of))


async def _ask_members(_dht: hivemind.DHT, node, question: Callable[[Members], object]) -> object:
    return question(node.protocol.authorizer)


def _token_of(members: Members) -> AccessToken:
    return members.token


def _problem_of(members: Members) -> str | None:
    if members.renewal_problem is None:
        return None
    until = f"{members.token.expires:%H:%M} UTC"
    counts = f"counts until {until}" if _now() < members.token.expires else f"ended at {until}, so others refuse it"
    return f"this peer's access token {counts} and was not renewed: {members.renewal_problem}"


def _offset_of(members: Members) -> float | None:
    return members.clocks.offset_s


def _message(token: AccessToken) -> auth_pb2.AccessToken:
    """Return an access token as hivemind sends it: whole as the signature, with some fields repeated in hivemind's."""
    key = serialization.load_der_public_key(token.public_key)
    return auth_pb2.AccessToken(
        username=token.user,
        public_key=key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
        expiration_time=token.expires.isoformat(),
        signature=token.to_bytes(),
    )


def _now() -> datetime:
    return datetime.fromtimestamp(get_dht_time(), UTC)
