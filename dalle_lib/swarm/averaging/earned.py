"""Which epochs and samples of other peers are believed: what most users report, and what can have been computed.

Each peer reports its own progress, and nobody can check that. So one report decides nothing: an epoch counts when more
than half of the users report it or a later one, and as soon as the time allows it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SLACK = 10
"""Epochs by which a donor's state may be later than what this peer has read: newcomers wait for their turn."""


@dataclass(frozen=True)
class Claim:
    """What another peer's record says of its progress."""

    peer: str
    user: str
    epoch: int
    samples: int
    """Samples of that epoch so far."""
    per_s: float
    """Samples a second."""
    time: float
    """When the record was made, as its peer says."""

    @property
    def votes(self) -> bool:
        """Whether the peer says of an epoch what counts: newcomers have no speed until their gradients count."""
        return self.per_s > 0


def votes_of(reports: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the vote of each user, who has one: the latest of the epochs that their peers report."""
    votes = {}
    for user, epoch in reports:
        votes[user] = max(votes.get(user, 0), epoch)
    return votes


class EarnedEpochs:
    """Follows the epoch of the run, as far as it is believed.

    Each user has one vote, for the latest epoch that one of their peers reports. Peers that are more than one epoch
    behind this one have none: most of them are gone, and their records of epochs long past must hold nobody back. Nor
    have newcomers, until their gradients count.
    This peer votes, too, once it has taken part. So in a run of two neither can carry the other along by its record,
    and one that was away takes over the other's state.

    Epochs pass no faster than one in `shortest_epoch_s`. The time counts from when this peer entered its epoch, while
    no half of the users was ahead of it. A newcomer, which has no such time, believes any epoch of the run.
    """

    def __init__(self, total_epochs: int, shortest_epoch_s: float) -> None:
        self.total_epochs, self.shortest_epoch_s = total_epochs, shortest_epoch_s
        self.ahead = 0
        """The latest epoch that half of the users report, as far as the time allows it: reason enough to ask for a
        state, which then says the epoch."""
        self.reported = total_epochs
        """The latest epoch that a round of gradients can be of: half of the users report it, and the time allows it."""
        self.least = 0
        """The earliest epoch that a round of gradients can be of: more than half of the users report no later one."""
        self.latest = total_epochs
        """The latest epoch that a state of another peer, or an average of parameters, can be of."""
        self._agreed: tuple[int, float] | None = None
        """The last epoch in which this peer was not behind, and when it entered that; None for a newcomer."""
        self._entered = 0.0

    def enter(self, epoch: int, believed: int, now: float) -> None:
        """Note that this peer begins an epoch, or takes an earlier one again. `believed` is that of the run so far."""
        self._entered = now
        if (epoch >= believed) if self._agreed is None else (epoch < self._agreed[0]):
            self._agreed = epoch, now

    def believed(self, own: int, user: str | None, claims: Iterable[Claim], now: float) -> int:
        """Return the epoch of the run, at least this peer's own one; `user` is its user, None if it has no vote."""
        if self._agreed is not None:  # nothing is of a time to come, unless the clock was set back
            self._agreed, self._entered = (self._agreed[0], min(self._agreed[1], now)), min(self._entered, now)
        is_newcomer, claims = self._agreed is None, list(claims)
        others = [claim for claim in claims if claim.votes and claim.epoch >= own - 1]
        has_vote = user is not None and not is_newcomer
        votes = votes_of([*([(user, own)] if has_vote else []), *((claim.user, claim.epoch) for claim in others)])
        most, half = (
            (statistics.median_low(votes.values()), statistics.median_high(votes.values())) if votes else (0, 0)
        )
        if others and half <= own and (is_newcomer or own > self._agreed[0]):
            self._agreed = own, self._entered or now
        possible = self.possible(now)
        epoch = max(own, min(most, possible))
        self.ahead = max(epoch, half if half <= possible and not is_newcomer else 0)
        self.latest = min(self.total_epochs, max(most, self.ahead) + SLACK) if claims else self.total_epochs
        self.reported = self.latest if is_newcomer else (half if half <= possible else 0)
        self.least = min(half, own)
        return epoch

    def possible(self, now: float) -> int:
        """Return the latest epoch that others can be in now, by the time since this peer was in step with them."""
        if self._agreed is None:
            return self.total_epochs
        epoch, since = self._agreed
        return epoch + int(max(0.0, now - since) / self.shortest_epoch_s)


@dataclass(frozen=True)
class _Seen:
    claim: Claim
    since: float
    """The last look before this record was there: it cannot be older. For a peer that is new, the first look."""
    epoch: int
    samples: float
    """Samples believed of that epoch at the time of the look."""
    at: float


class EarnedSamples:
    """Estimates the samples that others have computed for an epoch.

    A peer's samples are those of its record, and what it has computed since at the speed that it claims. The record is
    no older than the last look in which another one was there, whatever its date. All peers of a user together have at
    most `max_share` of the target, in no less than `shortest_epoch_s`; where there are too few users for such shares,
    they have at most all of it. A peer that is in a later epoch already counts as if it had gone on with this one.
    One whose record was not there in the last look has computed since the epoch began at most: only the first look that
    finds anybody believes more.
    """

    def __init__(self, target: float, max_share: float, shortest_epoch_s: float) -> None:
        self.target, self.max_share, self.shortest_epoch_s = target, max_share, shortest_epoch_s
        self.max_samples = max_share * target
        self._seen: dict[str, _Seen] = {}
        self._last_look = 0.0
        self._began: tuple[int | None, float] = (None, 0.0)
        """The epoch of the last look, and when the first look of that epoch was."""
        self._has_met = False
        """Whether a look before this one has found others."""

    def look(self, epoch: int, user: str | None, claims: Sequence[Claim], now: float) -> list[tuple[float, float]]:
        """Return (samples of that epoch, samples a second) for each of the users that made the claims.

        `user` is this peer's own, None if its samples do not count. Newcomers are no users yet: an epoch would need
        more of the others than they may have.
        """
        claims = [claim for claim in claims if claim.votes]
        users = {claim.user for claim in claims} | ({user} - {None})
        self.max_samples = self.target * (self.max_share if len(users) * self.max_share > 1 else 1.0)
        if now < self._last_look:  # the clock was set back
            self._seen, self._began = {}, (None, 0.0)
        self._began = self._began if self._began[0] == epoch else (epoch, now)
        self._seen = {claim.peer: self._judged(epoch, claim, now) for claim in claims}
        self._last_look, self._has_met = now, self._has_met or bool(claims)
        samples, speeds = defaultdict(float), defaultdict(float)
        for seen in self._seen.values():
            samples[seen.claim.user] += seen.samples
            speeds[seen.claim.user] += seen.claim.per_s
        return [(min(samples[name], self.max_samples), min(speeds[name], self._max_per_s)) for name in samples]

    @property
    def _max_per_s(self) -> float:
        return self.max_samples / self.shortest_epoch_s

    def _judged(self, epoch: int, claim: Claim, now: float) -> _Seen:
        before = self._seen.get(claim.peer)
        is_same = before is not None and before.claim == claim
        since = before.since if is_same else self._last_look if before else now
        per_s = min(claim.per_s, self._max_per_s)
        passed_s = now - before.at if before else 0.0
        so_far = before.samples if before and before.epoch == epoch else 0.0
        if claim.epoch > epoch:
            samples = so_far + per_s * passed_s
        elif claim.epoch == epoch:
            samples = claim.samples + per_s * min(max(0.0, now - claim.time), now - since)
            if self._has_met:
                passed_s = passed_s if before else now - self._began[1]
                samples = min(samples, so_far + self._max_per_s * passed_s)
        else:
            samples = 0.0
        return _Seen(claim, since, epoch, min(samples, self.max_samples), now)


def seconds_until(
    target: float, own: float, own_per_s: float, others: Iterable[tuple[float, float]], limit: float
) -> float:
    """Return the seconds until there are `target` samples: this peer's own and the users', each up to `limit`.

    `others` are (samples, samples a second) of each user; `own_per_s` is positive.
    """
    others = [(min(samples, limit), per_s) for samples, per_s in others]
    missing = target - own - sum(samples for samples, _ in others)
    growing = sorted(((limit - samples) / per_s, per_s) for samples, per_s in others if per_s > 0)
    speed, passed_s = own_per_s + sum(per_s for _, per_s in growing), 0.0
    for full_s, per_s in growing:
        if missing <= speed * (full_s - passed_s):
            break
        missing -= speed * (full_s - passed_s)
        speed, passed_s = max(own_per_s, speed - per_s), full_s
    return passed_s + max(0.0, missing) / speed
