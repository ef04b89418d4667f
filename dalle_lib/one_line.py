"""Errors and prompts in one line, for tables and reports."""

LONGEST_PROMPT = 60
"""Letters of a prompt that are repeated to whoever typed it."""


def in_one_line(error: BaseException) -> str:
    """Return the whole message of an error without line breaks, or its type's name where it has no message.

    The message is not cut: the first line of many an error (pydantic's, libp2p's) only counts what follows. The type's
    name is left out where there is a message, because the reader of a table seldom knows Python's types.
    """
    return " ".join(str(error).split()) or type(error).__name__


def shortened(prompt: str) -> str:
    """Return a prompt to repeat it in a line: its first LONGEST_PROMPT letters, and dots where there are more."""
    return prompt if len(prompt) <= LONGEST_PROMPT else f"{prompt[:LONGEST_PROMPT]}..."
