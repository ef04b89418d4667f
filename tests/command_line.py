"""What the command line answers, run inside the test's process."""

import contextlib
import io
import sys

import pytest

from dalle_lib.cli import main


def answer(monkeypatch, *arguments: str, code: int = 2) -> str:
    """Return the one line with which a command ends that cannot do what it is asked; its exit code must be `code`."""
    monkeypatch.setattr(sys, "argv", ["dalle-lib", *arguments])
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main()
    lines = said.getvalue().splitlines()
    assert [line.startswith("dalle-lib: ") for line in lines].index(True) == len(lines) - 1, said.getvalue()
    assert ended.value.code == code, lines[-1]
    return lines[-1]
