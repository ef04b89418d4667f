"""Run the benchmarks that this machine can run, and say which were left out and why.

`make bench` runs all of them, which takes hours; `python benchmarks/run_all.py codec lamb` runs those that are named.
Each benchmark prints JSON with its figure, its reference, their ratio and the machine. A failure does not stop the
others; the exit status is 1 if any failed.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
REPORT = {"figure", "reference", "ratio", "machine"}
ON_A_GPU_TOO = {"memory", "sample", "train_step"}
"""Benchmarks that measure a GPU where there is one, and the processor elsewhere."""


def scripts(folder: Path = HERE) -> list[Path]:
    """Return the benchmarks in `folder`: its files that do something when they are run, without this one."""
    return [
        file
        for file in sorted(folder.glob("*.py"))
        if file.name != Path(__file__).name and '__name__ == "__main__"' in file.read_text(encoding="utf-8")
    ]


def reason_to_leave_out(name: str) -> str | None:
    """Return what this machine lacks for the benchmark of that name, or None if it can run."""
    if name == "averaging" and platform.system() != "Linux":
        return "it needs Linux, where processes can have networks of their own"
    if name == "averaging" and os.geteuid() != 0:
        return "it needs root, to give processes networks of their own"
    if name == "averaging" and shutil.which("tc") is None:
        return "it needs iproute2: apt-get install iproute2"
    if name in ("averaging", "codec") and tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
        return "it needs numpy below 2.4, where hivemind's codec still works"
    if name == "browser_drawing" and not (HERE.parent / "site" / "_build" / "html" / "draw.html").exists():
        return "it needs the built site: make site"
    if name == "scale" and find_spec("simpy") is None:
        return "it needs simpy: the extra dev"
    if name == "lamb" and find_spec("bitsandbytes") is None:
        return "it needs bitsandbytes: the extra tutorial"
    if name == "streaming" and platform.system() != "Linux":
        return "it needs Linux, which tells how much memory a process had at most"
    if name == "streaming" and (missing := [one for one in ("datasets", "fastapi") if not find_spec(one)]):
        return f"it needs {' and '.join(missing)}: the extras tutorial and dev"
    if name in ("auth_server", "join", "newcomers") and not find_spec("uvicorn"):
        return "it needs uvicorn: the extra server"
    if name in ("browser_drawing", "dashboard_page") and not (find_spec("playwright") and shutil.which("chromium")):
        return "it needs playwright and Chromium: apt-get install chromium"
    if name in ("gpu_memory", "gpu_swarm", "gpu_trials", "paper_gpu") and not torch.cuda.is_available():
        return "it needs a GPU"
    if name == "paper_code" and find_spec("pip") is None:
        return "it needs pip, to fetch dalle-pytorch"
    return None


def run(script: Path) -> str | None:
    """Run a benchmark, print what it prints, and return what went wrong, or None."""
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode != 0:
        return f"exit status {done.returncode}; its error is above"
    try:
        report = json.loads(done.stdout[("\n" + done.stdout).rindex("\n{\n") :])
    except ValueError as error:
        return f"expected JSON at the end of its output, but reading it failed: {error}"
    if missing := REPORT - set(report):
        return f"expected JSON with {', '.join(sorted(REPORT))}, but it lacks {', '.join(sorted(missing))}"
    return None


def main(names: list[str], folder: Path = HERE) -> int:
    """Run the benchmarks in `folder`, or those of `names`, and return how many failed."""
    found = {script.stem: script for script in scripts(folder)}
    if unknown := set(names) - set(found):
        raise SystemExit(f"expected names among {', '.join(found)}, but got {', '.join(sorted(unknown))}.")
    chosen = [name for name in found if not names or name in names]
    left_out = {name: reason for name in chosen if (reason := reason_to_leave_out(name))}
    failed = {}
    for name in chosen:
        if name not in left_out:
            print(f"== {name}", flush=True)
            if problem := run(found[name]):
                failed[name] = problem
    print(f"{len(chosen) - len(left_out) - len(failed)} of {len(chosen)} benchmarks ran")
    print("".join(f"left out: {name}: {reason}\n" for name, reason in left_out.items()), end="")
    print("".join(f"FAILED: {name}: {problem}\n" for name, problem in failed.items()), end="")
    on_processor = sorted(ON_A_GPU_TOO & set(chosen))
    if on_processor and not torch.cuda.is_available():
        print(f"left out: what {', '.join(on_processor)} measure on a GPU: there is none here")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
