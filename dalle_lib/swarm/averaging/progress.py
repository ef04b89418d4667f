"""Estimates how far the run is from its peers' records of themselves, believed within bounds."""

import asyncio
import random
import statistics
import time
from collections import Counter
from functools import partial

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.multiaddr import Multiaddr
from pydantic.v1 import ValidationError

from dalle_lib.swarm.averaging.trust import Trust

Records = dict[bytes, ValueWithExpiration]
FIRST_PEERS_EVERY_S = 60.0
"""How often a peer pings the run's first peers: one that comes back has forgotten everybody."""
MAX_CALLED = 50
"""Peers that are pinged at once. hivemind 1.1.12 loses its way in a message to the hash table of over 16 KiB, which
names 160 of them."""
PEER_ID_BYTES = 64
"""A longer id is no peer's, and takes seconds to write in base 58."""


async def call_again(_dht: hivemind.DHT, node: DHTNode, peers: list[PeerID]) -> None:
    """Ping these peers: those that answer return to this peer's routing table, and it returns to theirs.

    Runs in the process of the hash table.
    """
    for peer, answer in zip(peers, await asyncio.gather(*map(node.protocol.call_ping, peers)), strict=True):
        if answer is not None:
            node.blacklist.register_success(peer)


class PlausibleProgress(ProgressTracker):
    """hivemind's progress tracker, which believes members only, and what they claim only within bounds.

    hivemind 1.1.12 takes the highest epoch that anybody claims, and adds up the samples that everybody claims: one
    false record makes all peers think they are behind, or ends each epoch at once. Here a claimed epoch counts if it is
    at most one beyond the median of the others' or beyond this peer's own. Samples and speed are capped. A newcomer
    counts itself before its record appears, so one other peer makes two.

    hivemind also forgets a peer for good once it did not answer: after a computer has slept for some seconds, it and
    the others may have lost each other, and it would train on alone. Here a peer without others pings those that it
    knew last, and the run's first peers. These it also pings now and then while it has others, so that a first peer
    that was away leads newcomers to the run again.
    """

    def __init__(self, *args, trust: Trust, total_epochs: int, shortest_epoch_s: float, **kwargs) -> None:
        self.trust, self.total_epochs, self.shortest_epoch_s = trust, total_epochs, shortest_epoch_s
        self.doubted: dict[str, str] = {}
        """Why the last record of a peer was refused or capped, by peer id."""
        self._known: set[bytes] = set()
        """The other peers in the last reading of the records that found any."""
        self._call = None
        self._next_call = 0.0
        self._doubts: dict[str, str] = {}
        """The next `doubted`, while records are read: another thread reads `doubted`, and must see it complete."""
        super().__init__(*args, **kwargs)

    def _parse_swarm_progress_data(self, metadata: Records | None) -> GlobalTrainingProgress:
        # hivemind sums up all records that can be read. Here it sums up those that are believed.
        self._doubts = {}
        believed = self._plausible(self._of_members(metadata if isinstance(metadata, dict) else {}))
        self.doubted = self._doubts
        self._stay_known([record.peer_id for record in believed if record.peer_id != self.local_progress.peer_id])
        now = get_dht_time()
        records = {str(i): ValueWithExpiration(record.dict(), now) for i, record in enumerate(believed)}
        return super()._parse_swarm_progress_data(records)

    def _stay_known(self, others: list[bytes]) -> None:
        """Remember the others. Ping the first peers now and then; without others, at once, and those of before."""
        self._known = set(others) or self._known
        is_due = not others or time.monotonic() >= self._next_call
        if is_due and (self._call is None or self._call.done()):
            self._next_call = time.monotonic() + FIRST_PEERS_EVERY_S
            called = {PeerID.from_base58(Multiaddr(address)["p2p"]) for address in self.dht.initial_peers or []}
            called |= set() if others else {PeerID(peer) for peer in self._known}
            if called:
                some = random.sample(sorted(called), min(MAX_CALLED, len(called)))
                self._call = self.dht.run_coroutine(partial(call_again, peers=some), return_future=True)

    def _of_members(self, metadata: Records) -> list[LocalTrainingProgress]:
        """Return the readable records that members wrote about themselves, no more of one user than the run admits."""
        records, peers_of = [], Counter()
        for key, entry in sorted(metadata.items()):
            if entry.value is None:
                continue
            try:
                record = LocalTrainingProgress.parse_obj(entry.value)
                if len(record.peer_id) > PEER_ID_BYTES:
                    raise ValueError(f"its peer id has {len(record.peer_id):,} bytes")
                peer_id = str(PeerID(record.peer_id))
            except (ValidationError, ValueError) as error:
                self._doubts[str(key)] = f"its record cannot be read: {error}"
                continue
            if (problem := self.trust.record_refusal(peer_id, key)) is not None:
                self._doubts[peer_id] = problem
                continue
            user, limit = self.trust.user_of(peer_id), self.trust.max_peers_per_user
            peers_of[user] += 1
            if limit is not None and peers_of[user] > limit:
                self._doubts[peer_id] = f"{user!r} has more than {limit} peers"
                continue
            records.append(record)
        return records

    def _plausible(self, records: list[LocalTrainingProgress]) -> list[LocalTrainingProgress]:
        """Return this peer's own record, even before it is published, and those of others that can be true, capped."""
        others = [record for record in records if record.peer_id != self.local_progress.peer_id]
        epochs = [record.epoch for record in others if record.epoch <= self.total_epochs]
        # This peer's own epoch counts too: most of the others may be dead, and their records of epochs long past.
        latest = max(statistics.median_high(epochs), self.local_progress.epoch) + 1 if epochs else self.total_epochs
        believed = [self.local_progress]
        for record in others:
            if record.epoch > latest:
                self._doubts[str(PeerID(record.peer_id))] = f"it claims epoch {record.epoch}, far beyond the others'"
            else:
                believed.append(self._cut(record, self.trust.max_share_per_user))
        return believed

    def _cut(self, record: LocalTrainingProgress, share: float) -> LocalTrainingProgress:
        """Return a record whose samples and speed are at most those of a peer with that share of the run's batch."""
        max_samples, now = int(share * self.target_batch_size), get_dht_time()
        if record.samples_accumulated > self.target_batch_size:
            self._doubts[str(PeerID(record.peer_id))] = f"it claims {record.samples_accumulated:,} samples of an epoch"
        return record.copy(
            update={
                "samples_accumulated": min(record.samples_accumulated, max_samples),
                "samples_per_second": min(record.samples_per_second, max_samples / self.shortest_epoch_s),
                "time": min(max(record.time, now - self.metadata_expiration), now),
            }
        )
