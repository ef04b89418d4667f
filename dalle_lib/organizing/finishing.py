"""The end of a run: its last checkpoint beside the card, thanks to everybody, and nobody joins any more."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dalle_lib.checkpoint import load_model
from dalle_lib.files import replace_file, sha256_of
from dalle_lib.organizing.commits import card_at, commit, head_of
from dalle_lib.organizing.editing import change_run
from dalle_lib.organizing.model_page import PAGE_FOLDER, PageFacts, model_page
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.files import CARD, MODEL, card_here
from dalle_lib.run.newest import newest_checkpoint


@dataclass(frozen=True)
class LastState:
    """What a run ends with: a file with its weights, and what is told of it on the page."""

    model: Path
    epoch: int | None = None
    facts: PageFacts = field(default_factory=PageFacts)

    @classmethod
    def of(cls, card: RunCard, model: Path | None = None) -> "LastState":
        """Return that of a file, or of the newest checkpoint, with what the run's monitor has told on the Hub.

        Raises ValueError if there is neither, and ConnectionError if the Hub does not answer.
        """
        newest = newest_checkpoint(card) if model is None else None
        if model is None and newest is None:
            raise ValueError(
                f"expected a checkpoint of {card.repository or card.name}, but its monitor has sent none: give a file "
                "with the weights as --model, such as model.safetensors in the folder of a peer."
            )
        return cls(model or newest.fetched(MODEL), newest.epoch if newest else None, PageFacts.of(card))


def finish_run(
    run: str | Path,
    token: str | None = None,
    *,
    model: Path | None = None,
    licence: str = "",
    last: LastState | None = None,
) -> RunCard:
    """End a run, owner/name on the Hub or a folder, and return its card: its last checkpoint lies beside it now.

    `model` is a file with its weights, such as a peer's; without it, the newest checkpoint of the run's monitor is
    taken. The page becomes that of a model: the recipe, the last figures and pictures of the monitor, and everybody's
    contribution; `licence` is one of the Hub's names, such as "cc-by-4.0". Peers that run go on until they have the
    last epoch, and nobody joins. A monitor gives `last` in the place of `model`. In a folder the card is changed last,
    so that what was stopped in between can be done again.

    Raises ValueError, and changes nothing, if there is no model or it is not the run's; PermissionError if the Hub
    refuses; ConnectionError if it does not answer.
    """
    if run in EMBEDDED_RUNS:
        raise ValueError(f"expected a run of yours, but {run} is part of the kit.")
    file = card_here(run)
    head = head_of(str(run), token) if file is None else ""
    card = card_at(str(run), head, token) if file is None else RunCard.load(run)
    last = last or LastState.of(card, model)
    load_model(last.model, card.model)
    changes = {"checkpoint": {"name": MODEL, "sha256": sha256_of(last.model)}, "state": "finished"}
    finished = card.with_changes(**changes)
    page = model_page(finished, str(run) if file is None else card.name, last.facts, last.epoch, licence)
    files = {MODEL: last.model, PAGE: page.encode()}
    files |= {f"{PAGE_FOLDER}/{name}": picture for name, picture in last.facts.pictures.items()}
    if file is None:
        commit(str(run), {CARD: finished.as_text().encode(), **files}, f"The run {card.name} is finished", head, token)
        return finished
    for name, content in files.items():
        _put(file.with_name(name), content)
    return change_run(run, lambda _: changes)


def _put(file: Path, content: Path | bytes) -> None:
    """Write a file, whole or not at all, unless it is the one to copy."""
    if isinstance(content, Path) and file.exists() and file.samefile(content):
        return
    file.parent.mkdir(exist_ok=True)
    with replace_file(file) as unfinished:
        if isinstance(content, bytes):
            unfinished.write_bytes(content)
        else:
            shutil.copyfile(content, unfinished)
