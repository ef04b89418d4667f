"""Keeps each peer's access token in the hash table, where everybody can look it up and nobody can store a false one.

hivemind shows a validator only the hash of a key, so the keys that it guards must be few and known. There are 256: each
holds a dictionary of the access tokens of about one peer in 256, by peer id.
"""

import asyncio
import hashlib
import logging
import time
from datetime import UTC, datetime
from functools import partial

import hivemind
from hivemind.dht import DHTID, DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils.timed_storage import get_dht_time

from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.bans import Bans
from dalle_lib.auth.held import HeldToken
from dalle_lib.auth.tokens import AccessToken

logger = logging.getLogger(__name__)

BEFORE_SIGNATURES = 20
"""Priority of validators that see a record before hivemind looks for signatures in it. hivemind's regular expressions
take minutes for a megabyte, and cut whatever looks like a signature out of records that need none."""
MISS_S = 1.0
"""Seconds before a peer without an access token is looked up again."""
_SHARDS = 256
_HEADER_BYTES = len(DHTProtocol.serializer.dumps(bytes(1000))) - 1000
"""Bytes that msgpack puts before 256 to 65535 bytes; no access token is shorter or longer."""


def token_key(run_key: str, peer_id: str) -> str:
    """Return the key of the dictionary that holds a peer's access token, under the peer's id."""
    return _key(run_key, hashlib.sha256(peer_id.encode()).digest()[0])


def token_keys(run_key: str) -> list[str]:
    """Return the keys of all dictionaries that hold access tokens of a run, which `TokenValidator` guards."""
    return [_key(run_key, shard) for shard in range(_SHARDS)]


def publish_token(dht: hivemind.DHT, token: AccessToken, run_key: str, timeout_s: float | None = None) -> bool:
    """Return whether a peer's access token, stored where others look it up, can be found there.

    Publish it again from time to time: what the hash table holds is lost with the peers that hold it. Raises
    TimeoutError if this peer's own part of the hash table does not answer in time.
    """
    key = token_key(run_key, token.peer_id)
    # Nobody can ask a peer in client mode for what it holds, so it must hold none of the copies.
    stored = dht.store(
        key,
        token.to_bytes(),
        expiration_time=token.expires.timestamp(),
        subkey=token.peer_id,
        exclude_self=dht.client_mode,
        return_future=True,
    )
    stored.result(timeout_s)  # False if the access token is there already
    return token.to_bytes() in dht.run_coroutine(_look(run_key, token.peer_id), return_future=True).result(timeout_s)


async def find_token(dht: hivemind.DHT, run_key: str, peer_id: str, authority: str, run: str) -> AccessToken | None:
    """Return the valid access token that a peer has published, the one that expires last; None if there is none."""
    copies = await dht.run_coroutine(_look(run_key, peer_id), return_future=True)
    return _best(copies, peer_id, authority, run)


def _look(run_key: str, peer_id: str) -> partial:
    return partial(_copies, key=token_key(run_key, peer_id), peer_id=peer_id)


def _best(copies: set[bytes], peer_id: str, authority: str, run: str) -> AccessToken | None:
    found = []
    for data in copies:
        try:
            token = AccessToken.from_bytes(data)
            check_token_of(peer_id, token, authority_key(authority), run)
            found.append(token)
        except ValueError as error:
            logger.debug("an access token of %s does not count: %s", peer_id, error)
    return max(found, key=lambda token: token.expires, default=None)


async def _copies(_dht: hivemind.DHT, node: DHTNode, key: str, peer_id: str) -> set[bytes]:
    """Return the values under a peer's id in a dictionary, from each peer that should hold a copy of it.

    Runs in the process of the hash table. `DHT.get` of hivemind 1.1.12 ends at the first answer that claims never to
    expire, which may be empty, and keeps that answer forever: one liar could hide a member.
    """
    key_id = DHTID.generate(source=key)
    nearest = (await node.find_nearest_nodes([key_id], k_nearest=node.num_replicas, exclude_self=True))[key_id]
    answers = await asyncio.gather(*(node.protocol.call_find(peer, [key_id]) for peer in nearest.values()))
    copies = [node.protocol.storage.get(key_id)]
    copies += [answer[key_id][0] for answer in answers if answer and key_id in answer]
    entries = [copy.value.get(peer_id) for copy in copies if copy and isinstance(copy.value, DictionaryDHTValue)]
    return {entry.value[_HEADER_BYTES:] for entry in entries if entry}


def check_token_of(peer_id: str, token: AccessToken, authority: bytes, run: str) -> None:
    """Return None if an access token lets that peer take part now. Raises Refused otherwise."""
    token.check_for(peer_id, authority, run, datetime.fromtimestamp(get_dht_time(), UTC))


class TokenValidator(RecordValidatorBase):
    """Lets only access tokens be stored under a run's keys, each under its peer's id and until it expires.

    An expired access token stays valid here: peers' clocks differ, and hivemind drops a whole dictionary if one entry
    is invalid. Entries vanish when their access tokens expire anyway. For the same reason that of a banned peer stays
    valid here, or it would hide others: `Members` lets no banned peer store anything, and `Roster` believes none.
    """

    def __init__(self, authority: str, run: str, run_key: str) -> None:
        self._authority, self._run, self._run_key = authority_key(authority), run, run_key
        self._keys = set(map(_hashed, token_keys(run_key)))

    def validate(self, record: DHTRecord) -> bool:
        """Return whether a record may be stored and believed; records under other keys always may."""
        if record.key not in self._keys:
            return True
        try:
            token = AccessToken.from_bytes(record.value[_HEADER_BYTES:])
            token.check_issued(self._authority, self._run)
        except ValueError as error:
            logger.debug("a record among access tokens is refused: %s", error)
            return False
        expected = DHTRecord(
            _hashed(token_key(self._run_key, token.peer_id)),
            DHTProtocol.serializer.dumps(token.peer_id),
            DHTProtocol.serializer.dumps(token.to_bytes()),
            token.expires.timestamp(),
        )
        return record == expected

    @property
    def priority(self) -> int:
        return BEFORE_SIGNATURES


class Roster:
    """Remembers the members that this process has met; after a fork each process has a copy of its own.

    A member's user and role are those of its first access token, until that one expires or a newer one is learnt.
    """

    def __init__(
        self,
        authority: str,
        run: str,
        run_key: str,
        dht: hivemind.DHT,
        bans: Bans | None = None,
        own: HeldToken | None = None,
    ) -> None:
        """`bans` names members whose access tokens count no more; `own` is this peer's, which may be renewed."""
        self._bans, self._own = bans, own
        self._authority, self._run, self._run_key, self._dht = authority, run, run_key, dht
        self._tokens: dict[str, AccessToken] = {}
        self._missed: dict[str, float] = {}
        self._lookups: dict[str, asyncio.Task] = {}

    def known(self, peer_id: str) -> AccessToken | None:
        """Return the access token of a peer that was met before, if it is still valid; None otherwise."""
        is_own = self._own is not None and peer_id == self._own.peer_id
        token = self._own.now() if is_own else self._tokens.get(peer_id)
        if token is None or get_dht_time() >= token.expires.timestamp() or self._is_banned(token):
            return None
        return token

    def _is_banned(self, token: AccessToken) -> bool:
        return self._bans is not None and self._bans.names(token)

    def learn(self, peer_id: str, token: AccessToken) -> None:
        """Note an access token that a peer has shown. Raises Refused if it does not let that peer take part now."""
        known = self.known(peer_id)
        if known == token:
            return
        check_token_of(peer_id, token, authority_key(self._authority), self._run)
        if self._bans is not None:
            self._bans.check(token)
        if known is None or known.expires < token.expires:
            self._tokens = {peer: valid for peer in self._tokens if (valid := self.known(peer)) is not None}
            self._tokens[peer_id] = token

    async def member(self, peer_id: str) -> AccessToken | None:
        """Return a peer's valid access token, looked up if it is not known; None if it has none."""
        if (token := self.known(peer_id)) is not None or self._was_missed(peer_id):
            return token
        if peer_id not in self._lookups:
            self._lookups[peer_id] = asyncio.create_task(self._look_up(peer_id))
        return await asyncio.shield(self._lookups[peer_id])

    def fetch(self, peer_id: str) -> AccessToken | None:
        """Return what `member` returns, for callers that cannot await it: this blocks during the look-up."""
        if (token := self.known(peer_id)) is not None or self._was_missed(peer_id):
            return token
        copies = self._dht.run_coroutine(_look(self._run_key, peer_id))
        return self._note(peer_id, _best(copies, peer_id, self._authority, self._run))

    async def _look_up(self, peer_id: str) -> AccessToken | None:
        try:
            found = await find_token(self._dht, self._run_key, peer_id, self._authority, self._run)
            return self._note(peer_id, found)
        finally:
            del self._lookups[peer_id]

    def _was_missed(self, peer_id: str) -> bool:
        return time.monotonic() - self._missed.get(peer_id, -MISS_S) < MISS_S

    def _note(self, peer_id: str, found: AccessToken | None) -> AccessToken | None:
        if found is not None and not self._is_banned(found):
            self.learn(peer_id, found)
            return found
        self._missed = {peer: at for peer, at in self._missed.items() if self._was_missed(peer)}
        self._missed[peer_id] = time.monotonic()
        return None


def _key(run_key: str, shard: int) -> str:
    return f"{run_key}_members_{shard:02x}"


def _hashed(key: str) -> bytes:
    return DHTID.generate(source=key).to_bytes()
