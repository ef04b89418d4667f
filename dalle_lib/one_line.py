"""Errors in one line, for tables and reports."""


def in_one_line(error: BaseException) -> str:
    """Return the whole message of an error without line breaks, or its type's name where it has no message.

    The message is not cut: the first line of many an error (pydantic's, libp2p's) only counts what follows. The type's
    name is left out where there is a message, because the reader of a table seldom knows Python's types.
    """
    return " ".join(str(error).split()) or type(error).__name__
