"""A clock that leaves out the time in which a process was stopped, or its computer slept."""

import threading

import pytest

from dalle_lib.swarm.peer.sleeping import ASLEEP_S, TICK_S, AwakeClock


class Clocks:
    """Two clocks that are set by hand, and what a process sees of them."""

    def __init__(self) -> None:
        self.monotonic_s, self.wall_s = 100.0, 1_790_000_000.0
        self.awake = AwakeClock(lambda: self.monotonic_s, lambda: self.wall_s)
        self.began = self.awake.now()

    def pass_by(self, monotonic_s: float, wall_s: float | None = None) -> float:
        """Let time pass on both, and return how long the process has been awake so far."""
        self.monotonic_s += monotonic_s
        self.wall_s += monotonic_s if wall_s is None else wall_s
        return self.awake.now() - self.began


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_work_is_counted_and_no_sleep(clocks):
    for _ in range(60):
        awake_s = clocks.pass_by(TICK_S)
    assert awake_s == pytest.approx(60 * TICK_S)
    assert clocks.pass_by(ASLEEP_S) == pytest.approx(60 * TICK_S + ASLEEP_S), "a busy machine held it up"
    assert clocks.awake.slept_s() is None


def test_a_stopped_process_has_slept_as_long_as_both_clocks_say(clocks):
    assert clocks.pass_by(80.0) == pytest.approx(TICK_S)
    assert clocks.awake.still_s == pytest.approx(80.0 - TICK_S)
    assert clocks.awake.slept_s() == pytest.approx(80.0 - TICK_S)
    assert clocks.awake.slept_s() is None, "it is told once"


def test_a_computer_that_slept_shows_it_on_the_wall_alone(clocks):
    assert clocks.pass_by(TICK_S, 8 * 3600.0) == pytest.approx(TICK_S)
    assert clocks.awake.slept_s() == pytest.approx(8 * 3600.0 - TICK_S)
    assert clocks.awake.still_s == 0.0


def test_a_clock_that_is_set_back_is_told_as_no_sleep(clocks):
    assert clocks.pass_by(TICK_S, -3600.0) == pytest.approx(TICK_S)
    assert clocks.awake.slept_s() == 0.0


def test_a_process_that_nobody_asks_is_watched(clocks):
    class Stops(threading.Event):
        ticks = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.ticks += 1
            clocks.monotonic_s += timeout
            clocks.wall_s += timeout
            return self.ticks > 300

    stop = Stops()
    clocks.awake.watch(stop)
    assert clocks.awake.now() - clocks.began == pytest.approx(301 * TICK_S)
    assert clocks.awake.slept_s() is None
