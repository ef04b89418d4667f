"""Errors, texts of other peers and prompts in one line, for terminals, tables and reports."""

import unicodedata

MAX_TOLD = 1000
"""Letters of a line that a command tells."""
LONGEST_PROMPT = 60
"""Letters of a prompt that are repeated to whoever typed it."""
_BLANK = "\u115f\u1160\u2800\u3164\uffa0\U0001d159"
"""Fillers of Hangul, braille without dots and a note without a head: letters and symbols that show nothing."""


def in_one_line(error: BaseException) -> str:
    """Return the whole message of an error, `printable`, or its type's name where it has no message.

    The message is not cut: the first line of many an error (pydantic's, libp2p's) only counts what follows. The type's
    name is left out where there is a message, because the reader of a table seldom knows Python's types.
    """
    return printable(str(error)) or type(error).__name__


def printable(text: str) -> str:
    """Return a text in one line that a terminal shows as it is.

    Signs that it would obey, or not show, are escaped: `\\x1b`, with which a text can move the cursor, change colours
    or name the window.
    """
    return _escaped(" ".join(text.split()))


def is_seen(text: str) -> bool:
    """Return whether a text has a letter, digit or sign that one sees; marks, which need a letter, are none."""
    return any(unicodedata.category(sign)[0] in "LNPS" and sign not in _BLANK for sign in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, such as the end of a log, each of which a terminal shows as it is."""
    return "\n".join(map(_escaped, text.expandtabs().splitlines()))


def _escaped(line: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)


def told(text: str) -> str:
    """Return a text as one `printable` line of at most MAX_TOLD letters, and dots where there were more."""
    line = printable(text)
    return line if len(line) <= MAX_TOLD else f"{line[:MAX_TOLD]}..."


def shortened(prompt: str) -> str:
    """Return a prompt to repeat it in a line: its first LONGEST_PROMPT letters, and dots where there are more."""
    return prompt if len(prompt) <= LONGEST_PROMPT else f"{prompt[:LONGEST_PROMPT]}..."
