"""The page of the command line: what `--help` tells of each command."""

import contextlib
import io
import os
import sys
from inspect import getdoc
from pathlib import Path
from unittest.mock import patch

from dalle_lib.cli import COMMANDS, main, several

WIDTH = "88"
"""Columns of the text: what fits into a page's column."""
ABOUT = """\
# Command line

`dalle-lib COMMAND` does the following; `dalle-lib COMMAND --help` tells the same in a terminal. Exit codes: 0, done;
1, something failed, such as the network; 2, what was typed cannot be used; 130, stopped by Ctrl+C. An error is one line
that says what was expected, what came, and what to do.
"""


def make(made: Path) -> None:
    """Write the page of all commands."""
    page = made / "pages" / "cli.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    typed = [(words, kind) for name, command in COMMANDS.items() for words, kind in words_of(name, command)]
    rows = [f"| [`{words}`](#{words.replace(' ', '-')}) | {getdoc(kind).splitlines()[0]} |" for words, kind in typed]
    table = "\n".join(["| command | what it does |", "| --- | --- |", *rows])
    sections = [f"## {words}\n\n```text\n{help_of(words)}\n```" for words, _ in typed]
    page.write_text("\n\n".join([ABOUT, table, *sections]) + "\n", encoding="utf-8")


def words_of(name: str, command: type) -> list[tuple[str, type]]:
    """Return what is typed for a command, or for each of the several that it has."""
    parts = several(command)
    return [(f"{name} {part}", kind) for part, kind in parts.items()] if parts else [(name, command)]


def help_of(words: str) -> str:
    """Return what `dalle-lib WORDS --help` prints."""
    told = io.StringIO()
    typed = patch.object(sys, "argv", ["dalle-lib", *words.split(), "--help"])
    narrow = patch.dict(os.environ, {"COLUMNS": WIDTH, "NO_COLOR": "1"})
    with typed, narrow, contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main()
    return "\n".join(line.rstrip() for line in told.getvalue().strip().splitlines())
