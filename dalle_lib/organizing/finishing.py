"""The end of a run: its last checkpoint beside the card, thanks to everybody, and nobody joins any more."""

from pathlib import Path

from dalle_lib.checkpoint import load_model
from dalle_lib.files import sha256_of
from dalle_lib.organizing.commits import card_at, commit, head_of
from dalle_lib.organizing.model_page import PAGE_FOLDER, PageFacts, model_page
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.run import RunCard
from dalle_lib.run.files import CARD, MODEL
from dalle_lib.run.newest import newest_checkpoint


def finish_run(repository: str, token: str | None = None, *, model: Path | None = None, licence: str = "") -> RunCard:
    """End the run owner/name on the Hub, and return its card: its last checkpoint lies beside it from now on.

    `model` is a file with its weights, such as a peer's; without it, the newest checkpoint of the run's monitor is
    taken. The page becomes that of a model: the recipe, the last figures and pictures of the monitor, and everybody's
    contribution; `licence` is one of the Hub's names, such as "cc-by-4.0". Peers that run go on until they have the
    last epoch, and nobody joins.

    Raises ValueError, and changes nothing, if there is no model or it is not the run's; PermissionError if the Hub
    refuses; ConnectionError if it does not answer.
    """
    head = head_of(repository, token)
    card = card_at(repository, head, token)
    newest = newest_checkpoint(card) if model is None else None
    if model is None and newest is None:
        raise ValueError(
            f"expected a checkpoint of {repository}, but its monitor has sent none: give a file with the weights as "
            "--model, such as model.safetensors in the folder of a peer."
        )
    weights = model or newest.fetched(MODEL)
    load_model(weights, card.model)
    finished = card.with_changes(checkpoint={"name": MODEL, "sha256": sha256_of(weights)}, state="finished")
    facts = PageFacts.of(card)
    page = model_page(finished, repository, facts, newest.epoch if newest else None, licence)
    files = {CARD: finished.as_text().encode(), MODEL: Path(weights), PAGE: page.encode()}
    files |= {f"{PAGE_FOLDER}/{name}": picture for name, picture in facts.pictures.items()}
    commit(repository, files, f"The run {card.name} is finished", head, token)
    return finished
