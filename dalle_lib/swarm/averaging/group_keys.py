"""Where averagers look for each other: few keys of the hash table, with records that only their peer can write."""

import asyncio
import contextlib
import math
import time

import hivemind
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging.trust import owner_key
from dalle_lib.swarm.records import writer_of

LOOK_EVERY_S, LOOK_S_PER_PEER = 0.3, 0.03
"""Seconds between two looks at who else is looking for a group: at least, and for each peer that the last one found. A
peer's record has 0.8 kB, so looks of any number of peers take 27 kB a second."""
GROUP_KEYS = 16
"""Keys under which peers of an epoch meet: epochs take turns, as the keys of a run must be few and known."""


def group_keys(rounds: str) -> list[str]:
    """Return the keys of the hash table under which averagers of these rounds look for each other."""
    return [f"{rounds}.0b{bits}" for bits in ("", *map(bits_of, range(GROUP_KEYS)))]


def bits_of(epoch: int) -> str:
    """Return the bits of the key under which peers of this epoch meet."""
    return f"{epoch % GROUP_KEYS:04b}"


class SignedKeyManager(GroupKeyManager):
    """hivemind's view of who else is looking for a group, by records that only their peer can write, at a gentler pace.

    hivemind 1.1.12 writes them under the bare id of a peer, where anybody may, and looks again as soon as the last look
    is done: on a fast network a peer that waits for its group keeps half a core busy, and everybody's hash table too.
    """

    def __init__(self, *args, identity: Identity) -> None:
        super().__init__(*args)
        self.mark = owner_key(identity.public_key)
        """The subkey under which this peer, and nobody else, writes."""
        self.looking: set[PeerID] | None = None
        """Who looked for a group when this peer last looked for them; None until it does in a search."""
        self.gone: set[PeerID] = set()
        """Who has looked for a group during this search, and said since that it does no more: it has one, or leaves."""
        self._next_look = 0.0

    def begin_search(self) -> None:
        """Forget who looked for a group in the search before."""
        self.looking, self.gone = None, set()

    async def declare_averager(
        self, group_key: str, peer_id: PeerID, expiration_time: float, looking_for_group: bool = True
    ) -> bool:
        """Say until when this peer looks for a group, or that it does no more; return whether that was stored."""
        if not looking_for_group:
            expiration_time = math.nextafter(expiration_time, math.inf)  # it replaces what this peer said before
        return await self.dht.store(group_key, looking_for_group, expiration_time, subkey=self.mark, return_future=True)

    async def get_averagers(self, group_key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        """Return the averagers that are looking for a group, and until when; the more there are, the more seldom."""
        await asyncio.sleep(self._next_look - time.monotonic())
        found = await records_under(self.dht, group_key)
        self._next_look = time.monotonic() + max(LOOK_EVERY_S, LOOK_S_PER_PEER * len(found))
        looking = {peer for peer, entry in found.items() if entry.value}
        self.gone = (self.gone | (self.looking or set())) & (found.keys() - looking)
        self.looking = looking
        return [(peer, entry.expiration_time) for peer, entry in found.items() if entry.value or not only_active]


async def records_under(dht: hivemind.DHT, key: str) -> dict[PeerID, ValueWithExpiration]:
    """Return the newest record that each peer has under a key, by its writer; what has no writer is left out."""
    found, records = await dht.get(key, latest=True, return_future=True), {}
    for mark, entry in found.value.items() if found is not None and isinstance(found.value, dict) else ():
        with contextlib.suppress(ValueError, TypeError):
            records[PeerID.from_base58(writer_of(mark))] = entry
    return records
