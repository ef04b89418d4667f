"""Changes to a run that goes on: what may change, and how nobody's change is lost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dalle_lib.files import replace_file
from dalle_lib.organizing.commits import Overtaken, card_at, commit, head_of
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.files import CARD, card_here
from dalle_lib.swarm.process.addresses import require_addresses

CHANGEABLE = ("state", "message", "kit", "initial_peers", "checkpoint", "checkpoints", "monitors")
MEMBERS = ("authority", "server", "organization", "client_id", "invitation")
"""Fields of a card, and of its `members`, that may change while peers train: none is in the run's fingerprint."""
LOCK_S = 20
"""Seconds to wait for another program that changes the same card on this machine."""
TRIES = 5
"""How often a change is made anew on top of somebody else's commit."""


def edit_run(run: str | Path, token: str | None = None, **changes: Any) -> RunCard:
    """Change the card of a run, a folder or owner/name on the Hub, and return the new one.

    `changes` are fields in CHANGEABLE and MEMBERS. Peers that run go on as before; those that start from now on see
    the change, and the authority's server within a minute. On the Hub it is one commit, on top of what others have
    changed meanwhile. `token` is a Hub token that may write there.

    Raises ValueError, and changes nothing, for a field that would make another run, and for a value that no card can
    have; PermissionError if the Hub refuses; ConnectionError if it does not answer.
    """
    _require_changeable(changes)
    return change_run(run, lambda _: changes, token)


def change_run(run: str | Path, change: Callable[[RunCard], dict[str, Any]], token: str | None = None) -> RunCard:
    """Change the card of a run as `edit_run` does, to what `change` makes of it: of the newest one, in each attempt."""
    if run in EMBEDDED_RUNS:
        raise ValueError(f"expected a run of yours, but {run} is part of the kit: copy it with RunCard.save.")
    if (file := card_here(run)) is not None:
        with _alone_with(file):
            before = RunCard.load(run)
            card = changed(before, **change(before))
            with replace_file(file) as unfinished:
                unfinished.write_text(card.as_text(), encoding="utf-8")
        return card
    for _ in range(TRIES):
        try:
            head = head_of(str(run), token)
            before = card_at(str(run), head, token)
            changes = change(before)
            card = changed(before, **changes)
            if card != before:
                commit(str(run), {CARD: card.as_text().encode()}, _message(changes), head, token)
            return card
        except Overtaken as overtaken:
            last = overtaken
    raise ConnectionError(f"no change was made in {TRIES} attempts: {last}")


@contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """Let nobody else change a card on this machine meanwhile. Raises ConnectionError if somebody does for long."""
    try:
        with FileLock(file.with_name(f".{file.name}.lock"), timeout=LOCK_S):
            yield
    except Timeout as error:
        raise ConnectionError(f"another program has been changing {file} for {LOCK_S} s: try again later.") from error


def changed(card: RunCard, **changes: Any) -> RunCard:
    """Return a card with other values of fields that may change. Raises ValueError as `edit_run` does."""
    _require_changeable(changes)
    require_addresses(changes.get("initial_peers", ()))  # with one that is none, nobody could join
    own = {name: value for name, value in changes.items() if name in CHANGEABLE}
    if of_members := {name: value for name, value in changes.items() if name in MEMBERS}:
        if card.members is None:
            raise ValueError(
                f"run {card.name!r} has no members, so it cannot have {', '.join(of_members)}: with them it would be "
                "another run, which `dalle-lib run new --organization` makes."
            )
        own["members"] = card.members.model_dump() | of_members
    new = card.with_changes(**own)
    if new.fingerprint != card.fingerprint:
        raise ValueError(f"expected a change that leaves the run what it is, but {', '.join(changes)} does not.")
    return new


def _require_changeable(changes: dict[str, Any]) -> None:
    known = (*CHANGEABLE, *MEMBERS)
    if others := [name for name in changes if name not in known]:
        raise ValueError(
            f"expected what may change while a run goes on ({', '.join(known)}), but got {', '.join(others)}. All "
            "other fields are what its peers agree on: changed, they make another run, with `dalle-lib run new`."
        )


def _message(changes: dict[str, Any]) -> str:
    return f"Run: {', '.join(changes)}"
