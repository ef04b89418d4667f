"""A paced event wakes its thread seldom, and loses nothing."""

from dalle_lib.swarm.averaging import paced
from dalle_lib.swarm.averaging.paced import PacedEvent


def test_it_wakes_no_more_often_than_asked_and_at_last(monkeypatch):
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(paced.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(paced.time, "sleep", sleep)
    event = PacedEvent(0.5)
    assert not event.wait(0.0)
    woken = []
    for _ in range(5):
        event.set()
        assert event.wait(0.0)
        event.clear()
        woken.append(now[0])
        now[0] += 0.1
    assert [round(one, 6) for one in slept] == [0.0, *[0.4] * 4]
    assert [round(at, 6) for at in woken] == [100.0, 100.5, 101.0, 101.5, 102.0]
    assert not event.wait(0.0), "nothing was set since"
    now[0] += 10
    event.set()
    assert event.wait(0.0)
    assert slept[-1] == 0.0, "after a pause, at once"
