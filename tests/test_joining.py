"""docs/joining.md and docs/troubleshooting.md: what they say to type are commands and options of today."""

import re
import shlex
import sys

import pytest
from checkout import ROOT
from test_help import TYPED

from dalle_lib.cli import main

JOINING, TROUBLESHOOTING = ((ROOT / "docs" / name).read_text() for name in ("joining.md", "troubleshooting.md"))


def test_the_lines_to_type_are_commands(monkeypatch):
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", JOINING, re.M | re.S))
    typed, started = re.findall("^peer/bin/dalle-lib (.*)$", blocks, re.M), []
    for words, command in TYPED.items():
        monkeypatch.setattr(command, "run", lambda command, words=words: started.append(words))
    for line in typed:
        monkeypatch.setattr(sys, "argv", ["dalle-lib", *shlex.split(line)])
        main()
    lent = ["pause", "resume", "finish", "stop"]
    assert started == ["doctor", "join", "status", "status", *lent, "receipt", "receipt", "doctor"]


def test_each_option_and_command_in_the_text_exists(monkeypatch, capsys):
    options = {"--help", "--version"}
    lent = ("pause", "resume", "finish", "stop")
    for command in ("join", "doctor", "generate", "status", "monitor", "run finish", *lent):
        monkeypatch.setattr(sys, "argv", ["dalle-lib", *command.split(), "--help"])
        with pytest.raises(SystemExit):
            main()
        options |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    inline = re.findall("`([^`\n]+)`", re.sub("```.*?```", "", JOINING + TROUBLESHOOTING, flags=re.S))
    named = {option for text in inline for option in re.findall(r"(?<![\w-])--[a-z-]+", text)}
    assert len(named) > 10
    assert named <= options
    commands = re.findall("^dalle-lib ([a-z -]+?)(?: --.*)?$", "\n".join(inline), re.M)
    assert len(commands) > 10
    assert {*commands} <= {*TYPED}


def test_readme_and_the_two_pages_lead_to_each_other():
    for text in ((ROOT / "README.md").read_text(), JOINING):
        assert "troubleshooting.md)" in text
    assert "docs/joining.md)" in (ROOT / "README.md").read_text()
    assert "joining.md)" in TROUBLESHOOTING
