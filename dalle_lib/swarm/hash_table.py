"""A run's hash table: peers stand where they belong, and keep what its writer brings.

In hivemind 1.1.12 a peer chooses its place in the table, or many places: whoever has the 20 nearest to a key can hide
what lies under it. It stores copies of what it has found with others, and takes in theirs. `install` replaces places,
copies and searches (`searches.py`) in this process and its forks. What the records are is checked by `records.py`.
The table is a process of its own, which outlives those that ask it (`Inbox`).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from hivemind.dht import DHTID, dht, node
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import TimedStorage

from dalle_lib.swarm import calls, records, searches, wire

MAX_FOUND, MAX_FOUND_BYTES = 16, 2**19
"""Keys that one call may ask for, as hivemind's do, and bytes that may lie under them if they are several."""
MAX_STORED = 300
"""Records that one call may bring: all 256 dictionaries of access tokens, and a few more."""
SILENT_S = 5.0
"""Seconds for which a peer that has not answered is not asked again."""
REMEMBERED = 2048
"""Records of which it is remembered whether they are signed: each is found again and again."""
_stock_keep = TimedStorage.store
_stock_run = dht.DHT.run
_stock_is_signed = RSASignatureValidator.validate


def install() -> None:
    """Make hivemind decode by `wire.loads`, limit calls, search as here, give peers places, and keep by `keep`."""
    wire.install()
    calls.install()
    dht.DHT.run = serve
    node._SearchState, node.traverse_dht = searches.Search, searches.traverse
    node.DHTProtocol, dht.DHTNode = Protocol, Node
    TimedStorage.store = keep
    RSASignatureValidator.validate = is_signed


def keep(storage: TimedStorage, key: Any, value: Any, expiration_time: float) -> bool:
    """Store a value as hivemind does, and return whether it is newer than the one that was there.

    hivemind 1.1.12 takes a note of each attempt, which stays until that would expire: one record, brought again and
    again, fills the memory; and an older one makes the newer one expire with it.
    """
    known = storage.get(key)
    if known is not None and known.expiration_time >= expiration_time:
        return False
    if len(storage.expiration_heap) > 2 * len(storage.data) + 10:
        storage.expiration_heap[:] = sorted(storage.key_to_heap.values())
    return _stock_keep(storage, key, value, expiration_time)


@lru_cache(maxsize=REMEMBERED)
def is_signed(validator: RSASignatureValidator, record: DHTRecord) -> bool:
    """Return whether a record is signed by all whose marks it bears, as hivemind does; the answer never changes."""
    return _stock_is_signed(validator, record)


class Inbox:
    """The pipe from which the table's process reads what it is asked.

    A question holds file descriptors of the process that asks. When that has just ended, reading them raises EOFError
    or AuthenticationError, at which hivemind 1.1.12 ends the table; at a ConnectionError it goes on.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.fileno, self.poll = pipe.fileno, pipe.poll

    def recv(self) -> Any:
        """Return the next question. Raises ConnectionError if nobody can read it, EOFError if none will come."""
        question = self._pipe.recv_bytes()
        try:
            return ForkingPickler.loads(question)
        except Exception as error:
            raise ConnectionError(f"the process that asked the hash table has ended: {error!r}") from error


def serve(table: dht.DHT) -> None:
    """Be the table's process, as hivemind is, with an `Inbox`."""
    table._inner_pipe = Inbox(table._inner_pipe)
    _stock_run(table)


@lru_cache(maxsize=10_000)
def node_id_of(peer: PeerID) -> DHTID:
    """Return the place of a peer in the hash table, which follows from its id, so that it has one only."""
    return DHTID.generate(source=peer.to_bytes())


class Protocol(DHTProtocol):
    """hivemind's calls of the hash table, which know peers at their own places only, and who asks to store a record."""

    # hivemind keeps the handlers of a class there, under the name of that class.
    _rpc_handlers = _stub_type = None

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.keepers = searches.Keepers()

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        return DHTProtocol._get_handle_name(namespace, method_name)

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Take note that a peer has called or answered, unless it claims another place than its own."""
        if not responded:
            await super().update_routing_table(node_id, peer_id, responded)
        elif node_id == node_id_of(peer_id):
            # hivemind also hands on to a peer that it has not met what it stores: anybody could ask for all of it by
            # a ping under a new id. Here records are renewed by their writers, who find the new peer.
            longest_silent = self.routing_table.add_or_update_node(node_id, peer_id)
            if longest_silent is not None:
                asyncio.create_task(self.call_ping(longest_silent[1]))  # noqa: RUF006  (as hivemind does)

    async def call_store(self, peer: PeerID, keys: Sequence[DHTID], *args, **options) -> list[bool] | None:
        """Store records with a peer, and return which it has taken; None if it does not answer."""
        if (taken := await super().call_store(peer, keys, *args, **options)) is None:
            self.keepers.forget(peer)
        return taken

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]):
        """Return what a peer knows of some keys, and of those who are nearer, without false places.

        Nor does it name this peer, which ends hivemind's stores by an AssertionError, or more peers than any would.
        """
        if (found := await super().call_find(peer, keys)) is None:
            self.keepers.forget(peer)
            return None
        return {key: (value, self._plausible(nearest)) for key, (value, nearest) in found.items()}

    def _plausible(self, nearest: dict[DHTID, PeerID]) -> dict[DHTID, PeerID]:
        named = {} if len(nearest) > self.bucket_size else nearest
        return {place: peer for place, peer in named.items() if place == node_id_of(peer) and place != self.node_id}

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Answer what lies under some keys. Raises ValueError if that is more than one answer holds."""
        keys = list(map(DHTID.from_bytes, request.keys[:MAX_FOUND]))
        if len(request.keys) > MAX_FOUND or (len(keys) > 1 and sum(map(self._bytes_under, keys)) > MAX_FOUND_BYTES):
            raise ValueError(f"asked for {len(request.keys):,} keys at once: ask for fewer")
        return await super().rpc_find(request, context)

    def _bytes_under(self, key: DHTID) -> int:
        if (found := self.storage.get(key)) is None:
            return 0
        if isinstance(found.value, DictionaryDHTValue):
            return sum(len(subkey) + len(entry.value) for subkey, entry in found.value.items())
        return len(found.value)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Store the records that a peer may store; none of more than MAX_STORED, or of copies for others' searches."""
        if len(request.keys) > MAX_STORED or any(request.in_cache):
            return dht_pb2.StoreResponse(store_ok=[False] * len(request.keys), peer=self.node_info)
        before = records.storing.set(str(context.remote_id))
        try:
            return await super().rpc_store(request, context)
        finally:
            records.storing.reset(before)


class Node(node.DHTNode):
    """hivemind's node of the hash table, at the place that follows from its peer's id."""

    node_id = property(lambda self: node_id_of(self.p2p.peer_id), lambda self, chosen: None)

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.namers = searches.Namers()

    @classmethod
    async def create(cls, *args, **options) -> "Node":
        """Return a node, which neither keeps nor hands on copies of what it finds: those would be stored by nobody.

        In stock hivemind a peer that was silent for an hour is not asked for the next one, though it is back.
        """
        copies = {"cache_locally": False, "cache_nearest": 0, "cache_on_store": False}
        return await super().create(*args, **options, **copies, blacklist_time=SILENT_S, backoff_rate=1.0)

    async def find_nearest_nodes(
        self,
        queries: Collection[DHTID],
        *,
        found_callback: Callable | None = None,
        node_to_peer_id: dict[DHTID, PeerID] | None = None,
        **options,
    ) -> dict[DHTID, dict[DHTID, PeerID]]:
        """Return the nearest peers to each of these keys; whoever stores a record looks for them first.

        hivemind asks all peers on the way for what lies under the key, and checks it, though nobody wants it. Here they
        are asked for the place beside the key, which has the same nearest peers and holds nothing. And who stores again
        soon goes to those who have it: `found_callback` is called with them at once.
        """
        keepers, ids = self.protocol.keepers, node_to_peer_id
        known = {key: peers for key in queries if found_callback and (peers := keepers.of(key))}
        places = {DHTID(key ^ 1): key for key in queries if key not in known}

        async def found(place: DHTID, nearest: list[DHTID], asked: set[DHTID]) -> None:
            keepers.note(places[place], {peer: ids[peer] for peer in nearest})
            await found_callback(places[place], nearest, asked)

        for peers in known.values():
            ids.update(peers)
        nearest, *_ = await asyncio.gather(
            super().find_nearest_nodes(
                list(places), found_callback=found_callback and found, node_to_peer_id=ids, **options
            ),
            *(found_callback(key, list(peers), set(peers)) for key, peers in known.items()),
        )
        return {places[place]: peers for place, peers in nearest.items()} | known

    async def _call_find_with_blacklist(self, peer_id: PeerID, keys: Collection[DHTID]):
        was_asked = peer_id not in self.blacklist  # hivemind asks nobody for a while who did not answer
        found = await super()._call_find_with_blacklist(peer_id, keys)
        if was_asked:
            self.namers.note(peer_id, bool(found))
        if not found:
            searches.unanswered.get(set()).add(node_id_of(peer_id))
            if len(self.blacklist.ban_counter) > searches.MAX_NAMES:
                self.blacklist.clear()  # hivemind counts for ever how often each peer was silent
            return None
        known = self.protocol.routing_table
        return {key: (value, self.namers.followed(peer_id, named, known)) for key, (value, named) in found.items()}


async def call_again(_dht: dht.DHT, node: Node, peers: list[PeerID]) -> None:
    """Ping these peers: those that answer return to this peer's routing table, and it returns to theirs.

    Runs in the process of the hash table.
    """
    for peer, answer in zip(peers, await asyncio.gather(*map(node.protocol.call_ping, peers)), strict=True):
        if answer is not None:
            node.blacklist.register_success(peer)
