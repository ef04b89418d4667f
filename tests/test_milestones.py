"""What a volunteer has reached, and what comes next."""

from dalle_lib.swarm.process.milestones import milestones, next_milestone


def test_milestones_come_one_by_one_and_stay():
    assert milestones(0, 0) == []
    assert milestones(59, 1) == ["first gradient that counted"]
    assert milestones(3600, 12) == ["first gradient that counted", "10 epochs", "1 hour"]
    before: set[str] = set()
    for step in range(0, 20_000, 50):
        now = milestones(3600 * step / 10, step)
        assert before <= set(now)
        before = set(now)
    assert len(before) == 9


def test_the_next_milestone_is_the_nearest():
    assert next_milestone(0, 0) in ("first gradient that counted", "1 hour")
    assert next_milestone(3000, 1) == "1 hour"
    assert next_milestone(3700, 95) == "100 epochs"
    assert next_milestone(9.5 * 3600, 20) == "10 hours"
    assert next_milestone(1e9, 10**6) is None
