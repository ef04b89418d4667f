"""What --help tells: each command with examples that can be typed, lists with a sentence each, options in groups."""

import re
import shlex
import sys

import pytest

from dalle_lib.cli import COMMANDS, main, several

TYPED = {
    words: kind
    for name, command in COMMANDS.items()
    for words, kind in ({f"{name} {each}": kind for each, kind in several(command).items()} or {name: command}).items()
}
"""Each command by the words that are typed for it."""


@pytest.mark.parametrize("command", TYPED)
def test_each_commands_help_ends_its_description_with_examples_that_can_be_typed(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", *command.split(), "--help"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    examples = re.findall(rf"^(dalle-lib {command}.*(?:\n\S.*)*)", told, re.M)
    assert len(examples) in ((1, 2, 3) if " " in command else (2, 3))
    started = []
    monkeypatch.setattr(TYPED[command], "run", lambda command: started.append(command))
    for example in examples:
        monkeypatch.setattr(sys, "argv", shlex.split(example))
        main()
    assert len(started) == len(examples)


@pytest.mark.parametrize("command", ["run", "auth-server"])
def test_the_list_of_several_commands_has_a_sentence_each(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", command, "--help"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    assert set(re.findall(r"• ([\w-]+) ", told)) == set(several(COMMANDS[command]))
    assert "For example" not in told


@pytest.mark.parametrize("command", ["join", "doctor"])
def test_common_options_come_first_and_in_groups(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", command, "--help"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    order = ["common options", "--run", "--initial-peers", "--alone", "network options", "--host", "--client-mode"]
    order += ["computing options", "--batch-size", "lending options", "--between", "--only-when-idle"]
    begins = [told.index(f" {text} ", told.index("common options") - 1) for text in order[:2]]
    begins += [told.index(text, begins[-1]) for text in order[2:]]
    assert begins == sorted(begins)


def test_the_list_of_commands_has_two_examples_and_no_more_than_a_sentence_each(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "--help"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    examples = [line for line in told.splitlines() if line.strip().startswith("dalle-lib ")]
    assert examples == [
        'dalle-lib generate "penguin on a yellow background"',
        "dalle-lib join --run owner/name --name ada",
    ]
    assert len(told.splitlines()) <= 48
