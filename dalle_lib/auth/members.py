"""Lets the hash table call and answer members only."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

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

logger = logging.getLogger(__name__)

MAX_NONCE_BYTES = 64
"""hivemind remembers the nonce of each call for three minutes, and its own have 8 bytes."""


class Members(TokenAuthorizerBase):
    """Sends this peer's access token with its calls, and accepts calls and answers of other members only.

    For `hivemind.DHT(authorizer=...)`, with the identity's file as `identity_path`. `newest` returns the access token
    that this peer holds now: before each call it is asked whether there is another one (`auth.upkeep` renews it).
    Members that `bans` names are none any more.
    Raises Refused for an access token that is not this peer's, or not valid now.
    """

    def __init__(
        self,
        identity: Identity,
        token: AccessToken,
        authority: str,
        run: str,
        newest: Callable[[], AccessToken | None] | None = None,
        bans: Bans | None = None,
    ) -> None:
        super().__init__(identity.private_key)
        self.clocks = ClockWatch()
        self._peer_id, self._authority, self._run = identity.peer_id, authority_key(authority), run
        self._newest, self._bans = newest, bans
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
        """Send the newest access token from now on, if this peer holds another one than before."""
        newest = None if self._newest is None else self._newest()
        if newest is not None and newest != self.token:
            try:
                self._carry(newest)
            except Refused as refused:
                logger.debug("the access token stays as it is: %s", refused)
        await super().refresh_token_if_needed()

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


def clock_offset_s(dht: hivemind.DHT, timeout_s: float | None = None) -> float | None:
    """Return the seconds by which this computer's clock is ahead of other members', as the hash table heard them.

    Raises TimeoutError if it does not answer in time.
    """
    return dht.run_coroutine(_offset_s, return_future=True).result(timeout_s)


async def _offset_s(_dht: hivemind.DHT, node) -> float | None:
    return node.protocol.authorizer.clocks.offset_s


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
