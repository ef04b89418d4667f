"""What a rehearsal has shown: figures of epochs, joins and traffic, and in words what would have gone wrong."""

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dalle_lib.planning import Machines, Plan, Work, plan_run
from dalle_lib.rehearsal.links import Plug
from dalle_lib.rehearsal.watching import Kept
from dalle_lib.swarm.process.events import is_loss, read_starts
from dalle_lib.swarm.process.status import SwarmStatus

if TYPE_CHECKING:
    from dalle_lib.rehearsal.rehearse import Rehearsal
    from dalle_lib.rehearsal.stage import Act, Stage

SLOWER = 1.5
"""Multiple of the planned seconds of an epoch from which the report warns."""
UNLIKE_S = 0.1
"""Seconds by which clocks of events and acts may differ."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch of the run, as the first of its peers ended it."""

    number: int
    ended: float
    """Seconds since 1970."""
    seconds: float
    planned_s: float | None
    """Seconds that the plan says with those whose gradients counted; None if no speed is known."""
    counted: tuple[str, ...]
    """Whose gradients counted."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One peer's part in the rehearsal."""

    name: str
    is_client: bool
    trained_s: float | None
    """Seconds from its start, with the proof of who it is, until it trained; None if it never did."""
    counted_s: float | None
    """Seconds from its start until its first gradient counted."""
    epochs: int
    samples: int
    """Samples that it computed in whole epochs."""
    lost: int
    """Samples of these that are in no update."""
    failed_rounds: int
    rounds: int
    sent_bytes: int
    received_bytes: int
    settled_rounds: int
    """Rounds with others that were whole for it, with nobody who had just joined."""
    settled_bytes: int
    """Bytes that it sent in these; what it sent besides are states for others, and records."""
    planned_bytes: float | None
    """Bytes that the plan lets it send in as many epochs with the same peers; None if no speed is known."""
    error: str | None
    """The error that ended it, if it was not killed on purpose."""
    problems: Mapping[str, int]
    """What it told of others and of itself, and how often."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was seen."""

    run: str
    rehearsal: "Rehearsal"
    acts: tuple["Act", ...]
    parts: tuple[Part, ...]
    epochs: tuple[Epoch, ...]
    """Those after the first, until all left."""
    told: Mapping[str, str]
    """What ended a banned volunteer's peer."""
    counted: Mapping[str, tuple[float, ...]]
    """When each volunteer's gradients counted in rounds with others, in seconds since 1970."""
    failures: Mapping[str, int]
    """Why rounds failed, and how often."""
    state_bytes: float
    """Bytes of the state that a newcomer takes over, as the plan has them."""
    cores: int
    over: float
    epoch_samples: int = 0
    """Samples of an epoch."""
    kept: Kept | None = None
    """What the run's monitor kept and told."""

    @classmethod
    def of(cls, stage: "Stage", rehearsal: "Rehearsal", began: float, over: float, kept: Kept) -> "Report":
        """Return what a stage has seen, now that all have left it."""
        seen = _Seen(stage, rehearsal, over)
        return cls(
            run=stage.card.name, rehearsal=rehearsal, acts=tuple(stage.acts),
            parts=tuple(seen.part(name) for name in stage.peers), epochs=tuple(seen.epochs(began)),
            told=seen.told(), counted=seen.counted, failures=seen.failures(),
            state_bytes=Work.of(stage.card).state_bytes, cores=os.cpu_count() or 1, over=over,
            epoch_samples=stage.card.averaging.target_batch_size, kept=kept,
        )  # fmt: skip

    def as_dict(self) -> dict:
        """Return all of it, with `wrong`, as a dictionary that JSON can hold."""
        from dalle_lib.rehearsal.words import wrong

        return asdict(self) | {"seconds": self.epoch_s, "planned_s": self.planned_s, "wrong": wrong(self)}

    @property
    def epoch_s(self) -> float | None:
        """Median seconds of an epoch; None if there was none."""
        return statistics.median(epoch.seconds for epoch in self.epochs) if self.epochs else None

    @property
    def planned_s(self) -> float | None:
        """Median of the planned seconds of the same epochs."""
        planned = [epoch.planned_s for epoch in self.epochs if epoch.planned_s is not None]
        return statistics.median(planned) if planned else None

    def act(self, what: str) -> "Act | None":
        """Return the first act of that kind, if there was one."""
        return next((act for act in self.acts if act.what == what), None)

    def counts_after(self, name: str, at: float) -> float | None:
        """Return how many seconds after `at` a volunteer's gradient first counted."""
        return next((when - at for when in self.counted.get(name, ()) if when > at), None)

    def counted_until(self, name: str, at: float) -> float:
        """Return how many seconds after `at` a volunteer's gradient counted for the last time, or 0."""
        return max((when - at for when in self.counted.get(name, ()) if when > at), default=0.0)


class _Seen:
    """The events of all peers of a rehearsal, read once."""

    def __init__(self, stage: "Stage", rehearsal: "Rehearsal", over: float) -> None:
        self.card, self.rehearsal, self.over, self.acts = stage.card, rehearsal, over, stage.acts
        self.plugs: Mapping[str, Plug] = stage.plugs
        self.events = {
            name: [event for start in read_starts(peer.folder) for event in start] for name, peer in stage.peers.items()
        }
        self.names = {event["peer_id"]: name for name in self.events for event in self.kind(name, "joined")}
        self.speeds: dict[str, float] = {}
        for peer in stage.peers.values():
            if (status := SwarmStatus.read(peer.folder)) is not None:
                self.speeds |= {one.name: one.samples_per_s for one in status.peers if one.samples_per_s > 0}

    def kind(self, name: str, *kinds: str) -> list[dict]:
        """Return a peer's events of these kinds, until all were asked to leave."""
        return [event for event in self.events[name] if event["event"] in kinds and event["time"] < self.over]

    @cached_property
    def counted(self) -> dict[str, tuple[float, ...]]:
        """When each volunteer's gradients counted in rounds with others."""
        times: dict[str, set[float]] = {}
        for teller in self.events:
            for event in self.kind(teller, "averaged"):
                others = [one for one in self._counted_in(event) if one != teller or len(event["counted"]) > 1]
                for name in others:
                    times.setdefault(name, set()).add(event["time"])
        return {name: tuple(sorted(found)) for name, found in times.items()}

    def _counted_in(self, event: dict) -> list[str]:
        return [self.names.get(peer, peer[-6:]) for peer, weight in event["counted"].items() if weight > 0]

    def part(self, name: str) -> Part:
        """Return what one peer did."""
        entered = next(act.time for act in self.acts if act.what == "enters" and act.name == name)
        joined, rounds = self.kind(name, "joined"), self.kind(name, "averaged")
        killed = [act.time for act in self.acts if act.what == "is killed" and act.name == name]
        failed = [
            event["error"]
            for event in self.kind(name, "failed")
            if not any(0 <= event["time"] + UNLIKE_S - at < 60 for at in killed)
        ]
        whole = self.kind(name, "epoch")
        return Part(
            name=name,
            is_client=name in self.rehearsal.names and self.rehearsal.settings(name).client_mode,
            trained_s=joined[0]["time"] - entered if joined else None,
            counted_s=next((when - entered for when in self.counted.get(name, ())), None),
            epochs=len(whole),
            samples=sum(event["samples"] for event in whole),
            lost=sum(event["samples"] for event in self.kind(name, "left_out") if is_loss(event)),
            failed_rounds=sum(event["error"] is not None for event in rounds),
            rounds=len(rounds),
            sent_bytes=self.plugs[name].up.bytes_through,
            received_bytes=self.plugs[name].down.bytes_through,
            **self._settled(name),
            error=failed[0] if failed else None,
            problems=dict(Counter(event["problem"] for event in self.kind(name, "problem"))),
        )

    @cached_property
    def rounds(self) -> dict[int, tuple[str, ...]]:
        """Whose gradients counted in each epoch, as the largest of its rounds has it."""
        counted: dict[int, list[str]] = {}
        for name in self.events:
            for event in self.kind(name, "averaged"):
                counted[event["epoch"] + 1] = max(self._counted_in(event), counted.get(event["epoch"] + 1, []), key=len)
        return {number: tuple(sorted(names)) for number, names in counted.items()}

    def epochs(self, began: float) -> Iterable[Epoch]:
        """Yield the epochs after the first, with what the plan says for those whose gradients counted in each."""
        ends: dict[int, float] = {}
        for name in self.events:
            for event in self.kind(name, "epoch"):
                ends[event["epoch"]] = min(event["time"], ends.get(event["epoch"], event["time"]))
        for number in sorted(ends):
            if number - 1 in ends and ends[number - 1] >= began - 1.0:
                plan = self._plan(names := self.rounds.get(number, ()))
                yield Epoch(number=number, ended=ends[number], seconds=ends[number] - ends[number - 1],
                            planned_s=plan and plan.epoch_s, counted=names)  # fmt: skip

    def _settled(self, name: str) -> dict[str, float | None]:
        rounds = [
            event
            for event in self.kind(name, "averaged")
            if event["error"] is None and len(event["counted"]) > 1 and min(event["counted"].values()) > 0
        ]
        plans = [self._plan(tuple(sorted(self._counted_in(event)))) for event in rounds]
        own = [one.sent_per_epoch for plan in filter(None, plans) for one in plan.traffic if one.name == name]
        return {
            "settled_rounds": len(rounds), "settled_bytes": sum(event["bytes_sent"] for event in rounds),
            "planned_bytes": sum(own) if rounds and len(own) == len(rounds) else None,
        }  # fmt: skip

    def _plan(self, names: tuple[str, ...]) -> Plan | None:
        """Return what the plan says of an epoch with these. Who left before a speed was told has the others' usual one:
        they share this machine."""
        if not names or not self.speeds or not set(names) <= set(self.rehearsal.names):
            return None
        usual = statistics.median(self.speeds.values())
        machines = [
            Machines(
                name=name, samples_per_second=self.speeds.get(name, usual), up_mbps=self.rehearsal.up,
                down_mbps=self.rehearsal.down, reduces=not self.rehearsal.settings(name).client_mode,
                batch_size=self.rehearsal.batch_size,
            )
            for name in names
        ]  # fmt: skip
        if len(machines) > 1 and not any(one.reduces for one in machines):
            return None  # their round can only have been with somebody who is not known by name
        return plan_run(Work.of(self.card), machines)

    def told(self) -> dict[str, str]:
        """Return what ended a banned volunteer's peer, or "" if nothing did."""
        banned = {act.name: act.time for act in self.acts if act.what == "is banned"}
        return {
            name: next((event["error"] for event in self.kind(name, "failed") if event["time"] > at), "")
            for name, at in banned.items()
        }

    def failures(self) -> dict[str, int]:
        """Return why rounds failed, and how often; reasons of one kind count as one."""
        errors = [event["error"] for name in self.events for event in self.kind(name, "averaged")]
        return dict(Counter(filter(None, errors)))
