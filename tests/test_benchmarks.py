"""Benchmarks are all described, and `make bench` runs what it can, to the end."""

import json
import re
import subprocess
import sys

import pytest
from checkout import ROOT, load_script

run_all = load_script("benchmarks/run_all")

REPORTS = 'print("first a line")\nprint(\'{\\n "figure": 1, "reference": 2, "ratio": 0.5, "machine": "here"\\n}\')\n'
FAILS = 'raise SystemExit("it cannot")\n'
SAYS_NOTHING = "print('{\\n \"figure\": 1\\n}')\n"


def write_script(folder, name: str, body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / f"{name}.py").write_text(f'if __name__ == "__main__":\n{lines}')


def test_every_benchmark_has_a_row_in_the_readme():
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)
    assert rows == [script.stem for script in run_all.scripts()]
    assert {"averaging", "codec", "train_step"} <= set(rows), "files that only others import are no scripts"
    assert "plain" not in rows


def test_a_failure_does_not_stop_the_others_and_is_named(tmp_path, capfd):
    for name, body in {"a": FAILS, "b": REPORTS, "c": SAYS_NOTHING, "d": REPORTS}.items():
        write_script(tmp_path, name, body)
    (tmp_path / "imported.py").write_text("raise SystemExit('this is not a script')\n")
    assert run_all.main([], tmp_path) == 2
    printed = capfd.readouterr()
    assert "it cannot" in printed.err
    assert printed.out.count('"ratio": 0.5') == 2
    assert "2 of 4 benchmarks ran" in printed.out
    assert "FAILED: a: exit status 1" in printed.out
    assert "FAILED: c: expected JSON with figure, machine, ratio, reference, but it lacks machine, ratio" in printed.out


def test_what_needs_root_is_left_out_and_said_so(tmp_path, capfd, monkeypatch):
    write_script(tmp_path, "averaging", FAILS)
    write_script(tmp_path, "codec", REPORTS)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run_all.main([], tmp_path) == 0
    assert "left out: averaging: it needs root" in capfd.readouterr().out


def test_a_failure_is_its_exit_status():
    command = [sys.executable, ROOT / "benchmarks" / "run_all.py", "no_such_benchmark"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "expected names among aggregation, auth_server" in done.stderr


def test_what_a_gpu_would_be_asked_runs_on_a_processor_with_a_tiny_model(tmp_path):
    def run(part: str) -> str:
        command = [sys.executable, ROOT / "benchmarks" / "paper_gpu.py", "--tiny", "--out", tmp_path, "--part", part]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("train")
    run("sample")
    report = json.loads(run("report"))
    assert report["errors"] == {}
    assert report["figure"] == pytest.approx(max(report["samples/s"].values()), abs=0.01)
    assert any(way.startswith("train: recorded, fp16") for way in report["samples/s"])
    drawn = json.loads((tmp_path / "sample.json").read_text())
    assert drawn["many"]["share of codes as recorded"] == 1.0
    assert drawn["many"]["rows"] == drawn["many"]["of rows"]
