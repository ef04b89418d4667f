"""What is in a run's card, field by field: what it means, whether it is there and fits, whether it makes sense."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

from docstring_parser import parse_from_object
from pydantic import BaseModel

from dalle_lib.files import reading
from dalle_lib.machine import require_room_in_cache
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.organizing.plausible import doubts
from dalle_lib.run import FileCard, RunCard, codes_of_run
from dalle_lib.run.files import hub_files
from dalle_lib.run.start import require_checkpoint, require_tokenizer, require_vqgan
from dalle_lib.streaming import stream_codes
from dalle_lib.streaming.tokenizer_file import load_tokenizer
from dalle_lib.swarm.process.addresses import require_addresses

MAX_CAPTIONS = 1000
"""Captions, from the start of the data, that are held against the text tokens which are read."""


@dataclass(frozen=True)
class Finding:
    """One field of a card."""

    field: str
    """Its name, after those of the parts that it is in: averaging.timeout_s."""
    value: Any
    """As JSON has it."""
    meaning: str
    """In a sentence."""
    state: Literal["fits", "doubtful", "wrong"]
    told: str = ""
    """What is doubtful or wrong, and what to do."""


@dataclass(frozen=True)
class Checked:
    """A card that has been checked."""

    findings: tuple[Finding, ...]
    rows: int | None
    """Rows of the training data; None if they cannot be read."""

    @property
    def wrong(self) -> list[Finding]:
        """What does not fit."""
        return [finding for finding in self.findings if finding.state == "wrong"]

    @property
    def doubtful(self) -> list[Finding]:
        """What fits, but makes little sense."""
        return [finding for finding in self.findings if finding.state == "doubtful"]


def check_run(card: RunCard) -> Checked:
    """Return what each field of a card says and whether it fits, with all that it names read as its peers will.

    Raises nothing for what does not fit: that is told of its field; but NotEnoughRoom, before anything is fetched, if
    the disk here has no room for what is in the card's repository.
    """
    if (repository := card.repository) is not None:
        require_room_in_cache(repository, lambda: (_missing_bytes(repository, card.token), 0))
    wrong: dict[str, str] = {}
    rows, lengths = _read_data(card, wrong)
    for field, check in _CHECKS.items():
        if field not in wrong and (why := _problem_of(check, card)):
            wrong[field] = why
    doubted = doubts(card, rows, lengths)
    if "clip" not in wrong and (why := _without_clip(card)):
        doubted["clip"] = why
    findings = []
    for field, value, meaning in fields_of(card):
        state = "wrong" if field in wrong else "doubtful" if field in doubted else "fits"
        findings.append(Finding(field, value, meaning, state, wrong.get(field) or doubted.get(field, "")))
    return Checked(tuple(findings), rows)


def _missing_bytes(repository: str, token: str | None) -> int:
    return sum(file.bytes or 0 for file in hub_files(repository, token).values() if not file.is_here)


def rows_of(card: RunCard) -> int:
    """Return the rows of a run's training data. Raises ValueError or ConnectionError if they cannot be read."""
    with closing(codes_of_run(card, seed=0)) as stream:
        return stream.data.manifest.rows


def fields_of(part: Any, before: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each field of a card with its value, as JSON has it, and what it means; a file is one field."""
    meanings = {
        meta.args[1]: " ".join((meta.description or "").split())
        for meta in parse_from_object(type(part)).params
        if len(meta.args) > 1
    }
    names = type(part).model_fields if isinstance(part, BaseModel) else part.__dataclass_fields__
    for name in names:
        value = getattr(part, name)
        if isinstance(value, FileCard):
            yield f"{before}{name}", value.model_dump(), _first_sentence(meanings.get(name, ""))
        elif isinstance(value, BaseModel) or is_dataclass(value):
            yield from fields_of(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value, _first_sentence(meanings.get(name, ""))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:;]) ", text, maxsplit=1)[0].rstrip(".:;").replace("``", "`")


def _read_data(card: RunCard, wrong: dict[str, str]) -> tuple[int | None, list[int]]:
    """Return the rows for training, and the text tokens of some captions; what cannot be read is added to `wrong`."""
    rows, captions = None, []
    try:
        with closing(codes_of_run(card, card.seed)) as stream:
            rows = stream.data.manifest.rows
            while len(captions) < min(rows, MAX_CAPTIONS):
                captions.append(next(stream).caption)
    except (ValueError, OSError) as error:
        wrong["data.train"] = in_one_line(error)
    try:
        _read_held_out(card)
    except (ValueError, OSError) as error:
        wrong["data.held_out"] = in_one_line(error)
    return rows, _lengths_of(captions, card)


def _lengths_of(captions: list[str], card: RunCard) -> list[int]:
    """Return the text tokens of captions; none where the tokenizer cannot be used, of which its own check says why."""
    try:
        file = card.path(card.tokenizer)
        with reading(file, "a tokenizer"):
            return [len(found.ids) for found in load_tokenizer(file).encode_batch(captions, add_special_tokens=False)]
    except (ValueError, OSError):
        return []


def _read_held_out(card: RunCard) -> None:
    source, data = card.data_source(card.data.held_out), card.data
    told = {"revision": data.revision, "expected": data.format, "filters": data.filters, "token": card.token}
    with closing(stream_codes(source, seed=0, **told)) as stream:
        next(stream)


def _problem_of(check: Callable[[RunCard], None], card: RunCard) -> str | None:
    try:
        check(card)
    except (ValueError, OSError) as error:
        return in_one_line(error)
    return None


def _require_clip(card: RunCard) -> None:
    if card.clip_is_beside and card.repository is None and card.has_clip():
        card.data_source(card.clip)  # is it the one that is pinned


_CHECKS: dict[str, Callable[[RunCard], None]] = {
    "tokenizer": require_tokenizer,
    "vqgan": require_vqgan,
    "checkpoint": require_checkpoint,
    "clip": _require_clip,
    "initial_peers": lambda card: require_addresses(card.initial_peers),
}
"""What is checked of each field, beside the data."""


def _without_clip(card: RunCard) -> str | None:
    """Return what cannot be done without the run's CLIP, if it is not there or cannot be asked for."""
    use = "It chooses among drawn pictures: training needs none, and `generate --no-clip` draws without."
    try:
        return None if card.has_clip() else f"it is not there. {use}"
    except ConnectionError as error:
        return f"{printable(str(error))}. {use}"
