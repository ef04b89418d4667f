"""A run's hash table: searches that end whatever others answer, and peers that stand where they belong.

In hivemind 1.1.12 one answer that cannot be read, or that names ever nearer peers, keeps a search from ending, and with
it whoever waits for its result; one with a false time ends it at once. A peer also chooses its place in the table, or
many places: whoever has the 20 nearest to a key can hide what lies under it. `install` replaces searches and places in
this process and its forks. What the records are is checked by `records.py`.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from functools import lru_cache

from hivemind.dht import DHTID, dht, node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import ValueWithExpiration

from dalle_lib.swarm import calls, records, wire

logger = logging.getLogger(__name__)

SEARCH_S = 10.0
"""Seconds after which a search ends with what it has found: enough for three silent peers, one after the other."""
MAX_ASKED = 200
"""Peers that a search asks at most. hivemind keeps the 20 nearest in view, so few more than these are needed."""
_stock_search, _stock_traverse = node._SearchState, node.traverse_dht


def install() -> None:
    """Make hivemind decode messages by `wire.loads`, limit calls, search by `Search` and give each peer its place."""
    wire.install()
    calls.install()
    node._SearchState = Search
    node.traverse_dht = traverse
    node.DHTProtocol, dht.DHTNode = Protocol, Node


@lru_cache(maxsize=10_000)
def node_id_of(peer: PeerID) -> DHTID:
    """Return the place of a peer in the hash table, which follows from its id, so that it has one only."""
    return DHTID.generate(source=peer.to_bytes())


class Protocol(DHTProtocol):
    """hivemind's calls of the hash table, which know peers at their own places only, and who asks to store a record."""

    # hivemind keeps the handlers of a class there, under the name of that class.
    _rpc_handlers = _stub_type = None

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        return DHTProtocol._get_handle_name(namespace, method_name)

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Take note that a peer has called or answered, unless it claims another place than its own."""
        if node_id is None or node_id == node_id_of(peer_id):
            await super().update_routing_table(node_id, peer_id, responded)

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]):
        """Return what a peer knows of some keys, and of those who are nearer, without false places."""
        if (found := await super().call_find(peer, keys)) is None:
            return None
        return {
            key: (value, {place: other for place, other in nearest.items() if place == node_id_of(other)})
            for key, (value, nearest) in found.items()
        }

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Store the records that a peer may store."""
        before = records.storing.set(str(context.remote_id))
        try:
            return await super().rpc_store(request, context)
        finally:
            records.storing.reset(before)


class Node(node.DHTNode):
    """hivemind's node of the hash table, at the place that follows from its peer's id."""

    node_id = property(lambda self: node_id_of(self.p2p.peer_id), lambda self, chosen: None)


class Search(_stock_search):
    """hivemind's search for the newest value of one key, which ends by itself, and leaves out what cannot be read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        limit = asyncio.get_running_loop().call_later(SEARCH_S, self.finish_search)
        self.future.add_done_callback(lambda _: limit.cancel())

    def add_candidate(self, candidate: ValueWithExpiration | None, source_node_id: DHTID | None) -> None:
        """Take in an answer. When it expires follows from its entries: hivemind believes whom it asked."""
        if candidate is not None and isinstance(candidate.value, DictionaryDHTValue):
            times = [entry.expiration_time for _, entry in candidate.value.items()]
            candidate = ValueWithExpiration(candidate.value, max(times)) if times else None
        if candidate is not None and wire.is_time(candidate.expiration_time):
            super().add_candidate(candidate, source_node_id)

    def finish_search(self) -> None:
        """Hand over what was found: of a dictionary, the entries that can be read."""
        if self.finished:
            return
        found = None
        if isinstance(self.binary_value, DictionaryDHTValue):
            read = {subkey: self._read(wire.dumps(subkey), item) for subkey, item in self.binary_value.items()}
            entries = {subkey: entry for subkey, entry in read.items() if entry is not None}
            found = ValueWithExpiration(entries, self.expiration_time)
        elif self.found_something:
            item = ValueWithExpiration(self.binary_value, self.expiration_time)
            found = self._read(DHTProtocol.IS_REGULAR_VALUE, item)
        self.future.set_result(found)

    def _read(self, subkey: bytes, item: ValueWithExpiration) -> ValueWithExpiration | None:
        record = DHTRecord(self.key_id.to_bytes(), subkey, item.value, item.expiration_time)
        value = item.value if self.record_validator is None else self.record_validator.strip_value(record)
        try:
            return ValueWithExpiration(wire.loads(value), item.expiration_time)
        except ValueError as error:
            logger.debug("a record of the hash table is left out: %s", error)
            return None


async def traverse(queries: Collection[DHTID], *, get_neighbors, **kwargs):
    """Return what hivemind's traverse_dht does, after at most SEARCH_S and MAX_ASKED peers.

    A peer whose answer is none, whatever it is, counts as one that knows nobody.
    """
    asked, ends = 0, time.monotonic() + SEARCH_S

    async def ask(peer: DHTID, wanted: Collection[DHTID]) -> dict[DHTID, tuple[tuple[DHTID, ...], bool]]:
        nonlocal asked
        asked += 1
        if asked > MAX_ASKED or time.monotonic() > ends:
            return dict.fromkeys(wanted, ((), True))
        try:
            return await get_neighbors(peer, wanted)
        except Exception as error:  # strangers choose what their answer raises
            logger.debug("an answer to a search is left out: %s: %s", type(error).__name__, error)
            return dict.fromkeys(wanted, ((), False))

    return await _stock_traverse(queries, get_neighbors=ask, **kwargs)
