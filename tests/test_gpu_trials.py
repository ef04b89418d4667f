"""Trials on a GPU: the paper's model with an H200's speeds as they were measured, on a clock that a test moves."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dalle_lib.model import ModelConfig
from dalle_lib.swarm.peer.computing import room, trials
from dalle_lib.swarm.peer.computing.computer import Computer, Gradient
from dalle_lib.swarm.peer.computing.room import fits
from dalle_lib.swarm.peer.computing.trials import BUDGET_S, Trials
from dalle_lib.swarm.peer.computing.way import Way

KEPT = {1: 4.0, 2: 7.8, 4: 18.0, 8: 24.0, 16: 26.0}
REVERSIBLE = {1: 3.2, 2: 5.1, 4: 13.0, 8: 17.0, 16: 19.0, 32: 19.0, 64: 19.0}
"""Samples a second by samples at a time (benchmarks/results/gpu_trials.json)."""
COMPILED, COMPILING_S = 1.38, 24.0
WHOLE = 149_000_000_000
"""Bytes free on an H200."""


class OnPaper(Computer):
    """Takes a clock's seconds for each step, and refuses what does not fit, as an H200 does, or one that is slower."""

    loading_s = 0.0
    """Seconds of the first step that libraries take to load."""

    def __init__(self, monkeypatch, free: int, slower: float = 1.0, is_reversible: bool = True) -> None:
        self.device, self.model = torch.device("cuda", 0), SimpleNamespace(config=ModelConfig.paper())
        self.way = Way(precision="bfloat16", is_reversible=is_reversible)
        self.now, self.slower, self.free_bytes, self._is_warm = 0.0, slower, free, set()
        monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now))
        monkeypatch.setattr(trials, "fits", lambda config, way, device: self.forecast(way))

    def forecast(self, way: Way) -> bool | None:
        """Return what the calculator does, nearly."""
        low, high = (0.9 + 0.15 * way.batch, 1.2 + 0.19 * way.batch)
        if not way.is_reversible:
            low, high = (6.6 * way.batch, 0.6 + 7.7 * way.batch)
        return True if high * 1e9 <= self.free_bytes else False if low * 1e9 > self.free_bytes else None

    def use(self, way: Way) -> None:
        self.way, self._is_recorded = way, False

    def once(self, batches) -> Gradient:
        speeds, batch = REVERSIBLE if self.way.is_reversible else KEPT, self.way.batch
        if not self.way.is_reversible and batch * 6.5e9 > self.free_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        step_s = self.slower * batch / speeds[batch] / (COMPILED if self.way.is_compiled else 1.0)
        if self.way.is_compiled and "compiled" not in self._is_warm:
            self._is_warm.add("compiled")
            self.now += COMPILING_S
        if self.way.is_recorded:
            self.now += 0.0 if self._is_recorded else 3 * step_s
            self._is_recorded, step_s = True, step_s / 2
        self.now += step_s + (0.0 if "loaded" in self._is_warm else self.loading_s)
        self._is_warm.add("loaded")
        return Gradient([1.0], 1.0, 1.0)

    def forget(self) -> None:
        pass

    def free(self) -> None:
        pass


def tried(found: Trials) -> list[tuple[str, int]]:
    """Return what was tried: kind of layers, samples at a time."""
    return [("again" if trial.way.is_reversible else "kept", trial.way.batch) for trial in found.done]


def test_the_papers_model_on_an_h200_is_tried_with_kept_layers_first_and_in_time(monkeypatch):
    computer = OnPaper(monkeypatch, WHOLE)
    found = Trials(computer, 64, trains_for_s=0.0)
    way = found.find()
    assert tried(found) == [("kept", 1), ("kept", 2), ("kept", 4), ("kept", 8), ("kept", 16), ("again", 64)]
    assert (way.batch, way.is_reversible, way.is_recorded) == (16, False, False)
    assert computer.now < BUDGET_S["cuda"]
    assert not any(trial.problem for trial in found.done), "what cannot fit is not tried"


def test_compiling_still_follows_where_it_pays(monkeypatch):
    found = Trials(OnPaper(monkeypatch, WHOLE), 64)
    way = found.find()
    assert (way.batch, way.is_compiled, way.is_reversible, way.is_recorded) == (16, True, False, False)
    assert way.samples_per_s == pytest.approx(26 * COMPILED)


@pytest.mark.parametrize("slower", [2.0, 3.0, 5.0, 7.0])
def test_no_trial_begins_that_would_end_after_the_time(monkeypatch, slower):
    computer = OnPaper(monkeypatch, WHOLE, slower)
    found = Trials(computer, 64, trains_for_s=0.0)
    assert not found.find().is_reversible
    assert computer.now <= 1.05 * BUDGET_S["cuda"]
    assert (("again", 64) in tried(found)) is (slower == 2.0)


def test_what_the_first_trial_loads_is_not_expected_of_the_next(monkeypatch):
    computer = OnPaper(monkeypatch, WHOLE)
    computer.loading_s = 12.0
    found = Trials(computer, 64, trains_for_s=0.0)
    assert found.find().batch == 16
    assert tried(found)[:5] == [("kept", batch) for batch in (1, 2, 4, 8, 16)]


def test_layers_run_again_are_tried_first_where_memory_refuses_kept_ones(monkeypatch):
    found = Trials(OnPaper(monkeypatch, 5 * 10**9, is_reversible=False), 64, trains_for_s=0.0)
    assert found.find().is_reversible
    assert ("kept", 1) not in tried(found)
    assert tried(found)[:2] == [("again", 1), ("again", 2)]


def test_layers_run_again_win_where_memory_holds_few_kept_samples(monkeypatch):
    found = Trials(OnPaper(monkeypatch, 15 * 10**9), 64, trains_for_s=0.0)
    way = found.find()
    assert tried(found) == [("kept", 1), ("kept", 2), *(("again", batch) for batch in (8, 16, 32, 64))]
    assert way.is_reversible
    assert way.samples_per_s == pytest.approx(19.0)


def test_kept_layers_that_may_fit_are_tried_after_those_that_do(monkeypatch):
    computer = OnPaper(monkeypatch, 8 * 10**9)
    assert computer.forecast(replace(computer.way, is_reversible=False)) is None
    found = Trials(computer, 1, trains_for_s=0.0)
    assert not found.find().is_reversible
    assert tried(found) == [("again", 1), ("kept", 1)]


@pytest.mark.parametrize(("slower", "limit", "is_recorded"), [(0.01, 8, True), (0.01, 64, False), (1.0, 8, False)])
def test_quick_steps_are_recorded_where_twice_as_many_samples_have_room(monkeypatch, slower, limit, is_recorded):
    found = Trials(OnPaper(monkeypatch, WHOLE, slower), limit, trains_for_s=0.0)
    assert found.find().is_recorded is is_recorded
    assert any(trial.way.is_recorded for trial in found.done) is is_recorded


def test_the_forecast_on_a_gpu_says_yes_no_and_perhaps(monkeypatch):
    monkeypatch.setattr(room, "name_of", lambda device: "NVIDIA H200")
    gpu, paper, way = (
        torch.device("cuda", 0),
        ModelConfig.paper(),
        Way(precision="bfloat16", is_reversible=False, batch=16),
    )
    monkeypatch.setattr(room, "free_memory", lambda device: WHOLE)
    assert [fits(paper, replace(way, batch=batch), gpu) for batch in (16, 32)] == [True, False]
    monkeypatch.setattr(room, "free_memory", lambda device: 110 * 10**9)
    assert fits(paper, way, gpu) is None
    assert fits(paper, way, torch.device("meta")) is None
