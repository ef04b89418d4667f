"""CI's second try: only tests with real peers or real time get one, and it is reported."""

import os
import shutil
import subprocess
import sys

from checkout import ROOT

FAILING_ONCE = """
import pytest

tried = []

def fails_once(name):
    tried.append(name)
    print("said by", name)
    assert tried.count(name) == 2

@pytest.mark.peers
def test_marked():
    fails_once("marked")

def test_with_a_folder_for_peers(swarm_folder):
    fails_once("folder")

@pytest.mark.chaos
def test_chaos():
    fails_once("chaos")

def test_plain():
    fails_once("plain")
"""


def test_only_tests_with_real_peers_are_run_again_and_named_with_their_first_failure(tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_once.py").write_text(FAILING_ONCE)
    command = [
        sys.executable, "-m", "pytest", "--second-try", "-rR", "-p", "no:cacheprovider",
        "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, tmp_path,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}  # where conftest.py finds the plugin that it loads
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    named = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("RERUN ")]
    assert named == ["test_marked", "test_with_a_folder_for_peers", "test_chaos"], done.stdout
    assert "1 failed, 3 passed, 3 rerun" in done.stdout
    for test, argument in zip(named, ("marked", "folder", "chaos"), strict=True):
        told = done.stdout.split(f"first try of test_once.py::{test} ")[1].split("first try of ")[0]
        assert "assert 1 == 2" in told, done.stdout
        assert f"said by {argument}" in told, "what the test printed is shown too"
