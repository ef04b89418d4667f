"""What taking part would come to: how long an epoch takes, when milestones are reached, what a day sends and receives.

All seconds and bytes are those of `dalle_lib.planning.plan_run`, of this machine and of the others: those that are
there now where that is known, or else none, and TYPICAL_OTHERS.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dalle_lib.amounts import count, duration
from dalle_lib.checks.company import Company
from dalle_lib.checks.preflight import Check
from dalle_lib.checks.speed import Speed, speed_here
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.sizing import expected, traffic
from dalle_lib.planning import Machines, Plan, Work, plan_run
from dalle_lib.planning.constants import DAY_S, HOME_DOWN_MBPS, HOME_UP_MBPS
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.upload import REDUCES_FROM_MBPS
from dalle_lib.swarm.peer.computing.pace import STEPS_AN_EPOCH
from dalle_lib.swarm.peer.computing.trials import MAX_AT_ONCE
from dalle_lib.swarm.process.milestones import seconds_until
from dalle_lib.swarm.process.settings import PeerSettings

TYPICAL_OTHERS = 7
"""Other volunteers that are assumed where nobody could be asked who is there; their machines are those of
`dalle_lib.organizing.sizing.expected`."""
MAX_SHOWN = 4
"""Milestones that are told, the nearest ones."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What was found of this machine's connection."""

    mbps: float | None
    """Megabits a second to a first peer; None if that was not measured."""
    reduces: bool | None
    """Whether others can connect, so that this machine averages for them; None if that is not known."""


def forecast_checks(card: RunCard, settings: PeerSettings, company: Company, link: Link) -> Iterator[Check]:
    """Yield rows with this machine's samples a second in a run, and what follows from them; none of them can fail."""
    try:
        speed = speed_here(card.model, settings)
    except (ValueError, RuntimeError, MemoryError) as error:  # no such GPU, or no room for one sample
        yield Check(
            "speed", "any", f"not measured: {in_one_line(error)}", True, "try --device cpu, or a GPU with more memory"
        )
        return
    told = f"{_span(speed.low, speed.high, _rate)} samples a second on {speed.where} ({speed.how})"
    yield Check("speed", "any", told, True, figures={"samples_per_second": [speed.low, speed.high], **_plain(speed)})
    cases = [Case.of(card, settings, speed, link, speeds) for speeds in _cases(card, company)]
    yield _epoch(cases, company)
    yield _milestones(card, cases[-1], company)
    yield _traffic(card, cases[-1], company)


def _plain(speed: Speed) -> dict[str, object]:
    return {"device": speed.where, "is_measured": speed.is_measured}


def _cases(card: RunCard, company: Company) -> list[list[Machines]]:
    """Return the others in each case that is told: those that are there, or nobody and then TYPICAL_OTHERS."""
    if company.speeds is None:
        return [[], expected(card.model, TYPICAL_OTHERS)]
    if not company.speeds:
        return [[]]
    others = expected(card.model, len(company.speeds))
    if mean := sum(company.speeds) / len(company.speeds):  # else they have just come
        others = [replace(group, samples_per_second=mean) for group in others]
    return [others]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Plans of a run with the same others, from the quickest to the slowest that this machine and its link may be."""

    others: int
    share: float
    """The part of an epoch's samples that this machine computes, by the lower end of its speed."""
    hours: float
    """Hours of a day in which this machine computes; seconds of epochs are means over the whole day."""
    plans: tuple[Plan, ...]

    @classmethod
    def of(cls, card: RunCard, settings: PeerSettings, speed: Speed, link: Link, others: list[Machines]) -> "Case":
        """Return the plans of this machine with these others."""
        work = Work.of(card)
        if not card.data.train.startswith("hf://"):
            work = work.with_changes(codes=0)  # the data come with the run, once
        theirs = sum(group.count * group.samples_per_second for group in others)
        reduces = [link.reduces] if link.reduces is not None else [False, True]
        if settings.max_upload_mbps is not None and settings.max_upload_mbps < REDUCES_FROM_MBPS:
            reduces = [False]
        plans = [
            plan_run(work, [_this_machine(settings, rate, theirs, link, is_reducer, work.target_batch_size), *others])
            for rate in (speed.low, speed.high)
            for is_reducer in reduces
        ]
        hours = settings.hours_a_day
        own = hours / 24 * speed.low
        return cls(
            hours=hours,
            others=round(sum(group.count for group in others)),
            share=own / (own + theirs),
            plans=tuple(sorted(plans, key=lambda plan: plan.epoch_s)),
        )

    @property
    def epoch_s(self) -> tuple[float, float]:
        """Seconds of an epoch, at least and at most."""
        return self.plans[0].epoch_s, self.plans[-1].epoch_s


def _this_machine(
    settings: PeerSettings, rate: float, theirs: float, link: Link, is_reducer: bool, target: int
) -> Machines:
    own = target * rate / (rate + theirs)
    up = max(0.1, HOME_UP_MBPS if link.mbps is None else link.mbps)
    return Machines(
        name="this machine", samples_per_second=rate, hours_a_day=settings.hours_a_day, reduces=is_reducer,
        up_mbps=min(up, settings.max_upload_mbps or up), down_mbps=max(up, HOME_DOWN_MBPS),
        batch_size=max(1, min(settings.batch_size or MAX_AT_ONCE, int(own / STEPS_AN_EPOCH))),
    )  # fmt: skip


def _epoch(cases: list[Case], company: Company) -> Check:
    told = []
    for case in cases:
        of_it = f", {case.share:.0%} of it here" if case.others else ""
        told.append(f"{_with(case, company)} {_span(*case.epoch_s, duration)}{of_it}")
    if company.speeds is None:
        told.append(f"nobody could be asked who is there: {company.why_unknown}")
    if (hours := cases[0].hours) < 24:
        told.append(f"means over days of which your schedule leaves {hours:g} hours")
    figures = {"others": [case.others for case in cases], "epoch_s": [list(case.epoch_s) for case in cases]}
    return Check("an epoch", "any", "; ".join(told), True, figures=figures)


def _with(case: Case, company: Company) -> str:
    """Return who takes part in a case, in words."""
    if not case.others:
        return "alone"
    if company.speeds is None:
        return f"with {case.others} others, an assumption,"
    return f"with the {count(case.others, 'peer')} that {'is' if case.others == 1 else 'are'} there ({company.source})"


def _assumed(case: Case, company: Company) -> str:
    """Return what begins a row that holds for others who are not known to be there."""
    return f"{_with(case, company).rstrip(',')}: " if company.speeds is None else ""


def _milestones(card: RunCard, case: Case, company: Company) -> Check:
    """Return when the next milestones are reached, of those that the rest of the run has room for."""
    left, figures, told = max(0, card.optimizer.total_epochs - company.epoch), {}, []
    soon, late = (seconds_until(epoch_s, left) for epoch_s in case.epoch_s)
    for name in sorted(soon.keys() & late.keys(), key=late.__getitem__)[:MAX_SHOWN]:
        figures[name] = [soon[name], late[name]]
        told.append(f"{name} after {_span(soon[name], late[name], duration)}")
    ends = [left * epoch_s for epoch_s in case.epoch_s]
    if not case.others:
        told, figures = ["epochs count with others only"], {}
    told.append(f"the run is complete after {_span(*ends, duration)}" if left else "the run is complete")
    here = _assumed(case, company) + "; ".join(told)
    return Check("milestones", "any", here, True, figures={"seconds": figures, "complete_s": ends})


def _traffic(card: RunCard, case: Case, company: Company) -> Check:
    """Return what this machine sends and receives in a day of taking part, or in the rest of a run that is shorter."""
    left, amounts = max(0, card.optimizer.total_epochs - company.epoch), []
    for plan in case.plans:
        own, days = plan.traffic[0], min(1.0, left * plan.epoch_s / DAY_S)
        amounts.append((days * own.sent_per_day, days * own.received_per_day))
    up, down = ([min(way), max(way)] for way in zip(*amounts, strict=True))
    is_short = left * case.epoch_s[1] < DAY_S
    here = f"{_assumed(case, company)}{_span(*up, traffic)} up, {_span(*down, traffic)} down"
    here += " until the run is complete" if is_short else " a day"
    if not case.others:
        here = "none while nobody else is there"
    elif max(up) > 2 * min(up):
        here += "; the least with --client-mode, or if others cannot connect to this machine"
    period = min(DAY_S, left * case.epoch_s[1])
    return Check("traffic", "any", here, True, figures={"seconds": period, "sent_bytes": up, "received_bytes": down})


def _span(low: float, high: float, words) -> str:
    """Return a range in words, or one amount where both ends read alike."""
    ends = words(low), words(high)
    return f"about {ends[0]}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f}" if samples_per_s >= 10 else f"{samples_per_s:.2g}"
