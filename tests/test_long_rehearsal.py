"""The short form of a run that lives for an hour (`long_rehearsal.py`): nothing is lost, the liar alone is flagged."""

import pytest
from long_rehearsal import LIAR, STAY, play


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_lost_when_trainers_come_and_go_one_lies_and_the_hub_fails(swarm_folder):
    found = play(swarm_folder, minutes=3.0)
    assert found["exit"] == 0, (swarm_folder / "monitor.log").read_text()[-2000:]
    assert not any(found["failed"].values()), found["failed"]
    assert {"leaves", "comes"} <= {what for _, _, what in found["acts"]}
    checkpoints = found["checkpoints"]
    assert len(checkpoints) >= 3
    assert all(checkpoint["revision"] for checkpoint in checkpoints), "one is not at the Hub"
    epochs = [found["drawn"][part] for part in ("draw 1", "draw 2", "draw 3")]
    assert epochs == sorted(epochs)
    assert epochs[-1] == checkpoints[-1]["epoch"]
    assert found["accused"] == [LIAR], found["alarms"]
    # Counted by others and by itself; what was computed before the monitor came, and while it was dead, is not seen.
    assert found["credited"][STAY[0]] == pytest.approx(found["computed"][STAY[0]], rel=0.4)
    assert max(size["status_bytes"] for size in found["sizes"]) < 200_000
