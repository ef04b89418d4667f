"""What a volunteer has reached: steps worth telling, by hours and by averages in which the own gradient counted."""

from dalle_lib.swarm.process.starting import START_S

HOURS = {1: "1 hour", 10: "10 hours", 100: "100 hours", 1000: "1,000 hours"}
ROUNDS = {1: "first gradient that counted", 10: "10 epochs", 100: "100 epochs", 1000: "1,000 epochs",
          10_000: "10,000 epochs"}  # fmt: skip


def milestones(seconds: float, rounds: int) -> list[str]:
    """Return the milestones reached, the first ones first.

    `seconds` is how long somebody took part, `rounds` the averages with others in which their gradient counted.
    """
    return [told for reached, told in ROUNDS.items() if rounds >= reached] + [
        told for reached, told in HOURS.items() if seconds >= 3600 * reached
    ]


def next_milestone(seconds: float, rounds: int) -> str | None:
    """Return the milestone that is nearest in proportion to what is left of it; None after the last."""
    ahead = [(1 - rounds / reached, told) for reached, told in ROUNDS.items() if rounds < reached]
    ahead += [(1 - seconds / 3600 / reached, told) for reached, told in HOURS.items() if seconds < 3600 * reached]
    return min(ahead)[1] if ahead else None


def seconds_until(epoch_s: float, epochs: int, start_s: float = START_S) -> dict[str, float]:
    """Return how many seconds after a peer's start each milestone of ROUNDS is reached, the first ones first.

    `epoch_s` is the length of an epoch, `epochs` how many the run still has: what comes after its end is left out. A
    peer joins in the middle of an epoch, on average, and its gradient counts at the end of the next one at the latest.
    """
    return {told: start_s + (rounds + 0.5) * epoch_s for rounds, told in ROUNDS.items() if rounds <= epochs}
