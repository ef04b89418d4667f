"""How a peer stands, in plain words, the same in a terminal and a notebook: its state, a line an epoch, its totals."""

import time
from collections.abc import Callable

from dalle_lib.amounts import count, duration, moment
from dalle_lib.one_line import printable
from dalle_lib.swarm.process.addresses import CONNECT_S
from dalle_lib.swarm.process.events import HUB, RESTING
from dalle_lib.swarm.process.lending import REASONS, Hold, hold_in_words
from dalle_lib.swarm.process.standing import AT_WORK, LOOKS_ON, Standing
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

Invite = Callable[[list[str]], str]
"""Says how friends join a peer that listens at these addresses."""
COMPLETE = (
    "Peers that have left say that this run is complete. What you train now is of no use to them: ask the run's "
    "organiser for the model."
)
ALONE_EPOCHS = 3
"""Epochs without others after which whoever expected some is told what that may mean."""
NOBODY_OF_THIS_RUN = (
    "You have trained alone so far: a first peer answered, but nobody trains this run with you. It may be a bootstrap "
    "peer that waits for trainers, or a peer of another run: compare your run's name and its run.json with the others'."
)
STAYS = "The run is complete; staying until its monitor has the last state"
COMPLETE_HERE = "Peers that have left say that the run is complete; newcomers learn it here"
UNREACHED = "Others cannot reach this machine: it computes, others reduce"
NOBODY_REDUCES = "Others cannot reach this machine, and nobody else is there yet who reduces: so it does"
LOOKING = f"Looking for the other peers, for at most {CONNECT_S:.0f} s"
UNTOLD = (
    "Ended without saving, as far as its events tell: it was killed, the machine was switched off, or its disk took no "
    "more events"
)
ASKED = {"pause": "it pauses after this batch", "finish": "it leaves after this epoch"}
"""What a peer at work that its volunteer has asked something of is about to do."""
MAX_NAMED = 8
"""Peers that are named; of more, the number is told."""


def state_in_words(standing: Standing) -> str:
    """Return what a peer does now, or how it ended, as a sentence without its full stop."""
    if standing.asked is not None and standing.state in AT_WORK:
        return f"{_state_in_words(standing)}; {ASKED[standing.asked]}"
    if standing.asked == "finish" and standing.state == "paused":
        return f"{_state_in_words(standing)}; it was asked to leave"
    return _state_in_words(standing)


def _state_in_words(standing: Standing) -> str:
    alone = standing.peers is not None and standing.peers <= 1
    at = "" if standing.epoch is None else f" at epoch {standing.epoch}"
    if standing.taking is not None:
        return _taking(standing.taking)
    if standing.state == "training" and standing.is_complete:
        return STAYS
    return {
        "postponed": "Waiting until its time to start has come",
        "starting": "Starting: loading the model" if standing.role == "trainer" else "Starting",
        "looking": LOOKING,
        "catching up": "Connected: taking over the others' progress, if there is any",
        "training": "Training alone: nobody else is there now" if alone else "Training with the others",
        "averaging": "Averaging gradients with the others",
        "paused": _paused(standing),
        "waiting": "Waiting for the others' next round, to have the same model as they",
        "helping": _helping(standing),
        "leaving": "Leaving: saving, and telling the others",
        "left": f"Left the run; progress is saved{at}",
        "complete": f"The run is complete{at}; the model is saved",
        "failed": f"Ended by an error: {printable(standing.error or '')}",
        "killed": UNTOLD,
        "ended": "Stopped, with nothing to save",
    }[standing.state]


def _paused(standing: Standing) -> str:
    """Return what holds a peer, and how it goes on where that is not by itself."""
    if standing.hold is None:
        return "Paused"
    by_itself = "" if standing.hold.reason != "you" else "; `dalle-lib resume` lets it go on"
    told = hold_in_words(standing.hold)
    return f"{told[0].upper()}{told[1:]}{by_itself}"


def _held_or_going_on(event: dict) -> str:
    """Return what began to hold a peer, or that it went on, with the time."""
    when, told = time.strftime("%H:%M", time.localtime(event["time"])), "goes on"
    if event["event"] == RESTING:
        told = hold_in_words(Hold("month", event["until"]), event["time"])
    if event["event"] == "held":
        is_known = event["reason"] in REASONS
        told = hold_in_words(Hold(event["reason"], event["until"]), event["time"]) if is_known else "paused"
    return f"{when}: {told}."


def proof_line(standing: Standing) -> str | None:
    """Return until when a volunteer's proof of identity counts, where their run asks for one and the peer runs."""
    if standing.proof_until is None or standing.state not in LOOKS_ON:
        return None
    return f"Your proof of identity counts until {moment(standing.proof_until)}; then the peer leaves"


def last_looked(standing: Standing) -> str | None:
    """Return how long ago a peer last saw the others, where that is too long ago to tell it as if it were now."""
    age = standing.old_look_s
    return None if age is None else f"Last looked for the others {duration(age)} ago"


def _taking(taking: dict) -> str:
    """Return how it stands with a state that a peer takes over."""
    if taking["source"] == HUB:
        return f"Fetching the run's newest checkpoint: {taking['share']:.0%} is here"
    if taking["place"] is None:
        return f"Taking over the state of another peer: {taking['share']:.0%} is here"
    if taking["place"] == 0:
        return "Next to get the state of another peer, which averages with the others for some seconds"
    wait = f", about {duration(taking['wait_s'])}" if taking["wait_s"] else ""
    return f"Waiting for the state of another peer: place {taking['place']:,} in its line{wait}"


def _helping(standing: Standing) -> str:
    """Return what a bootstrap peer does now, by whom it sees."""
    swarm = standing.swarm
    if swarm is None:
        return "Helping other peers to find each other"
    if (looked := last_looked(standing)) is not None:
        return looked
    if swarm.peers:
        paused = len(swarm.peers) - len(swarm.at_work)
        of_them = f" ({paused:,} of them paused)" if paused else ""
        return f"Helping {count(len(swarm.peers), 'trainer')}{of_them} and newcomers to find each other"
    return COMPLETE_HERE if swarm.said_complete else "Waiting for trainers: nobody is there now"


def name_of(peer: PeerStatus) -> str:
    """Return a peer's name, and whether it is paused."""
    return f"{peer.name} (paused)" if peer.is_held else peer.name


def who_is_there(swarm: SwarmStatus) -> str:
    """Return how fast the peers of a swarm are together, and the names of the first MAX_NAMED of them."""
    names = [name_of(peer) for peer in swarm.peers]
    others = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    speed = sum(peer.samples_per_s for peer in swarm.at_work)
    return f"together {speed:,.0f} samples a second: {', '.join([*names[:MAX_NAMED], *others])}"


def helped_line(standing: Standing) -> str:
    """Return what a bootstrap peer sees: `12/60 · 3 peers · together 21 samples a second: ada, bob, eve`."""
    is_shown = standing.swarm.peers and standing.old_look_s is None
    there = who_is_there(standing.swarm) if is_shown else _helping(standing)
    return " · ".join([*facts_of(standing), there])


def line_of(standing: Standing) -> str:
    """Return what matters of a peer: `12/60 · loss 1.43 · 3 peers · yours 31% · 2,192 samples · 5 min left`.

    `yours` is the share of its gradient in the last update, with a dash where that is its own gradient alone. Samples
    are counted over all its starts. What is not known yet is left out.
    """
    return " · ".join(facts_of(standing))


def facts_of(standing: Standing) -> list[str]:
    """Return the parts of `line_of`."""
    facts = [epoch_of(standing)]
    if standing.loss is not None:
        facts.append(f"loss {standing.loss:.2f}")
    if standing.peers:
        facts.append(count(standing.peers, "peer"))
    if standing.share is not None:
        facts.append(f"yours {standing.share:.0%}")
    elif not standing.has_averaged:
        facts.append("yours – (not averaged)")
    if standing.role == "trainer":
        facts.append(count(standing.totals.samples, "sample"))
    if standing.seconds_left is not None:
        facts.append(f"{duration(standing.seconds_left)} left")
    return facts


def epoch_of(standing: Standing) -> str:
    """Return a peer's epoch of how many, `12/60`, with a dash for what is not known yet."""
    return f"{_or_dash(standing.epoch)}/{_or_dash(standing.total_epochs)}"


def news(events: list[dict], invite: Invite | None = None, *, expects_others: bool = False) -> list[str]:
    """Return where a peer listens and whom it found, as far as its events tell; or that it still looks for them.

    After these come when something began to hold it, and when it went on.

    `invite` says instead where it listens, for those who may join it there. `expects_others` says that it joined a run
    that others have begun: to train alone is no wonder for one that begins a run itself.
    """
    lines = [f"{LOOKING}."] if expects_others and events and events[-1]["event"] == "loaded" else []
    for event in events:
        if event["event"] == "connected" and event["addresses"] and invite is not None:
            lines += invite(event["addresses"]).splitlines()
        elif event["event"] == "connected":
            where = ", ".join(sorted({_host_and_port(address) for address in event["addresses"]}))
            lines.append(f"Listening on {where}." if where else "Connecting out only, accepting no connections.")
        if event["event"] == "joined":
            others = event["peers"] - 1
            found = f"found {count(others, 'other peer')}" if others > 0 else "no other peer is there yet"
            lines.append(f"Joined at epoch {event['epoch']}, {found}. Computing on {event['device']}.")
            if event.get("said_complete"):
                lines.append(COMPLETE)
        if event["event"] in ("held", "going_on", RESTING):
            lines.append(_held_or_going_on(event))
    trained_alone = [event["peers"] <= 1 for event in events if event["event"] == "epoch"]
    if expects_others and len(trained_alone) >= ALONE_EPOCHS and all(trained_alone):
        lines.append(NOBODY_OF_THIS_RUN)
    return lines


def computing_line(events: list[dict]) -> str | None:
    """Return on what and how a peer computes, as it told it last, and why it changed that; None before it has."""
    told = [event for event in events if event["event"] == "computing"]
    if not told:
        return None
    on = "".join(f" on {event['device']}" for event in events if event["event"] == "joined")
    why = f" ({printable(told[-1]['why'])})" if told[-1]["why"] else ""
    return f"Computing{on}: {printable(told[-1]['told'])}{why}"


def reach_line(events: list[dict]) -> str | None:
    """Return a line where a peer has found out at its start that others cannot reach it; else None."""
    told = [event for event in events if event["event"] == "connected" and event.get("reached") is False]
    if not told:
        return None
    return UNREACHED if told[-1]["is_client"] else NOBODY_REDUCES


def totals_in_words(standing: Standing) -> str:
    """Return what a peer has done over all its starts in its folder."""
    totals = standing.totals
    lost = f" ({totals.lost:,} of them in no update of the others)" if totals.lost else ""
    told = [count(totals.samples, "sample") + lost, count(totals.epochs, "epoch"), duration(totals.seconds)]
    return ", ".join(told) + (f", in {totals.starts} starts" if totals.starts > 1 else "")


def _host_and_port(address: str) -> str:
    """Return the host and port of an address such as /ip4/192.0.2.1/tcp/4321/p2p/..."""
    parts = address.split("/")
    return f"{parts[2]}:{parts[4]}" if len(parts) > 4 else address


def _or_dash(number: int | None) -> str:
    return "–" if number is None else str(number)
