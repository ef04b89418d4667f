"""How far the run is, from what its peers say of themselves, as far as it can be true."""

import asyncio
import statistics
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


async def call_again(_dht: hivemind.DHT, node: DHTNode, peers: list[PeerID]) -> None:
    """Take those peers that answer back into this peer's part of the hash table, and ask them to do the same."""
    for peer, answer in zip(peers, await asyncio.gather(*map(node.protocol.call_ping, peers)), strict=True):
        if answer is not None:
            node.blacklist.register_success(peer)


class PlausibleProgress(ProgressTracker):
    """hivemind's tracker that believes members only, and no more than what can be true.

    hivemind 1.1.12 takes the highest epoch that anybody names for the run's, and adds up what everybody claims: one
    false record makes all peers think they are behind, or ends each epoch at once. Here an epoch counts if it is at
    most one beyond that of half of the others, or this peer's own; samples and speed are cut to what a peer may have.
    A newcomer, whose own record is not in the table yet, does not take one other peer for none.

    And hivemind forgets a peer that did not answer, for good: a computer that slept for seconds may have lost all the
    others, they it, and would train on alone. Here a peer without others calls those it had, and the run's first.
    """

    def __init__(self, *args, trust: Trust, total_epochs: int, shortest_epoch_s: float, **kwargs) -> None:
        self.trust, self.total_epochs, self.shortest_epoch_s = trust, total_epochs, shortest_epoch_s
        self.doubted: dict[str, str] = {}
        """Why the last record of a peer was not taken as it was, by peer id."""
        self._known: set[bytes] = set()
        """The peers that were heard of when there last were any."""
        self._call = None
        self._doubts: dict[str, str] = {}
        """The same, while records are looked at: `doubted` is read by another thread, and so must be complete."""
        super().__init__(*args, **kwargs)

    def _parse_swarm_progress_data(self, metadata: Records | None) -> GlobalTrainingProgress:
        self._doubts = {}
        believed = self._plausible(self._of_members(metadata if isinstance(metadata, dict) else {}))
        self.doubted = self._doubts
        self._stay_known([record.peer_id for record in believed if record.peer_id != self.local_progress.peer_id])
        now = get_dht_time()
        records = {str(i): ValueWithExpiration(record.dict(), now) for i, record in enumerate(believed)}
        return super()._parse_swarm_progress_data(records)

    def _stay_known(self, others: list[bytes]) -> None:
        """Note the others, or, when there are none any more, call those that there were."""
        if others:
            self._known = set(others)
        elif self._call is None or self._call.done():
            first = {PeerID.from_base58(Multiaddr(address)["p2p"]) for address in self.dht.initial_peers or []}
            if lost := first | {PeerID(peer) for peer in self._known}:
                self._call = self.dht.run_coroutine(partial(call_again, peers=list(lost)), return_future=True)

    def _of_members(self, metadata: Records) -> list[LocalTrainingProgress]:
        records, peers_of = [], Counter()
        for key, entry in sorted(metadata.items()):
            if entry.value is None:
                continue
            try:
                record = LocalTrainingProgress.parse_obj(entry.value)
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
        """Return what this peer knows of itself, even before it has told it, and what can be true of the others."""
        others = [record for record in records if record.peer_id != self.local_progress.peer_id]
        epochs = [record.epoch for record in others if record.epoch <= self.total_epochs]
        # It has seen for itself how far the run is; most of the others may be dead, their records of epochs long past.
        latest = max(statistics.median_high(epochs), self.local_progress.epoch) + 1 if epochs else self.total_epochs
        believed = [self.local_progress]
        for record in others:
            if record.epoch > latest:
                self._doubts[str(PeerID(record.peer_id))] = f"it claims epoch {record.epoch}, far beyond the others'"
            else:
                believed.append(self._cut(record, self.trust.max_share_per_user))
        return believed

    def _cut(self, record: LocalTrainingProgress, share: float) -> LocalTrainingProgress:
        """Return a record with no more samples and speed than a peer with such a share of the run may have."""
        most, now = int(share * self.target_batch_size), get_dht_time()
        if record.samples_accumulated > self.target_batch_size:
            self._doubts[str(PeerID(record.peer_id))] = f"it claims {record.samples_accumulated:,} samples of an epoch"
        return record.copy(
            update={
                "samples_accumulated": min(record.samples_accumulated, most),
                "samples_per_second": min(record.samples_per_second, most / self.shortest_epoch_s),
                "time": min(max(record.time, now - self.metadata_expiration), now),
            }
        )
