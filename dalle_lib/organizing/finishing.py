"""The end of a run: its last checkpoint beside the card, thanks to everybody, and nobody joins any more."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dalle_lib.checkpoint import load_model
from dalle_lib.files import reading, sha256_of, small_bytes
from dalle_lib.organizing.commits import card_at, commit, head_of
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.run import RunCard
from dalle_lib.run.files import CARD, MAX_CARD_BYTES, download, require_small
from dalle_lib.run.newest import MODEL, STATUS, USER_COLUMNS, newest_checkpoint
from dalle_lib.version import project_page

MAX_LISTED = 500
"""Contributors on the page, those with most hours."""
_UNSAFE = re.compile(r"[^\w .@+-]")


@dataclass(frozen=True)
class Standing:
    """What a run's monitor has told of it, as far as the page of a finished run says it."""

    contributors: tuple[tuple[str, float, float], ...] = ()
    """User, hours of computing, and share of the averaged gradients."""
    losses: tuple[tuple[int, float, float], ...] = ()
    """Epoch, held-out loss in nats a code, and half of its 95% interval, of each examined checkpoint."""

    @classmethod
    def of(cls, card: RunCard) -> "Standing":
        """Return what the run's repository of checkpoints says, nothing without one. Raises ValueError."""
        if card.checkpoints is None:
            return cls()
        require_small(card.checkpoints, STATUS, card.token)
        path = download(card.checkpoints, STATUS, card.token, f"no {STATUS} in {card.checkpoints}.")
        with reading(path, "the standing of a run"):
            return cls._made_of(json.loads(small_bytes(path, MAX_CARD_BYTES)))

    @classmethod
    def _made_of(cls, told: Mapping) -> "Standing":
        users = [dict(zip(USER_COLUMNS, row, strict=True)) for row in told["users"]]
        contributors = tuple((str(user["user"]), user["compute_s"] / 3600, float(user["share"])) for user in users)
        examined = [(each["epoch"], each["figures"]) for each in told["checkpoints"] if each["figures"]]
        losses = sorted((int(epoch), float(f["held_out_loss"]), float(f["half_width"])) for epoch, f in examined)
        return cls(contributors, tuple(losses))


def finish_run(repository: str, token: str | None = None, *, model: Path | None = None, licence: str = "") -> RunCard:
    """End the run owner/name on the Hub, and return its card: its last checkpoint lies beside it from now on.

    `model` is a file with its weights, such as a peer's; without it, the newest checkpoint of the run's monitor is
    taken. The page becomes that of a model, with the recipe, the losses and everybody's contribution; `licence` is one
    of the Hub's names, such as "cc-by-4.0". Peers that run go on until they have the last epoch, and nobody joins.

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
    page = model_page(finished, repository, Standing.of(card), newest.epoch if newest else None, licence)
    files = {CARD: finished.as_text().encode(), MODEL: Path(weights), PAGE: page.encode()}
    commit(repository, files, f"The run {card.name} is finished", head, token)
    return finished


def model_page(card: RunCard, repository: str, standing: Standing, epoch: int | None, licence: str = "") -> str:
    """Return the page of a finished run's repository."""
    head = ["library_name: dalle-lib", "pipeline_tag: text-to-image", *([f"license: {licence}"] if licence else [])]
    of_epoch = "" if epoch is None else f" after {epoch:,} of {card.optimizer.total_epochs:,} epochs"
    recipe = {
        "model": f"{card.model.depth} blocks of {card.model.dim}, {card.model.heads} heads",
        "pictures": f"{card.model.grid}x{card.model.grid} codes, each one of {card.model.image_vocab:,}",
        "data": f"{card.data.train}, manifest {str(card.data.manifest)[:16]}",
        "optimizer": f"LAMB in {card.optimizer.bits} bits, learning rate {card.optimizer.lr:g}, "
        f"{card.averaging.target_batch_size:,} samples an epoch",
        "averaging": f"{card.averaging.rule}, {card.averaging.strategy}",
    }
    lines = [
        "---", *head, "---", f"# {card.name}", "",
        f"A text-to-image model that volunteers trained together over the internet{of_epoch}, with "
        f"[dalle-lib]({project_page()}).",
        "", "```", f'dalle-lib generate "a prompt" --run {repository}', "```", "",
        "## How it was made", "", "| | |", "| --- | --- |",
        *(f"| {name} | {told} |" for name, told in recipe.items()), "",
    ]  # fmt: skip
    if standing.losses:
        lines += ["## How good it is", "", "| epoch | nats a code on held-out data |", "| ---: | --- |"]
        lines += [f"| {at:,} | {loss:.3f} ± {half:.3f} |" for at, loss, half in standing.losses] + [""]
    if standing.contributors:
        lines += ["## Who made it", "", "Thanks to everybody who gave ten minutes of computing or more:", ""]
        lines += ["| user | hours of computing | of the averaged gradients |", "| --- | ---: | ---: |"]
        shown = standing.contributors[:MAX_LISTED]
        lines += [f"| {_UNSAFE.sub('?', user)} | {hours:,.1f} | {share:.1%} |" for user, hours, share in shown] + [""]
    lines += [
        "## What it must not be used for", "",
        "It repeats what its data show and say, with their prejudices, and it may draw a training picture nearly as it "
        "was. Nobody has examined it for harm. Do not show its pictures as photographs, nor draw people without their "
        "word.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)
