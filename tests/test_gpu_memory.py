"""What a GPU is asked about memory: jobs run while there is room, limits fall until one fails, results are read."""

import json
import sys

import pytest
import torch
from checkout import ROOT, load_script


@pytest.fixture(scope="module")
def scripts():
    """Return the script, what its processes run, and what reads their results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield tuple(load_script(f"benchmarks/gpu_memory{part}") for part in ("", "_job", "_report"))
        for name in "memory", "gpu_memory_report":
            sys.modules.pop(name, None)


class FakeProcess:
    """A process of a job that takes `sleep` seconds of a clock that only moves when somebody sleeps."""

    clock = 0.0

    def __init__(self, options: dict) -> None:
        self.began, self.ends = FakeProcess.clock, FakeProcess.clock + options.get("sleep", 1)
        self.returncode = None
        self.status = 1 if options.get("fails") else 0

    def poll(self) -> int | None:
        if FakeProcess.clock >= self.ends:
            self.returncode = self.status
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9

    def wait(self) -> int:
        return self.returncode


@pytest.fixture
def bench(scripts, monkeypatch):
    """Return the script, whose jobs are done by a clock in place of processes."""

    def start(job) -> None:
        job.process, job.started = FakeProcess(job.request["training"]), FakeProcess.clock
        (job.folder / "out").write_text(json.dumps({"span": [job.process.began, job.process.ends]}))
        (job.folder / "err").write_text("it cannot")

    def sleep(seconds: float) -> None:
        FakeProcess.clock += seconds

    monkeypatch.setattr(scripts[0].Job, "start", start)
    monkeypatch.setattr(scripts[0].time, "sleep", sleep)
    monkeypatch.setattr(scripts[0].time, "monotonic", lambda: FakeProcess.clock)
    return scripts[0]


def jobs_of(bench, *needs_and_options) -> list:
    return [bench.Job(bench.requested("slack", ("gpt2", options)), need) for need, options in needs_and_options]


def test_jobs_run_side_by_side_only_as_far_as_there_is_room(bench):
    jobs = jobs_of(
        bench, (9e9, {"id": 0}), (6e9, {"id": 1, "sleep": 3}), (4e9, {"id": 2, "sleep": 2}), (6e9, {"id": 3})
    )
    results = bench.run_all(jobs, bench.Benchmark(gigabytes=10, workers=3, seconds=60))
    spans = {result["training"]["id"]: result["span"] for result in results}
    assert len(spans) == 4
    assert spans[0][1] <= spans[1][0], "the first leaves no room for others"
    assert spans[1][0] == spans[2][0], "two fit beside each other"
    assert spans[3][0] >= spans[1][1], "not the last, though one worker is free"
    many = jobs_of(bench, *[(1e9, {"id": number}) for number in range(4)])
    spans = [result["span"] for result in bench.run_all(many, bench.Benchmark(gigabytes=10, workers=3, seconds=60))]
    assert sorted(spans)[3][0] >= sorted(spans)[0][1]


def test_what_the_time_is_over_for_is_told_and_what_has_ended_is_kept(bench):
    jobs = jobs_of(bench, (1e9, {"sleep": 1}), (1e9, {"sleep": 60}), (10e9, {"sleep": 2}))
    results = list(bench.run_all(jobs, bench.Benchmark(gigabytes=10, workers=2, seconds=3)))
    over = "as the time was over"
    told = {result["training"]["sleep"]: result.get("problem") for result in results}
    assert told == {1: None, 60: f"stopped, {over}", 2: f"left out, {over}"}
    assert "span" in results[0]


def test_if_the_first_jobs_all_fail_the_others_are_spared(bench):
    failing = [(10e9, {"fails": True})] * bench.FIRST
    results = list(bench.run_all(jobs_of(bench, *failing, (10e9, {})), bench.Benchmark(gigabytes=10, seconds=60)))
    assert results[0]["problem"] == "exit status 1: it cannot"
    assert results[-1]["problem"] == f"left out, as the first {bench.FIRST} jobs failed"
    jobs = jobs_of(bench, (10e9, {}), *failing, (10e9, {}))
    assert "problem" not in list(bench.run_all(jobs, bench.Benchmark(gigabytes=10, seconds=60)))[-1]


def test_the_ways_to_measure_are_set_for_the_process(scripts):
    bench = scripts[0]
    default = bench.Job(bench.requested("point", ("gpt2", {})), 1e9).variables
    other = bench.Job(bench.requested("point", ("gpt2", {}), "expandable", "small"), 1e9).variables
    assert set(default) == {"OMP_NUM_THREADS"}
    assert other["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert other["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_a_process_is_asked_and_answers(scripts, monkeypatch):
    echo = "import json, sys; print('a warning'); print(json.dumps({'asked': json.load(sys.stdin)}))"
    monkeypatch.setattr(scripts[0], "COMMAND", [sys.executable, "-c", echo])
    (job,) = jobs_of(scripts[0], (1e9, {"batch": 3}))
    job.start()
    assert job.process.wait(120) == 0
    assert job.result()["asked"] == job.request


def test_a_gpu_is_asked_in_each_way_and_what_is_timed_runs_alone(scripts, monkeypatch):
    bench = scripts[0]
    monkeypatch.setattr(
        bench, "need_of", lambda request: 1e9
    )  # forecasts of them all take long under the tests' checks
    jobs = bench.jobs(bench.Benchmark(device="cuda", gigabytes=76))
    assert [job.request["part"] for job in jobs if job.need == 76e9] == ["context", "slack"]
    kinds = {(job.request["part"], job.request["allocator"], job.request["workspaces"]) for job in jobs}
    assert len(kinds) == 5
    points = [job.request for job in jobs if job.request["part"] == "point" and job.request["workspaces"] == "default"]
    assert len(points) == len(bench.POINTS) + len(bench.GPU_POINTS)
    monkeypatch.undo()
    assert bench.need_of({"model": "gpt2", "training": {"sequence": 64}}) > 1e9


def test_a_job_on_a_processor_finds_the_calculators_numbers(scripts, capfd):
    bench, job, report = scripts
    request = bench.requested("point", bench.TINY[0], has_limits=True) | {"device": "cpu"}
    result = request | job.training_of(request)
    assert result["predicted"] == pytest.approx(result["measured"], rel=0.05)
    assert result["predicted saved"] == pytest.approx(result["saved"], rel=0.05)
    assert "limits" not in result
    (point,) = report.points_of([result])
    assert point["predicted"] == result["predicted"]
    assert "GB" in report.in_one_line(result)


class FakeTraining:
    """A training that needs `need` bytes, on a GPU of 1000, of which it reserves more while there is room."""

    def __init__(self, patch, need: int) -> None:
        self.need, self.limit, self.steps = need, 1000.0, 0
        patch.setattr(
            torch.cuda, "memory_stats", lambda: {"reserved_bytes.all.peak": 7, "num_alloc_retries": self.steps}
        )
        patch.setattr(torch.cuda, "get_device_properties", lambda _: type("GPU", (), {"total_memory": 1000}))
        patch.setattr(torch.cuda, "set_per_process_memory_fraction", self.set_limit)
        for name in "synchronize", "empty_cache", "reset_peak_memory_stats":
            patch.setattr(torch.cuda, name, lambda: None)

    def set_limit(self, fraction: float) -> None:
        self.limit = 1000 * fraction

    def step(self) -> None:
        self.steps += 1
        if self.limit < self.need:
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_limits_fall_until_one_is_too_low(scripts, monkeypatch):
    job = scripts[1]
    free = {"allocated": 400, "reserved": 560}
    trials = list(job.limits(FakeTraining(monkeypatch, need=430), free))
    assert trials[0]["share"] is None, "first without a limit"
    assert [trial["share"] for trial in trials[1:]] == [0.35, 0.25, 0.15, 0.1, 0.06]
    assert trials[1]["retries"] == 1
    assert [trial["runs"] for trial in trials] == [True, True, True, True, True, False]


def test_the_tensors_alive_at_the_peak_are_grouped(scripts):
    frames = [{"filename": "/a/torch/functional.py", "line": 1}, {"filename": "/kit/dalle_lib/model/x.py", "line": 9}]
    made = [("alloc", 1, 100), ("alloc", 2, 40), ("alloc", 3, 40), ("free_requested", 1, 100), ("alloc", 4, 50)]
    later = [("free_completed", 1, 100), ("alloc", 1, 30)]
    events = [{"action": action, "addr": addr, "size": size, "frames": frames} for action, addr, size in made + later]
    groups = scripts[1].alive_at_peak(events)
    assert groups == [
        {"size": 100, "count": 1, "where": "x.py:9"}, {"size": 40, "count": 2, "where": "x.py:9"},
        {"size": 50, "count": 1, "where": "x.py:9"},
    ]  # fmt: skip


def test_the_report_gives_the_least_memory_that_a_training_needs_and_its_slack(scripts):
    bench, _, report = scripts
    request = bench.requested("slack", ("gpt2", {"sequence": 64}), has_limits=True) | {"device": "cuda"}
    counts = {"allocated": 2_000_000_000, "reserved": 3_000_000_000}
    trials = [{"share": None, "runs": True}, {"share": 0.25, "runs": True}, {"share": 0.1, "runs": False}]
    found = {"measured": 2_000_000_000, "saved": 1, "free of limits": counts, "context": {"own": 500_000_000}}
    result = request | found | {"limits": trials, "emptied before each step": {"error": "x"}}
    freed = {"allocated": 2_000_000_000, "reserved": 2_200_000_000}
    other = result | {"allocator": "expandable", "free of limits": freed}
    told = report.report([result, other, request | {"problem": "it cannot"}])
    (slack,) = told["slack"].values()
    assert slack == {"free": 0.5, "emptied": None, "expandable": pytest.approx(0.1), "least": 0.25}
    upper = bench.estimate("gpt2", bench.Training(sequence=64)).gpu_range[1]
    assert told["figure"] == pytest.approx(3e9 / upper)
    assert told["problems"][0][2] == "it cannot"
