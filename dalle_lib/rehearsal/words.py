"""A rehearsal's report in words: what was seen, and what would have gone wrong."""

from dalle_lib.organizing.sizing import traffic
from dalle_lib.rehearsal.report import SLOWER, Part, Report

MAX_TOLD = 5
"""Causes of one kind that are told."""


def in_words(report: Report) -> str:
    """Return the report as an organiser reads it."""
    rehearsal = report.rehearsal
    lines = [
        f"Run:      {report.run}, {rehearsal.volunteers} volunteers on links of {rehearsal.up:g} Mbit/s up and "
        f"{rehearsal.down:g} down.",
        *_titled("Joining", [_joining(part) for part in report.parts if part.name in rehearsal.names]),
        *_titled("Refused", _refused(report)),
        *_titled("Banned", _banned(report)),
        *_titled("Killed", _killed(report)),
        *_titled("Leaving", _left(report)),
        *_titled("Epochs", [_epochs(report)]),
        *_titled("Rounds", [_rounds(report)]),
        *_titled("Traffic", [*map(_traffic, report.parts), _joins(report)]),
        *_titled("Monitor", _kept(report)),
    ]
    problems = wrong(report)
    lines += _titled("Wrong", problems) if problems else ["Wrong:    nothing that this rehearsal could show."]
    return "\n".join(lines)


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title + ':' if not number else '':10}{line}" for number, line in enumerate(lines)]


def _joining(part: Part) -> str:
    how = ", which accepts no connections" if part.is_client else ""
    if part.trained_s is None:
        return f"{part.name}{how}, never trained."
    counted = "none of its gradients counted" if part.counted_s is None else f"counted after {part.counted_s:.0f} s"
    return f"{part.name}{how}, trained after {part.trained_s:.0f} s; {counted}."


def _refused(report: Report) -> list[str]:
    if (act := report.act("is refused")) is None:
        return [] if report.act("is admitted") else ["nobody: the card has no members, so everybody may join."]
    return [f"{act.name}, who is no member, is told: {act.told}"]


def _banned(report: Report) -> list[str]:
    if (act := report.act("is banned")) is None:
        return []
    return [
        f"{act.name}'s gradients last counted {report.counted_until(act.name, act.time):.0f} s after its ban.",
        f"It says: {report.told[act.name] or 'nothing'}",
    ]


def _killed(report: Report) -> list[str]:
    act = report.act("is killed")
    if act is None:
        return []
    usual, longest = report.epoch_s, _longest_after(report, act.time)
    cost = "" if longest is None else f" The epochs around it took up to {longest:.0f} s, usually {usual:.0f} s."
    back = [one.time for one in report.acts if one.what == "enters" and one.name == act.name and one.time > act.time]
    counted = report.counts_after(act.name, back[0]) if back else None
    again = "did not count again" if counted is None else f"counted again {counted:.0f} s after it came back"
    return [f"{act.name}, as by a power cut.{cost} It {again}."]


def _left(report: Report) -> list[str]:
    if (act := report.act("leaves")) is None:
        return []
    longest = _longest_after(report, act.time)
    return [f"{act.name}." + ("" if longest is None else f" The epochs around it took up to {longest:.0f} s.")]


def _longest_after(report: Report, at: float) -> float | None:
    """Return the seconds of the longer of the epoch in which something was done and the one after it."""
    after = [epoch.seconds for epoch in report.epochs if epoch.ended > at][:2]
    return max(after, default=None)


def _epochs(report: Report) -> str:
    if report.epoch_s is None:
        return "none ended."
    planned = f"; the plan says {report.planned_s:.1f} s for those whose gradients counted" if report.planned_s else ""
    return f"{len(report.epochs)} after the first, of {report.epoch_s:.1f} s (median){planned}."


def _rounds(report: Report) -> str:
    failed, rounds = (sum(getattr(part, name) for part in report.parts) for name in ("failed_rounds", "rounds"))
    lost = sum(part.lost for part in report.parts)
    return f"{rounds - failed} of {rounds} were whole, counted by each of their peers; {lost:,} samples were lost."


def _traffic(part: Part) -> str:
    told = f"{part.name} sent {traffic(part.sent_bytes)} and received {traffic(part.received_bytes)}"
    if part.epochs:
        told += f" in {_epochs_of(part.epochs)}"
    if part.planned_bytes is None:
        return f"{told}."
    rounds = "the round" if part.settled_rounds == 1 else f"the {part.settled_rounds} rounds"
    sent, planned = traffic(part.settled_bytes), traffic(part.planned_bytes)
    return f"{told}; in {rounds} that were whole and without joins it sent {sent}, planned were {planned}."


def _joins(report: Report) -> str:
    whose = "the newest checkpoint, or from a volunteer" if report.kept and report.kept.is_sent else "a volunteer"
    state = traffic(report.state_bytes)
    return f"Who joins or comes back later takes over a state of {state} from {whose}; each checkpoint is one, too."


def _kept(report: Report) -> list[str]:
    if (kept := report.kept) is None or not kept.taken:
        return []
    epochs = f"{len(kept.taken)} checkpoints were taken, of epochs {', '.join(map(str, kept.taken))}"
    sent = f"{len(kept.sent)} of them are at the stand-in for the Hub"
    drawn = "" if kept.drawn is None else f" `generate --run` draws with that of epoch {kept.drawn}."
    credited, computed = sum(kept.credited.values()), sum(kept.computed.values())
    return [
        f"{epochs}; {sent}.{drawn}" if kept.is_sent else f"{epochs}; none is sent, as the data are on the true Hub.",
        f"Its leaderboard credits {credited:,.0f} samples; the volunteers computed {computed:,} in whole epochs.",
        *([] if kept.spread is None else [f"Parameters of most volunteers were {kept.spread:.2%} apart at most."]),
        *(f"It said: {told}" for told in kept.alarms[:MAX_TOLD]),
    ]


def _epochs_of(count: int) -> str:
    return "an epoch" if count == 1 else f"{count} epochs"


def wrong(report: Report) -> list[str]:
    """Return what would have gone wrong with real volunteers, a sentence or two each."""
    told = _wrong_epochs(report)
    banned = act.name if (act := report.act("is banned")) else None
    told += [
        f"{part.name} ended: {part.error}" for part in report.parts if part.error is not None and part.name != banned
    ]
    told += [
        f"{'Once' if count == 1 else f'{count} times'} a round failed for a peer: {why}"
        for why, count in sorted(report.failures.items(), key=lambda one: -one[1])[:MAX_TOLD]
    ]
    told += [
        f"{part.lost:,} of {part.samples:,} samples of {part.name} were lost: it was behind, or left out."
        for part in report.parts
        if part.lost
    ]
    told += [
        f"{part.name} trained, and its gradients never counted."
        for part in report.parts
        if part.trained_s is not None and part.counted_s is None and part.name in report.rehearsal.names
    ]
    if act := report.act("is admitted"):
        told.append(f"{act.name}, who is no member, was admitted.")
    told += _wrong_return(report)
    told += _wrong_kept(report)
    act = report.act("is banned")
    if act is not None and not report.told[act.name]:
        told.append(f"{act.name} was banned, and trained on until the end.")
    return told


def _wrong_return(report: Report) -> list[str]:
    if (killed := report.act("is killed")) is None:
        return []
    back = [act.time for act in report.acts if act.what == "enters" and act.name == killed.name]
    if back[-1] < killed.time or report.counts_after(killed.name, back[-1]) is not None:
        return []
    left = report.over - back[-1]
    return [f"{killed.name} came back, and did not count again in the {left:.0f} s that were left: give more minutes."]


def _wrong_kept(report: Report) -> list[str]:
    if (kept := report.kept) is None:
        return []
    if not kept.taken:
        return ["The monitor kept no checkpoint: monitor.log in --out says more."]
    told = []
    if kept.is_sent and (unsent := set(kept.taken) - set(kept.sent)):
        told.append(f"The checkpoints of epochs {', '.join(map(str, sorted(unsent)))} were not sent.")
    if kept.is_sent and kept.drawn != max(kept.sent, default=None):
        told.append(
            f"`generate --run` does not draw with the last checkpoint that was sent: {kept.told or kept.drawn}."
        )
    for name in kept.unlike(report.epoch_samples):
        has, did = kept.credited.get(name, 0.0), kept.computed[name]
        told.append(f"{name} is credited with {has:,.0f} samples, and computed {did:,}.")
    return told


def _wrong_epochs(report: Report) -> list[str]:
    rehearsal = report.rehearsal
    if report.epoch_s is None:
        return [
            "No epoch ended after the first, so nothing is known of averaging. Give the rehearsal more minutes, or "
            "epochs of fewer samples with --samples."
        ]
    told = []
    if report.planned_s and report.epoch_s > SLOWER * report.planned_s:
        busy = rehearsal.device == "cpu" and rehearsal.volunteers > report.cores
        why = f" They shared {report.cores} cores here, which slows averaging too." if busy else ""
        told.append(f"Epochs took {report.epoch_s / report.planned_s:.1f} times as long as planned.{why}")
    return told
