"""Cards to unfold while one waits: what peers do in an epoch, told by the reader's own figures."""

import statistics
from collections.abc import Iterator
from html import escape

from dalle_lib.amounts import count, duration
from dalle_lib.planning.work import Work
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.events import own_id, rounds_with_others

MB = 1e6


def rounds_of(peer: Peer) -> list[dict]:
    """Return a peer's averages with others in which its gradient counted, since it was last started."""
    events = peer.events()
    return rounds_with_others(events, own_id(events))


def was_held(peer: Peer) -> bool:
    """Return whether something has held a peer since it was last started."""
    return any(event["event"] == "held" for event in peer.events())


def cards_html(peer: Peer, card: RunCard) -> str:
    """Return the cards of a peer in the run of `card` as HTML, folded; before its first round without its figures."""
    rounds = rounds_of(peer)
    epochs = [event for event in peer.events() if event["event"] == "epoch"]
    told = {
        "How peers find each other: matchmaking": _matchmaking(card, rounds),
        "What averaging does": _averaging(peer, card, rounds, epochs),
        "What you do not wait for: the delayed step": _delayed(card, epochs),
        f"What {'eight' if card.averaging.upload_bits == 8 else 'four'} bits do": _few_bits(card, rounds),
    }
    if was_held(peer):
        told["What your peer does while it is paused"] = _while_paused(list(_pauses(peer.events())))
    later = [] if rounds else ["After your first round, your own figures stand here."]
    cards = [f"<summary>{escape(title)}</summary>{_paragraphs([*told[title], *later])}" for title in told]
    folded = "".join(f"<details>{each}</details>" for each in cards)
    return f'<div style="font-family:system-ui,sans-serif;max-width:640px">{folded}</div>'


def _paragraphs(lines: list[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _matchmaking(card: RunCard, rounds: list[dict]) -> Iterator[str]:
    averaging = card.averaging
    yield (
        f"About {averaging.matchmaking_s:g} s before all peers together have {averaging.target_batch_size:,} samples, "
        "each looks in the hash table, which the peers keep together, for others that want to average. One becomes the "
        "leader, the others ask it to let them in, and it tells everybody who is in the group. A peer that is not "
        "found in time keeps its gradient for the next round."
    )
    if rounds:
        sizes = [len(event["shares"]) for event in rounds]
        yield (
            f"Your peer has been in {count(len(rounds), 'round')} with others: {statistics.fmean(sizes):.1f} peers in "
            f"a round on average, {max(sizes)} at most."
        )


def _averaging(peer: Peer, card: RunCard, rounds: list[dict], epochs: list[dict]) -> Iterator[str]:
    yield (
        f"Your gradient says for each of {Work.of(card).parameters:,} numbers of the model how it should change, by "
        "your pictures alone. Each peer that others can reach averages a part of all gradients: it gets that part from "
        "everybody, and sends its average back. So a peer sends less than twice its gradient, however many peers there "
        "are. A gradient weighs as much as the number of samples that it was computed from."
        if card.averaging.strategy == "gradients"
        else "Each peer makes steps of its own in an epoch, and what is averaged is how far they have moved the model."
    )
    if rounds and epochs:
        own = next(event["peer_id"] for event in peer.events() if event["event"] == "joined")
        share = statistics.fmean(event["shares"].get(own, 0.0) for event in rounds)
        waits, lengths = (statistics.fmean(event["seconds"] for event in events) for events in (rounds, epochs))
        yield (
            f"Yours were {share:.0%} of the averages that you were in. You waited {waits:.1f} s for each, in epochs of "
            f"{lengths:.0f} s."
        )


def _delayed(card: RunCard, epochs: list[dict]) -> Iterator[str]:
    yield {
        "step": (
            "When the average is there, a thread in the background makes the optimizer's step from it. Your peer goes "
            "on computing meanwhile, with the parameters of before, and takes the new ones when they are done. So its "
            "first gradients of an epoch are one step late."
        ),
        "averaging": (
            "Your peer waits for nothing: peers average, and a thread in the background makes the optimizer's step "
            "from the average, while it goes on computing with the parameters of before. So the gradients of a part of "
            "each epoch are one step late."
        ),
        False: "In this run nothing is delayed: your peer waits for the average and for the optimizer's step.",
    }[card.averaging.delayed]
    if epochs:
        seconds, samples = sum(event["seconds"] for event in epochs), sum(event["samples"] for event in epochs)
        yield (
            f"Your peer has computed {samples / len(epochs):,.0f} samples in each of {count(len(epochs), 'epoch')}, "
            f"which took {duration(seconds / len(epochs))} each."
        )


def _pauses(events: list[dict]) -> Iterator[float]:
    """Yield how long each of a peer's pauses was, in seconds, that are over."""
    began = None
    for event in events:
        if event["event"] == "held" and began is None:
            began = event["time"]
        elif event["event"] == "going_on" and began is not None:
            yield max(0.0, event["time"] - began)
            began = None


def _while_paused(pauses: list[float]) -> Iterator[str]:
    yield (
        "It hands in what it has when the epoch ends, and computes nothing more. The others no longer wait for it. "
        "They go on meanwhile, so afterwards it takes over their model before it computes again."
    )
    if pauses:
        yield f"Yours has been paused {count(len(pauses), 'time')}, for {duration(sum(pauses))} in all."


def _few_bits(card: RunCard, rounds: list[dict]) -> Iterator[str]:
    work, bits = Work.of(card), card.averaging.upload_bits
    levels = "which are chosen for the values at hand" if bits == 8 else "times a scale that 128 values share"
    yield (
        f"In 32 bits a value, your gradient has {4 * work.parameters / MB:,.1f} MB. Before it is sent, each value is "
        f"replaced by one of {2**bits} levels, {levels}: "
        f"{work.up_bytes / MB:,.1f} MB. "
        f"Tensors with fewer than {card.averaging.eight_bit_from:,} values travel in 16 bits: they are small anyway."
    )
    if bits < 8:
        yield f"Averages come back in 8 bits: {work.answer_bytes / MB:,.1f} MB, the same bytes for all."
    if card.optimizer.bits == 8:
        yield (
            f"The optimizer keeps its two statistics of each value in 8 bits as well: {2 * work.parameters / MB:,.1f} "
            f"MB of memory in place of {8 * work.parameters / MB:,.1f} MB."
        )
    if rounds:
        sent = statistics.fmean(event["bytes_sent"] for event in rounds)
        yield f"Your peer has sent {sent / MB:,.1f} MB for a round on average, parameters included."
