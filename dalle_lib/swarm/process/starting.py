"""From a peer's start to its first gradient that counts: the steps, what each is expected to take, and what it took."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a peer's start. It ends with an event."""

    name: str
    ends_with: str
    typical_s: float
    """Seconds that it took with the embedded run."""


FIRST_ROUND = "first round that counts"
STEPS = (
    Step("load the model and the data", "loaded", 7.0),
    Step("connect to the others", "connected", 3.0),
    Step("take over the others' state", "joined", 2.5),
    Step("try what computes fastest", "computing", 5.0),
    Step("compute the first batch", "batch", 1.0),
    Step(FIRST_ROUND, "averaged", 12.0),
)
START_S = sum(step.typical_s for step in STEPS if step.name != FIRST_ROUND)
