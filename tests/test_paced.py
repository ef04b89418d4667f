"""A paced event wakes its thread seldom, at once where that is asked, and loses nothing."""

import pytest

from dalle_lib.swarm.averaging import paced
from dalle_lib.swarm.averaging.paced import PacedEvent


class Waits:
    """A clock, which goes on by as much as is waited."""

    def __init__(self) -> None:
        self.now, self.waited = 100.0, []

    def monotonic(self) -> float:
        return self.now

    def wait(self, hurries, seconds: float) -> None:
        self.waited.append(0.0 if hurries.is_set() else seconds)
        self.now += self.waited[-1]


@pytest.fixture
def waits(monkeypatch) -> Waits:
    waits = Waits()
    monkeypatch.setattr(paced, "time", waits)
    return waits


def woken(event: PacedEvent) -> None:
    assert event.wait(0.0)
    event.clear()


def paced_by(waits: Waits, every_s) -> PacedEvent:
    event = PacedEvent(every_s)
    event._hurries.wait = lambda seconds: waits.wait(event._hurries, seconds)
    return event


def test_it_wakes_no_more_often_than_asked_and_at_last(waits):
    event = paced_by(waits, lambda: 0.5)
    assert not event.wait(0.0)
    at = []
    for _ in range(5):
        event.set()
        woken(event)
        at.append(waits.now)
        waits.now += 0.1
    assert waits.waited == pytest.approx([0.0, *[0.4] * 4])
    assert at == pytest.approx([100.0, 100.5, 101.0, 101.5, 102.0])
    assert not event.wait(0.0), "nothing was set since"
    waits.now += 10
    event.set()
    assert event.wait(0.0)
    assert waits.waited[-1] == 0.0, "after a pause, at once"


def test_who_hurries_waits_once_for_nothing(waits):
    event = paced_by(waits, lambda: 2.0)
    for do in event.set, event.hurry, event.set:
        do()
        woken(event)
    assert waits.waited == pytest.approx([0.0, 0.0, 2.0])
