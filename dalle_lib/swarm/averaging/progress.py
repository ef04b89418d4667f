"""Estimates how far the run is from its peers' records of themselves, believed within bounds."""

import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.multiaddr import Multiaddr
from pydantic.v1 import ValidationError

from dalle_lib.swarm import hash_table
from dalle_lib.swarm.averaging.earned import Claim, EarnedEpochs, EarnedSamples, seconds_until
from dalle_lib.swarm.averaging.expected import Expected, Told
from dalle_lib.swarm.averaging.introductions import MAX_APART
from dalle_lib.swarm.averaging.islands import Parted
from dalle_lib.swarm.averaging.paced import PacedEvent
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.who_reduces import WhoReduces
from dalle_lib.swarm.records import writer_of

Records = dict[bytes, ValueWithExpiration]
MAX_CALLED = 50
"""Peers that are pinged at once. hivemind 1.1.12 loses its way in a message to the hash table of over 16 KiB, which
names 160 of them."""
PUBLISH_EVERY_S = 2.0
"""Seconds after which a peer publishes its progress again at the earliest, where an epoch lasts long still."""
STANDING_PER_S = 1e-9
"""Samples a second that a peer tells of itself which computes nothing, but has samples to be averaged: with no speed it
would not count."""
OVERSHOOT = 2.0
"""Samples of one peer in an epoch, in target batches, that nobody wonders at: a fast one goes on until it knows that
the epoch is over. No more are believed than the epoch takes."""
IMPOSSIBLE = 10.0
"""Epochs of samples that no peer computes in the time that the shortest epoch takes; it is named if it claims that."""


class WithoutVote(LocalTrainingProgress):
    """The progress of a peer that does not count yet: others are told that it is there, and of no samples."""

    def dict(self, **kwargs) -> dict:
        """Return the record as it is published."""
        return super().dict(**kwargs) | {"samples_accumulated": 0, "samples_per_second": 0.0}


class Withdrawn(LocalTrainingProgress):
    """The progress of a peer that computes nothing: in the place of its record there is none."""

    def dict(self, **kwargs) -> None:
        """Return the record as it is published."""


class PlausibleProgress(ProgressTracker):
    """hivemind's progress tracker, which believes members only, and what they claim only within bounds.

    hivemind 1.1.12 takes the highest epoch that anybody claims, and adds up the samples that everybody claims: one
    false record makes all peers think they are behind, or ends each epoch at once. Here `EarnedEpochs` and
    `EarnedSamples` say what is believed. A newcomer counts itself before its record appears, so one other peer makes
    two.

    hivemind also forgets a peer for good once it did not answer: after a computer has slept for some seconds, it and
    the others may have lost each other, and it would train on alone. Here a peer without others pings those that it
    knew last, and the run's first peers.

    A newcomer tells of no samples and no speed until it counts, and so has no vote: it begins with a checkpoint of an
    epoch long past. More newcomers than others would take that for the epoch of the run, and train on by themselves.
    """

    is_counted: bool = True
    """Whether this peer's gradients count; its owner sets it."""
    are_clients: bool = False
    """Whether there are others that count, and all of them are clients, which can lead no group."""
    newcomers: int = 0
    """How many others there are whose gradients do not count yet."""
    voters: Mapping[str, int] = MappingProxyType({})
    """The epoch of each other peer that counts, by its id."""
    beyond: frozenset[str] = frozenset()
    """The users that claim to be further on than is believed."""
    others_compute: bool = False
    """Whether there are others that count and compute now."""
    is_withdrawn: bool = False
    """Whether the others are told nothing of this peer, which computes nothing."""
    _look_s: float = 0.0
    """Seconds from the last look at the others' records to the next one."""
    _stands: bool = False
    """Whether it computes nothing, and has samples that are to be averaged."""

    def __init__(
        self,
        *args,
        target_batch_size: int,
        trust: Trust,
        total_epochs: int,
        shortest_epoch_s: float,
        expected: Expected | None = None,
        **kwargs,
    ) -> None:
        """Take `expected` to say there who comes to the rounds."""
        self.trust, self.total_epochs, self.expected = trust, total_epochs, expected or Expected()
        self.who_reduces = WhoReduces(trust)
        self.epochs, self.parted = EarnedEpochs(total_epochs, shortest_epoch_s), Parted(shortest_epoch_s)
        self._samples = EarnedSamples(target_batch_size, trust.max_share_per_user, shortest_epoch_s)
        self.doubted: dict[str, str] = {}
        """Why the last record of a peer was refused or capped, by peer id."""
        self._met_at, self._meets = -math.inf, False
        """When a look last found such a peer, and whether the last look did: there are none while a state is loaded."""
        self._known: set[bytes] = set()
        """The other peers in the last reading of the records that found any."""
        self._call = None
        self._doubts: dict[str, str] = {}
        """The next `doubted`, while records are read: another thread reads `doubted`, and must see it complete."""
        super().__init__(*args, target_batch_size=target_batch_size, **kwargs)

    def start(self) -> None:
        """Begin to publish and to read records, as hivemind does, which publishes one after each step of this peer.

        Others look the less often, the longer an epoch lasts still. More records only keep all hash tables busy.
        """

        def every_s() -> float:
            return float(np.clip(self._look_s / 2, self.min_refresh_period, PUBLISH_EVERY_S))

        self.should_report_progress = PacedEvent(every_s)
        super().start()

    def shutdown(self, timeout: float | None = None) -> None:
        """End, as hivemind does."""
        self.should_report_progress.hurry()
        super().shutdown(timeout)

    @property
    def is_alone(self) -> bool:
        """Whether no other peer that counts, and keeps up, was there for as long as records of progress live."""
        return not self._meets and time.monotonic() - self._met_at > self.metadata_expiration

    def stand(self, epoch: int, samples: int) -> None:
        """Tell the others of a peer that computes nothing more, but brings its samples of this epoch to the round."""
        if not self._stands:
            self._stands, self.is_withdrawn = True, False
            self.report_local_progress(epoch, samples)

    def withdraw(self) -> None:
        """Tell the others nothing more of this peer, until it `goes_on`."""
        self.is_withdrawn, self._stands = True, False
        self.report_local_progress(self.local_progress.epoch, self.local_progress.samples_accumulated)

    def goes_on(self) -> bool:
        """Compute again, and return whether this peer has stood by or was withdrawn."""
        was_away = self._stands or self.is_withdrawn
        self._stands = self.is_withdrawn = False
        if was_away:
            self.performance_ema.reset_timer()
        return was_away

    def leave_out(self, slept_s: float, computed_s: float) -> None:
        """Take sleep since the last batch for no time of the present one, which took `computed_s` awake at least."""
        speed = self.performance_ema
        speed.timestamp = min(speed.timestamp + slept_s, time.perf_counter() - computed_s)

    def look(self) -> None:
        """Look at the others' records now; the caller has paused updates."""
        found = self.dht.get(self.training_progress_key, latest=True)
        self.global_progress = self._parse_swarm_progress_data(None if found is None else found.value)

    def update_epoch(self, new_epoch: int | None = None) -> int:
        """Begin this epoch, or the next one, without samples; return it."""
        epoch = self.local_progress.epoch + 1 if new_epoch is None else new_epoch
        self.epochs.enter(epoch, self.global_epoch, get_dht_time())
        super().update_epoch(epoch)
        self.should_report_progress.hurry()  # others know by it that they have missed an epoch
        return epoch

    def _get_local_progress(self, local_epoch: int, samples_accumulated: int) -> LocalTrainingProgress:
        progress = super()._get_local_progress(local_epoch, samples_accumulated)
        if self._stands:
            progress.samples_per_second = STANDING_PER_S
        if self.is_withdrawn:
            return Withdrawn(**progress.dict())
        return progress if self.is_counted else WithoutVote(**progress.dict())

    def _parse_swarm_progress_data(self, metadata: Records | None) -> GlobalTrainingProgress:
        # hivemind sums up all records that can be read. Here it sums up those that are believed.
        self._doubts = {}
        own, now = self.local_progress, get_dht_time()
        records = self._of_members(metadata if isinstance(metadata, dict) else {})
        others = {
            peer: record
            for peer, record in records.items()
            if record.peer_id != own.peer_id and self._can_be(peer, record.epoch)
        }
        self._stay_known([record.peer_id for record in others.values()])
        claims = [self._claim(peer, record) for peer, record in others.items()]
        # Until its gradients count, this peer has no vote, and no part of an epoch's samples.
        user = self.trust.user_of(str(self.dht.peer_id)) if self.is_counted else None
        counted = None if user is None else self._claim(str(self.dht.peer_id), own)
        self.parted.look(counted, [claim for claim in claims if claim.votes], self.epochs.possible(now), now)
        # Who trains apart, and does not go on, comes to no round of this peer's, and is no measure for it.
        claims = [claim for claim in claims if claim.peer not in self.parted.left_aside]
        others = {claim.peer: others[claim.peer] for claim in claims}
        epoch = self.epochs.believed(own.epoch, user, claims, now)
        self.beyond = frozenset(claim.user for claim in claims if claim.epoch > self.epochs.ahead + 1)
        self._doubt(claims)
        self.doubted = self._doubts
        believed = self._samples.look(epoch, user, claims, now)
        own_samples = own.samples_accumulated if own.epoch == epoch else 0
        own_per_s = STANDING_PER_S if self._stands or self.is_withdrawn else self.performance_ema.samples_per_second
        own_per_s += self.performance_ema.eps
        left_s = seconds_until(self.target_batch_size, own_samples, own_per_s, believed, self._samples.max_samples)
        # hivemind looks the sooner, the more peers may have joined meanwhile. Nobody averages gradients with newcomers.
        self.voters = {claim.peer: claim.epoch for claim in claims if claim.votes}
        self.newcomers = len(claims) - len(self.voters)
        self.others_compute = any(claim.per_s > STANDING_PER_S for claim in claims)
        modes = {others[claim.peer].client_mode for claim in claims if claim.votes}
        self.are_clients = modes == {True}
        clients = {str(self.dht.peer_id): own.client_mode} | {peer: of.client_mode for peer, of in others.items()}
        self.who_reduces.look(clients, len(self.voters))
        coming = [claim for claim in claims if claim.epoch >= own.epoch - MAX_APART or not claim.votes]
        near = [claim for claim in coming if claim.epoch <= own.epoch + MAX_APART or not claim.votes]
        self.expected.tell(own.epoch, {others[of.peer].peer_id: Told(min(of.time, now), of.votes) for of in near})
        self._meets = any(claim.votes for claim in coming)
        self._met_at = time.monotonic() if self._meets else self._met_at
        peers = 1 + len(self.voters)
        more = max(peers + self.expected_drift_peers, peers * (1 + self.expected_drift_rate))
        self._look_s = float(np.clip(left_s * peers / more, self.min_refresh_period, self.max_refresh_period))
        return GlobalTrainingProgress(
            epoch,
            int(own_samples + sum(samples for samples, _ in believed)),
            target_batch_size=self.target_batch_size,
            num_peers=peers,
            num_clients=own.client_mode + sum(record.client_mode for record in others.values()),
            eta_next_epoch=now + left_s,
            next_fetch_time=now + self._look_s,
        )

    def _stay_known(self, others: list[bytes]) -> None:
        """Remember the others; without any, ping those of before and the run's first peers."""
        self._known = set(others) or self._known
        if not others and (self._call is None or self._call.done()):
            called = {PeerID.from_base58(Multiaddr(address)["p2p"]) for address in self.dht.initial_peers or []}
            called |= {PeerID(peer) for peer in self._known}
            if called:
                some = random.sample(sorted(called), min(MAX_CALLED, len(called)))
                self._call = self.dht.run_coroutine(partial(hash_table.call_again, peers=some), return_future=True)

    def _of_members(self, metadata: Records) -> dict[str, LocalTrainingProgress]:
        """Return the readable records that members wrote about themselves, no more of one user than the run admits."""
        records, peers_of = {}, Counter()
        for mark, entry in sorted(metadata.items()):
            if entry.value is None:
                continue
            try:
                peer_id = writer_of(mark)
                record = LocalTrainingProgress.parse_obj(entry.value)
            except (ValidationError, ValueError) as error:
                self._doubts[str(mark)] = f"its record cannot be read: {error}"
                continue
            if record.peer_id != PeerID.from_base58(peer_id).to_bytes():
                self._doubts[peer_id] = "it wrote a record in another peer's name"
                continue
            if (problem := self.trust.record_refusal(peer_id)) is not None:
                self._doubts[peer_id] = problem
                continue
            user, limit = self.trust.user_of(peer_id), self.trust.max_peers_per_user
            peers_of[user] += 1
            if limit is not None and peers_of[user] > limit:
                self._doubts[peer_id] = f"{user!r} has more than {limit} peers"
                continue
            records[peer_id] = record
        return records

    def _can_be(self, peer: str, epoch: int) -> bool:
        if epoch > self.total_epochs:
            self._doubts[peer] = f"it claims epoch {epoch}, but the run has {self.total_epochs}"
        return epoch <= self.total_epochs

    def _claim(self, peer: str, record: LocalTrainingProgress) -> Claim:
        samples = record.samples_accumulated
        return Claim(peer, self.trust.user_of(peer), record.epoch, samples, record.samples_per_second, record.time)

    def _doubt(self, claims: list[Claim]) -> None:
        """Note who claims more than is believed."""
        for claim in claims:
            if claim.epoch > self.epochs.ahead + 1:
                self._doubts[claim.peer] = f"it claims epoch {claim.epoch}, far beyond the others'"
            elif claim.samples > OVERSHOOT * self.target_batch_size:
                self._doubts[claim.peer] = f"it claims {claim.samples:,} samples of an epoch"
            elif claim.per_s * self.epochs.shortest_epoch_s > IMPOSSIBLE * self.target_batch_size:
                self._doubts[claim.peer] = f"it claims {claim.per_s:,.0f} samples a second"
