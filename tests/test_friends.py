"""docs/friends.md: two terminals of one machine train together by its commands, typed as they are written."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from checkout import ROOT

from dalle_lib.cli import main

TEXT = (ROOT / "docs/friends.md").read_text()
FIRST, SECOND = re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)[0].splitlines()


class Typed:
    """A command that was typed into a terminal of its own, and what it has shown so far."""

    def __init__(self, line: str, folder: Path, name: str) -> None:
        self._shown = folder / f"{name}.txt"
        program, *arguments = shlex.split(line)
        assert program == "dalle-lib"
        with open(self._shown, "wb") as output:
            command = [sys.executable, "-m", "dalle_lib", *arguments]
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)

    def wait_for(self, pattern: str, timeout_s: float = 180) -> str:
        """Return the first group of `pattern`, or the whole match, once it is shown."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self._shown.read_text(), re.M)) is None:
            assert self.process.poll() is None, self._shown.read_text()
            assert time.monotonic() < deadline, self._shown.read_text()
            time.sleep(0.2)
        return found[found.lastindex or 0]

    def press_ctrl_c(self) -> str:
        """Return all that it has shown when it has ended."""
        self.process.send_signal(signal.SIGINT)
        return self._shown_at_the_end()

    def shut_down(self) -> str:
        """Do the same as a system that shuts down: it sends a signal to each of its processes, forks too."""
        for process in (parent := psutil.Process(self.process.pid)).children(recursive=True):
            process.terminate()
        parent.terminate()
        return self._shown_at_the_end()

    def _shown_at_the_end(self) -> str:
        assert self.process.wait(120) == 0, self._shown.read_text()
        return self._shown.read_text()


def test_two_terminals_train_together_by_the_lines_as_they_are_written(swarm_folder):
    ada = Typed(FIRST, swarm_folder, "ada")
    try:
        line = ada.wait_for("^Friends: (.*)$")
        assert re.fullmatch(re.escape(SECOND).replace(re.escape("..."), r"\w+"), line)
        friend = Typed(line, swarm_folder, "friend")
        try:
            friend.wait_for("found 1 other peer")
        finally:
            shown = friend.press_ctrl_c()
        assert "Left the run" in shown
    finally:
        shown = ada.shut_down()
    assert "Left the run" in shown, "it has not saved"


def test_the_lines_in_the_text_are_commands(monkeypatch):
    joined = []
    monkeypatch.setattr("dalle_lib.cli.Join.run", lambda command: joined.append(command))
    lines = re.findall(r"`(dalle-lib join[^`]*)`", TEXT)
    for line in (*lines, FIRST.replace(" --host 127.0.0.1", ""), f"{FIRST} --client-mode"):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        main()
    assert [command.peer.role for command in joined] == ["bootstrap", "trainer", "trainer"]
    assert [command.peer.host for command in joined] == ["0.0.0.0", "0.0.0.0", "127.0.0.1"]
