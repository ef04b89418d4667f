"""Whether this kit, and today's volunteers, may take part in a run: versions, and whether the run is open."""

import json
import re
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dalle_lib.one_line import printable

_VERSIONS = re.compile(r"[A-Za-z0-9.*+!<>=~, -]{0,100}")


class RunClosed(ValueError):
    """The run is paused or finished: nobody can join now. Drawing with its model works as before."""


def require_this_kit(text: str, protocol: int, version: str) -> None:
    """Raise ValueError if a card says that it is for another protocol, or for other versions of the kit than `version`.

    `text` is the card's JSON as it came, before its fields are checked: what a newer kit has added comes after this.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return  # the check of the fields says what is wrong
    if not isinstance(told, dict):
        return
    name, needed, kit = told.get("name"), told.get("protocol", protocol), told.get("kit")
    run = f"run {printable(str(name)[:64])!r}"
    if isinstance(needed, int) and needed != protocol:
        raise ValueError(
            f"{run} needs protocol {needed}, this version has {protocol}: "
            f"{'update dalle_lib' if needed > protocol else 'ask its organiser for a newer card'}."
        )
    if isinstance(kit, str) and (takes := _specifier(kit)) is not None and not takes.contains(version, True):
        raise ValueError(
            f"{run} takes dalle-lib {kit}, but this is version {version}: install one that it takes, "
            f'pip install "dalle-lib{kit}".'
        )


def check_kit(kit: str | None) -> str | None:
    """Return `kit`. Raises ValueError unless it says which versions of the kit a run takes, as pip understands it."""
    if kit is not None and _specifier(kit) is None:
        raise ValueError(f'expected versions of the kit as in ">=0.2" or ">=0.2,<0.4", but got {kit!r:.60}')
    return kit


def require_open(card: Any) -> None:
    """Raise RunClosed if a run is paused or finished, with its organiser's message and what can still be done."""
    if card.state == "open":
        return
    message = f" Its organiser says {card.message!r}." if card.message else ""
    if card.state == "paused":
        raise RunClosed(
            f"run {card.name!r} is paused, so nobody can join it now.{message} Try again later; drawing with its model "
            "works as before."
        )
    raise RunClosed(
        f"run {card.name!r} is finished: there is nothing left to train.{message} Drawing with its model works as "
        "before."
    )


def _specifier(kit: str) -> SpecifierSet | None:
    """Return which versions these words name; None for words that name none, or that a shell would obey.

    `===` may stand before any signs, and volunteers are told to type them.
    """
    if not _VERSIONS.fullmatch(kit):
        return None
    try:
        return SpecifierSet(kit)
    except InvalidSpecifier:
        return None
