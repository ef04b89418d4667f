"""What went wrong with a peer lately, and what its last update holds, in lines for a terminal and a notebook."""

from dalle_lib.amounts import count
from dalle_lib.one_line import printable
from dalle_lib.swarm.process.events import is_loss
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.troubles import trouble_in

RECENT_EVENTS = 12
"""Last events in which troubles are looked for."""


def last_round(events: list[dict], swarm: SwarmStatus | None = None) -> list[str]:
    """Return lines that say whose gradients the last update holds, and `troubles`: none before an update."""
    rounds = [event for event in events if event["event"] == "averaged"]
    if not rounds:
        return []
    last, own = rounds[-1], next(event["peer_id"] for event in events if event["event"] == "joined")
    of_all = f"the gradients of {count(last['peers'], 'peer')}; yours are {last['shares'].get(own, 0.0):.0%} of it"
    held = "your gradient alone" if list(last["shares"]) == [own] else of_all
    return [f"The update of epoch {last['epoch']} holds {held}.", *troubles(events, swarm)]


def troubles(events: list[dict], swarm: SwarmStatus | None = None) -> list[str]:
    """Return lines that say what went wrong lately, with the names of peers that are in `swarm`, and ends of their ids.

    A name is what a peer says of itself; its id cannot be another's.
    """
    names = {} if swarm is None else {peer.peer_id: f"{peer.name} " for peer in swarm.peers}
    own = next((event["peer_id"] for event in events if event["event"] == "joined"), "")
    rounds = [event for event in events if event["event"] == "averaged"]
    lines = [f"Epoch {last['epoch']}: {printable(last['error'])}." for last in rounds[-1:] if last["error"]]
    lines += [f"Data: {printable(last['left_out'])}." for last in [e for e in events if e["event"] == "data"][-1:]]
    for event in events[-RECENT_EVENTS:]:
        # A peer that comes back after a pause takes over what it missed, and a newcomer's first gradient counts in the
        # next round: neither is trouble, because nothing that the volunteer computed is lost.
        if is_loss(event):
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
            lines.append(f"{told}: {printable(event['problem'])}.")
    return lines


def what_it_means(line: str) -> str | None:
    """Return a line that leads to the entry about a message in docs/troubleshooting.md; None if it has none."""
    trouble = trouble_in(line)
    return None if trouble is None else f"What it means: {trouble.link}"
