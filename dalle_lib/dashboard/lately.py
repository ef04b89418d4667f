"""What went wrong with a peer lately, and what its last update holds, in lines for a terminal and a notebook."""

import time

from dalle_lib.amounts import count, duration
from dalle_lib.one_line import printable
from dalle_lib.swarm.averaging.complaints import RUN
from dalle_lib.swarm.process.events import is_loss, own_id
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.troubles import trouble_in

RECENT_EVENTS = 12
"""Last events in which troubles are looked for."""


def last_round(events: list[dict], swarm: SwarmStatus | None = None) -> list[str]:
    """Return lines that say whose gradients the last update holds, and `troubles`: none before an update."""
    rounds = [event for event in events if event["event"] == "averaged"]
    if not rounds:
        return []
    last, own = rounds[-1], own_id(events)
    of_all = f"the gradients of {count(last['peers'], 'peer')}; yours are {last['shares'].get(own, 0.0):.0%} of it"
    held = "your gradient alone" if list(last["shares"]) == [own] else of_all
    return [f"The update of epoch {last['epoch']} holds {held}.", *troubles(events, swarm)]


def troubles(events: list[dict], swarm: SwarmStatus | None = None) -> list[str]:
    """Return lines that say what went wrong lately, with the names of peers that are in `swarm`, and ends of their ids.

    A name is what a peer says of itself; its id cannot be another's.
    """
    names = {} if swarm is None else {peer.peer_id: f"{peer.name} " for peer in swarm.peers}
    own = own_id(events)
    rounds = [event for event in events if event["event"] == "averaged"]
    lines = [f"Epoch {last['epoch']}: {printable(last['error'])}." for last in rounds[-1:] if last["error"]]
    lines += [f"Data: {printable(last['left_out'])}." for last in [e for e in events if e["event"] == "data"][-1:]]
    for event in events[-RECENT_EVENTS:]:
        # A peer that comes back after a pause takes over what it missed, and a newcomer's first gradient counts in the
        # next round: neither is trouble, because nothing that the volunteer computed is lost. To go back an epoch is.
        if event["event"] == "left_out" and event.get("gave_way"):
            lines.append(_gave_way(event))
        elif is_loss(event):
            lost = f"{event['samples']} samples of yours are"
            lines.append(f"{lost} not in the others' update of epoch {event['epoch']}: {printable(event['reason'])}.")
        if event["event"] == "drifted":
            usual = f"those of most are {event['usual']:.1%} apart, and averaging explains {event['explained']:.1%}"
            lines.append(
                f"The parameters of this peer were off by {event['off']:.1%} after update {event['epoch']}, where "
                f"{usual}: those of the others take their place."
            )
        if event["event"] == "problem":
            who = f"Peer {names.get(event['peer'], '')}(…{event['peer'][-6:]})"
            told = "This peer" if event["peer"] in ("", own) else printable(who)
            lines.append(f"{'' if event['peer'] == RUN else f'{told}: '}{printable(event['problem'])}.")
        if event["event"] == "woke":
            lines.append(_woke(event))
    return lines


def _gave_way(event: dict) -> str:
    """Return what a peer whose part of the run gave way has lost, and how it goes on."""
    lost, (since, goes_on) = "none of your samples is lost", event["gave_way"]
    if event["samples"]:
        epochs = f"epoch {since:,}" if since == event["epoch"] else f"epochs {since:,} to {event['epoch']:,}"
        lost = f"{event['samples']:,} of your samples ({epochs}) {'is' if event['samples'] == 1 else 'are'} lost"
    how = f"took over the others' state of epoch {goes_on:,} and goes on"
    if event["is_waiting"]:
        how = f"waits to average its parameters with the others', who are in epoch {goes_on:,}"
    return f"Your part of the run gave way: {lost}. Your peer {how}."


def _woke(event: dict) -> str:
    """Return for how long a computer has slept, as far as its clocks tell: one that was set has jumped, too."""
    when = time.strftime("%H:%M", time.localtime(event["time"]))
    slept = f"slept for {duration(event['seconds'])}, or its clock was set"
    did = slept if event["seconds"] else "had its clock set back"
    return f"{when}: this computer {did}. Your peer goes on by itself."


def what_it_means(line: str) -> str | None:
    """Return a line that leads to the entry about a message in docs/troubleshooting.md; None if it has none."""
    trouble = trouble_in(line)
    return None if trouble is None else f"What it means: {trouble.link}"
