"""How a peer stands: what a person wants to know of it now, from the files in its folder."""

import time
from dataclasses import dataclass
from typing import Literal

from dalle_lib.auth.proof_time import proof_until
from dalle_lib.files import BrokenFile
from dalle_lib.one_line import printable
from dalle_lib.swarm.process.events import AGAIN, RESTING, TAKING, EventReader, is_loss, samples_in
from dalle_lib.swarm.process.folder import SETTINGS, run_of, saved_epoch
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.lending import REASONS, Hold, wish_of
from dalle_lib.swarm.process.settings import PeerSettings, Role
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

State = Literal[
    "postponed",
    "starting",
    "looking",
    "catching up",
    "training",
    "averaging",
    "waiting",
    "paused",
    "helping",
    "leaving",
    "left",
    "complete",
    "failed",
    "killed",
    "ended",
]
"""What a peer does, or how it ended.

It is postponed until its `start_after_s` are over, or it is started again; then it starts (loads the model), looks for
the others, catches up with them, trains, averages, or waits until its parameters have been averaged with the others'.
It is paused while its volunteer, schedule, battery or machine holds it. A bootstrap peer helps others to find each
other. A peer that leaves saves its progress; then it has left, or the run is complete. It has failed by an error, was
killed without saving, or ended before it had taken part.
"""
AT_WORK = ("training", "averaging", "waiting")
LOOKS_ON = (*AT_WORK, "paused", "helping")
"""States in which a peer looks at the swarm every few seconds."""
OLD_LOOK_S = 30.0
"""Seconds after which what a running peer last saw of the swarm may no longer be so; it looks every few seconds."""
EPOCH_IS_OF = ("joined", "epoch", "held", "going_on", "left")
"""Events that say of which epoch a peer's parameters are."""
RECENT_EPOCHS = 5
"""Epochs from whose length the time that is left is estimated."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a peer has done over all its starts in this folder."""

    starts: int
    epochs: int
    """Epochs that ended while it took part."""
    samples: int
    """Samples that it has computed, those of the epoch under way as the peer told them last, seconds ago."""
    lost: int
    """Samples of these that no update of the others holds, nor ever will."""
    seconds: float
    """How long it took part."""
    compute_s: float
    """Seconds of these in which it computed gradients, counted like the samples."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a peer stands. None is what is not known, or not yet."""

    run: str
    name: str
    role: Role
    state: State
    since: float
    """When that state began, as far as it is known: seconds since 1970. A peer at work has been so since it joined."""
    epoch: int | None
    """Epoch of its parameters; of a bootstrap peer, in which the trainers that it sees are."""
    total_epochs: int | None
    done: float | None
    """Share of the epoch's samples that all peers together have computed, at most 1."""
    loss: float | None
    """Mean loss of its last epoch."""
    peers: int | None
    """How many trainers took part in its last epoch, itself among them; before that, how many it found. A bootstrap
    peer sees so many now."""
    share: float | None
    """Share of its gradient in the last update that it was in; None where it did not average that with others."""
    has_averaged: bool = True
    """Whether it has averaged its last update with others, as far as it has made any."""
    seconds_left: float | None
    """Estimated time until the run is complete, or until the peer's own limit is over; only while it is at work."""
    hold: Hold | None = None
    """What holds it, while it is paused."""
    asked: str | None = None
    """What its volunteer asks of it while it runs, "pause" or "finish"; it may not have followed yet."""
    taking: dict | None = None
    """How it stands with a state that it takes over now, as its event TAKING says it."""
    swarm: SwarmStatus | None
    """What it last saw of the swarm since it was started."""
    error: str | None
    """The error that ended it."""
    max_upload_mbps: float | None = None
    """Mbit/s that it sends at most, where its volunteer limits it."""
    monthly_gb: float | None = None
    """GB that the peers of this machine send and receive in a month until it rests, where its volunteer limits them."""
    proof_until: float | None = None
    """Until when the volunteer's proof of who they are counts, in a run that asks for one: seconds since 1970."""
    totals: Totals

    @classmethod
    def of(cls, peer: Peer, reader: EventReader | None = None) -> "Standing":
        """Return how a peer stands now; who asks often has a reader of its events."""
        running = peer.is_running
        return _standing(peer, (reader or EventReader(peer.folder)).starts(), running)

    @classmethod
    def after_epochs(cls, peer: Peer, known: int = 0, reader: EventReader | None = None) -> list["Standing"]:
        """Return how a peer stood after each epoch since it was last started, without the first `known` epochs."""
        running = peer.is_running
        *before, events = (reader or EventReader(peer.folder)).starts()
        ends = [number for number, event in enumerate(events, start=1) if event["event"] == "epoch"]
        return [_standing(peer, [*before, events[:end]], running, is_now=False) for end in ends[known:]]

    @property
    def old_look_s(self) -> float | None:
        """Seconds since a peer at work, or one that helps, last saw the swarm, if more than OLD_LOOK_S; else None."""
        if self.swarm is None or self.state not in LOOKS_ON:
            return None
        age = time.time() - self.swarm.time
        return age if age > OLD_LOOK_S else None

    @property
    def is_complete(self) -> bool:
        """Whether this peer has the run's last epoch."""
        return self.epoch is not None and self.total_epochs is not None and self.epoch >= self.total_epochs


def _standing(peer: Peer, starts: list[list[dict]], running: bool, *, is_now: bool = True) -> Standing:
    events, bound = starts[-1], run_of(peer.folder)
    settings = PeerSettings.load(peer.folder / SETTINGS).of_start(events)
    last = {event["event"]: event for event in events}
    epochs = [event["epoch"] for event in events if event["event"] in EPOCH_IS_OF]
    epoch = epochs[-1] if epochs else saved_epoch(peer.folder)
    swarm = SwarmStatus.read(peer.folder)
    peers = last.get("epoch", last.get("joined", {})).get("peers")
    if settings.role != "trainer" and swarm is not None:
        epoch, peers = swarm.epoch, len(swarm.at_work)
    total = bound.total_epochs if bound and bound.total_epochs else swarm and swarm.total_epochs
    done = None
    if swarm is not None and swarm.epoch == epoch:
        done = min(1.0, (swarm.samples_in_epoch or 0) / swarm.target_batch_size)
    state, since = _state(events, settings, running, done == 1.0, total)
    at_work = state in AT_WORK
    return Standing(
        run=printable(bound.name if bound else settings.run),
        name=settings.name,
        role=settings.role,
        state=state,
        since=since,
        epoch=epoch,
        total_epochs=total,
        done=done if at_work else None,
        loss=last.get("epoch", {}).get("loss"),
        peers=peers,
        share=_share(last),
        has_averaged="averaged" not in last or _share(last) is not None,
        seconds_left=_seconds_left(events, settings, epoch, total, done or 0.0) if at_work else None,
        hold=_hold(events) if state == "paused" else None,
        asked=_asked(peer) if running else None,
        taking=events[-1] if events and events[-1]["event"] == TAKING and running else None,
        swarm=swarm,
        max_upload_mbps=settings.max_upload_mbps,
        monthly_gb=settings.monthly_gb,
        proof_until=proof_until(peer.folder),
        # The first says why; by the last, its supervisor tells the exit code.
        error=next((event["error"] for event in events if event["event"] == "failed"), None),
        totals=_totals([start for start in starts if start], running, _told(events, swarm) if is_now else None),
    )


def _told(events: list[dict], swarm: SwarmStatus | None) -> PeerStatus | None:
    """Return what a peer last told the others of this start, or None before that; it saw it as it sees theirs."""
    joined = next((event for event in events if event["event"] == "joined"), None)
    if joined is None or swarm is None:
        return None
    own = (each for each in swarm.peers if each.peer_id == joined["peer_id"])
    return next((each for each in own if each.started_at >= events[0]["time"]), None)


def _state(
    events: list[dict], settings: PeerSettings, running: bool, is_full: bool, total: int | None
) -> tuple[State, float]:
    """Return what a peer does or how it ended, and since when."""
    last = {event["event"]: event for event in events}
    if not events:
        return ("starting" if running else "ended"), time.time()
    since = {kind: event["time"] for kind, event in last.items()}
    if running and events[-1]["event"] == RESTING:
        return "paused", since[RESTING]
    if running and "until" in last.get(AGAIN, {}):
        return "postponed", since[AGAIN]
    if "failed" in last:
        return "failed", since["failed"]
    if "left" in last:
        return ("complete" if total and last["left"]["epoch"] >= total else "left"), since["left"]
    if not running:
        return ("ended", since["ended"]) if "ended" in last else ("killed", events[-1]["time"])
    if "leaving" in last:
        return "leaving", since["leaving"]
    if "joined" in last:
        return _work(events, is_full), since["joined"]
    if "connected" in last:
        return ("helping" if settings.role != "trainer" else "catching up"), since["connected"]
    if "loaded" in last:
        return "looking", since["loaded"]
    return ("postponed" if time.time() < since["started"] + settings.start_after_s else "starting"), since["started"]


def _work(events: list[dict], is_full: bool) -> State:
    """Return what a peer that has joined does; the epoch is full when all its samples have been computed."""
    if _last_of(events, "held", "going_on").get("event") == "held":
        return "paused"
    told = [event for event in events if event["event"] in ("epoch", "left_out")]
    if told and told[-1].get("is_waiting"):
        return "waiting"
    return "averaging" if is_full else "training"


def _hold(events: list[dict]) -> Hold | None:
    """Return what holds a peer that is paused; None for a word of another version."""
    held = _last_of(events, "held", RESTING)
    if held["event"] == RESTING:
        return Hold("month", held["until"])
    return Hold(held["reason"], held["until"]) if held["reason"] in REASONS else None


def _last_of(events: list[dict], *kinds: str) -> dict:
    """Return the last event of these kinds; an empty one where there is none."""
    return next((event for event in reversed(events) if event["event"] in kinds), {})


def _asked(peer: Peer) -> str | None:
    try:
        wish = wish_of(peer.folder)
    except BrokenFile:  # the peer takes it for none, and logs it
        return None
    return None if wish is None else wish.wish


def _share(last: dict[str, dict]) -> float | None:
    if "averaged" not in last or "joined" not in last:
        return None
    shares, own = last["averaged"]["shares"], last["joined"]["peer_id"]
    return None if list(shares) == [own] else shares.get(own, 0.0)


def _seconds_left(
    events: list[dict], settings: PeerSettings, epoch: int | None, total: int | None, done: float
) -> float | None:
    """Return how long the peer will go on; None if that is not known yet, or it has the run's last epoch."""
    if total is not None and epoch is not None and epoch >= total:
        return None
    lengths = [event["seconds"] for event in events if event["event"] == "epoch"][-RECENT_EPOCHS:]
    left = []
    if total is not None and epoch is not None and len(lengths) > 1:
        left.append(sum(lengths) / len(lengths) * (total - epoch - done))
    joined = next((event["time"] for event in events if event["event"] == "joined"), None)
    if settings.max_minutes is not None and joined is not None:
        left.append(max(0.0, settings.ends_at(joined) - time.time()))
    return min(left, default=None)


def _totals(starts: list[list[dict]], running: bool, told: PeerStatus | None) -> Totals:
    """Return what a peer has done; `told` is what it said last of a start that goes on."""
    epochs, samples, lost, seconds, compute_s = 0, 0, 0, 0.0, 0.0
    for number, events in enumerate(starts, start=1):
        kinds = [event["event"] for event in events]
        joined = [event["time"] for event in events if event["event"] == "joined"]
        is_now = running and number == len(starts) and "left" not in kinds
        so_far = told if is_now else None
        epochs += kinds.count("epoch")
        samples += max(samples_in(events), so_far.samples if so_far else 0)
        lost += sum(event["samples"] for event in events if is_loss(event))
        ended = [event.get("compute_s", 0.0) for event in events if event["event"] in ("epoch", "left")]
        compute_s += max([*ended, so_far.compute_s if so_far else 0.0])
        if joined:
            # A clock that is set back meanwhile makes the end seem earlier than the beginning.
            seconds += max(0.0, (time.time() if is_now else events[-1]["time"]) - joined[0])
    return Totals(starts=len(starts), epochs=epochs, samples=samples, lost=lost, seconds=seconds, compute_s=compute_s)
