"""A run's hash table: searches that end whatever others answer, and peers that stand where they belong.

In hivemind 1.1.12 one answer that cannot be read, or that names ever nearer peers, keeps a search from ending, and with
it whoever waits for its result; one with a false time ends it at once. A peer also chooses its place in the table, or
many places: whoever has the 20 nearest to a key can hide what lies under it. It stores copies of what it has found with
others, and takes in theirs. `install` replaces searches, places and copies in this process and its forks. What the
records are is checked by `records.py`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from hivemind.dht import DHTID, dht, node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import TimedStorage, ValueWithExpiration

from dalle_lib.swarm import calls, records, wire

logger = logging.getLogger(__name__)

SEARCH_S = 10.0
"""Seconds after which a search ends with what it has found: enough for three silent peers, one after the other."""
MAX_ASKED = 200
"""Peers that a search asks at most. hivemind keeps the 20 nearest in view, so few more than these are needed."""
MAX_FOUND, MAX_FOUND_BYTES = 16, 2**19
"""Keys that one call may ask for, as hivemind's do, and bytes that may lie under them if they are several."""
MAX_STORED = 300
"""Records that one call may bring: all 256 dictionaries of access tokens, and a few more."""
_stock_search, _stock_keep = node._SearchState, TimedStorage.store


def install() -> None:
    """Make hivemind decode by `wire.loads`, limit calls, search by `Search`, give peers places, and keep by `keep`."""
    wire.install()
    calls.install()
    node._SearchState = Search
    node.traverse_dht = traverse
    node.DHTProtocol, dht.DHTNode = Protocol, Node
    TimedStorage.store = keep


def keep(storage: TimedStorage, key: Any, value: Any, expires: float) -> bool:
    """Store a value as hivemind does, and return whether it is newer than the one that was there.

    hivemind 1.1.12 takes a note of each attempt, which stays until that would expire: one record, brought again and
    again, fills the memory; and an older one makes the newer one expire with it.
    """
    known = storage.get(key)
    if known is not None and known.expiration_time >= expires:
        return False
    if len(storage.expiration_heap) > 2 * len(storage.data) + 10:
        storage.expiration_heap[:] = sorted(storage.key_to_heap.values())
    return _stock_keep(storage, key, value, expires)


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
        if not responded:
            await super().update_routing_table(node_id, peer_id, responded)
        elif node_id == node_id_of(peer_id):
            # hivemind also hands on to a peer that it has not met what it stores: anybody could ask for all of it by
            # a ping under a new id. Here records are renewed by their writers, who find the new peer.
            longest_silent = self.routing_table.add_or_update_node(node_id, peer_id)
            if longest_silent is not None:
                asyncio.create_task(self.call_ping(longest_silent[1]))  # noqa: RUF006  (as hivemind does)

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]):
        """Return what a peer knows of some keys, and of those who are nearer, without false places.

        Nor does it name this peer, which ends hivemind's stores by an AssertionError, or more peers than any would.
        """
        if (found := await super().call_find(peer, keys)) is None:
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


_silent: ContextVar[set[DHTID]] = ContextVar("silent")
"""Places of the peers that have not answered to the search in progress."""


class Node(node.DHTNode):
    """hivemind's node of the hash table, at the place that follows from its peer's id."""

    node_id = property(lambda self: node_id_of(self.p2p.peer_id), lambda self, chosen: None)

    @classmethod
    async def create(cls, *args, **options) -> "Node":
        """Return a node, which neither keeps nor hands on copies of what it finds: those would be stored by nobody."""
        copies = {"cache_locally": False, "cache_nearest": 0, "cache_on_store": False}
        return await super().create(*args, **options, **copies)

    async def _call_find_with_blacklist(self, peer_id: PeerID, keys: Collection[DHTID]):
        if not (found := await super()._call_find_with_blacklist(peer_id, keys)):
            _silent.get(set()).add(node_id_of(peer_id))
        return found


class Search(_stock_search):
    """hivemind's search for the newest value of one key, which ends by itself, and leaves out what cannot be read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        limit = asyncio.get_running_loop().call_later(SEARCH_S, self.finish_search)
        self.future.add_done_callback(lambda _: limit.cancel())

    def add_candidate(self, candidate: ValueWithExpiration | None, source_node_id: DHTID | None) -> None:
        """Take in an answer. When it expires follows from its entries: hivemind believes whom it asked.

        Of a dictionary it takes a copy: hivemind would add the entries of later answers to the one in its own storage.
        """
        if candidate is not None and isinstance(candidate.value, DictionaryDHTValue):
            entries, times = list(candidate.value.items()), []
            with DictionaryDHTValue().freeze() as copy:
                for subkey, (value, expires) in entries:
                    copy.store(subkey, value, expires)
                    times.append(expires)
            candidate = ValueWithExpiration(copy, max(times)) if times else None
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


async def traverse(
    queries: Collection[DHTID],
    initial_nodes: Collection[DHTID],
    beam_size: int,
    num_workers: int,
    get_neighbors: Callable,
    found_callback: Callable | None = None,
    **_unused,
) -> tuple[dict[DHTID, list[DHTID]], dict[DHTID, set[DHTID]]]:
    """Return the nearest peers to each query that have answered, and all that were asked; as hivemind's traverse_dht.

    Each search ends after SEARCH_S or MAX_ASKED peers. hivemind counts whoever is named among the nearest, before that
    peer has answered: 20 names of nobody end its search. Kademlia (Maymounkov and Mazieres, 2002, section 2.3) takes
    peers that fail to answer out of consideration, and so does this.
    """

    async def search(query: DHTID) -> tuple[list[DHTID], set[DHTID]]:
        found = await _nearest(query, initial_nodes, beam_size, num_workers, get_neighbors)
        if found_callback is not None:
            await found_callback(query, *found)
        return found

    found = dict(zip(queries, await asyncio.gather(*map(search, queries)), strict=True))
    return {query: near for query, (near, _) in found.items()}, {query: asked for query, (_, asked) in found.items()}


async def _nearest(
    query: DHTID, known: Collection[DHTID], count: int, workers: int, get_neighbors: Callable
) -> tuple[list[DHTID], set[DHTID]]:
    """Return the `count` nearest peers that answer, nearest first, and all that were asked."""
    asked, answered, is_over = set(), set(), False
    named, silent = set(known), set()
    _silent.set(silent)  # each search runs in a task of its own
    calls: dict[asyncio.Task, DHTID] = {}
    ends = time.monotonic() + SEARCH_S
    try:
        while not is_over and (left_s := ends - time.monotonic()) > 0:
            nearest = sorted(named - silent, key=query.xor_distance)[:count]
            for peer in [peer for peer in nearest if peer not in asked][: workers - len(calls)]:
                if len(asked) < MAX_ASKED:
                    asked.add(peer)
                    calls[asyncio.create_task(get_neighbors(peer, [query]))] = peer
            if not calls:
                break
            done, _ = await asyncio.wait(calls, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                peer = calls.pop(call)
                if (error := call.exception()) is not None:  # strangers choose what their answer raises
                    logger.debug("an answer to a search is left out: %s: %s", type(error).__name__, error)
                    silent.add(peer)
                    continue
                others, should_end = call.result().get(query, ((), False))
                named.update(others)
                answered.add(peer)
                is_over |= should_end
    finally:
        for call in calls:
            call.cancel()
    return sorted(answered - silent, key=query.xor_distance)[:count], asked
