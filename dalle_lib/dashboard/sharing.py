"""What a volunteer takes along at the end: a summary to share, and how to go on."""

from pathlib import Path

from dalle_lib.amounts import count, duration
from dalle_lib.dashboard.receipts import receipt_if_any
from dalle_lib.organizing.inviting import Invitation
from dalle_lib.platforms import Platform, this_platform
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.swarm import Crew, LocalSwarm, Peer, PeerSettings
from dalle_lib.swarm.process.folder import SETTINGS
from dalle_lib.swarm.process.milestones import milestones, next_milestone
from dalle_lib.swarm.process.standing import Standing

NOTHING = "Your peer has computed no samples yet, so there is nothing to share."


def summary_to_share(you: Peer, crew: Crew, card: RunCard) -> str:
    """Return what a volunteer's peers have done in a run, in words for others, with how to join a run on the Hub.

    In a swarm on this machine only `you` is the volunteer's; in a run of others all of `crew` are.
    """
    peers = [you] if isinstance(crew, LocalSwarm) else list(crew.peers.values())
    totals, receipts = [Standing.of(peer).totals for peer in peers], list(filter(None, map(receipt_if_any, peers)))
    seconds, rounds = sum(each.seconds for each in totals), max((each.rounds for each in receipts), default=0)
    if not any(each.samples for each in totals):
        return NOTHING
    samples = count(sum(each.samples for each in totals), "sample")
    lines = [f"I have trained {card.name} together with others: {samples} in {duration(seconds)}."]
    for receipt in receipts:
        epochs = f"epochs {receipt.first_epoch:,} to {receipt.last_epoch:,}"
        lines.append(f"I was there for {epochs}: {receipt.share:.1%} of the gradients were mine.")
    if reached := milestones(seconds, rounds):
        following = next_milestone(seconds, rounds)
        lines.append(f"Reached: {', '.join(reached)}." + (f" Next: {following}." if following else ""))
    if card.repository is not None:
        invitation = Invitation.to(card.repository, card, PeerSettings.load(you.folder / SETTINGS).team)
        lines += [f"You can help, too: {invitation.page}", f"  {invitation.line}"]
        if invitation.team:
            lines.append(f"  or in its notebook, with {invitation.team} as TEAM")
    return "\n".join(lines)


def next_steps(run: str, out: str | Path, platform: Platform | None = None) -> str:
    """Return how a volunteer goes on with a run from where they are now."""
    platform = platform or this_platform()
    if run in EMBEDDED_RUNS:
        return f"To go on: run all cells again, with more MINUTES. {run} begins anew each time."
    return {
        "Kaggle": (
            f"To go on: Kaggle keeps the folder {out} in the output of this version. Open the notebook again, add that "
            "output under Add Input, and choose Save & Run All: the cell Join finds your peer there, with its progress "
            "and its key. Without it, your peer begins as a new one, with the run's newest state. The folder "
            "holds your peer's key, so keep the notebook private."
        ),
        "Colab": (
            f"To go on while this session lasts: run all cells again. {out} is gone when the session ends; then your "
            "peer begins as a new one, with the run's newest state. Copy the folder to keep its key."
        ),
    }.get(platform.name, f"To go on: run all cells again. Your peer goes on from where it was, in {out}.")
