"""Names that people type: which known one is meant, which data set on the Hub, and what is a web address."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from urllib.parse import urlsplit

HUB = "hf://datasets/"
"""How the name of a data set on the Hub begins."""
_WEB = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
"""What an address of the web consists of. Source: RFC 3986, section 2."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine by which nobody else can reach it."""


def find_name(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is `name`, whatever the case of its letters; None if there is none."""
    return next((other for other in known if other.lower() == name.strip().lower()), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the most similar name, or with up to three that begin with `name`; "" without any."""
    by_lower = {other.lower(): other for other in known}
    typed = name.strip().lower()
    similar = [lower for lower in by_lower if typed and lower.startswith(typed)][:3]
    similar = similar or get_close_matches(typed, by_lower, n=1)
    return f"did you mean {' or '.join(by_lower[lower] for lower in similar)}? Otherwise, " if similar else ""


def data_on_hub(source: str) -> tuple[str, str]:
    """Return the repository, owner/name, and the folder in it that "hf://datasets/owner/name/folder" names.

    Without a folder, that is "". Raises ValueError for what names no data set on the Hub.
    """
    parts = source.removeprefix(HUB).strip("/").split("/")
    if not source.startswith(HUB) or len(parts) < 2 or not all(parts):
        raise ValueError(f"expected {HUB}owner/name or a folder of it, but got {source!r:.200}.")
    return "/".join(parts[:2]), "/".join(parts[2:])


def is_web_address(text: str) -> bool:
    """Return whether this is the address of an encrypted web page, or of one on this machine, without a password.

    A name in other letters than those of ASCII, which may look like another's, has to be told as DNS has it: xn--...
    """
    try:
        told = urlsplit(text)
        host, port = told.hostname, told.port
    except ValueError:
        return False
    schemes = ("https", "http") if host in LOOPBACK else ("https",)
    is_plain = _WEB.fullmatch(text) and not any(sign in told.netloc for sign in "@%")
    return bool(host and is_plain) and port != 0 and told.scheme in schemes
