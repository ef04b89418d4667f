"""Sizes of a run that can be, but make little sense: what is doubtful of a card, and what would be better."""

from collections.abc import Sequence

from dalle_lib.memory.hardware import GPUS
from dalle_lib.organizing.sizing import needs_of, passes_of
from dalle_lib.run import RunCard

MAX_PASSES = 1000
"""More passes over the data than this learn them by heart many times over."""
FEW_EPOCHS = 30
"""Half of the epochs of `emoji-mini`, which is a short run."""
MAX_CUT = 0.05
"""Part of the captions that may be longer than what is read of them."""
USUAL_LR = (1e-4, 0.05)
"""Learning rates of LAMB that have trained something here or in the paper, with room on both sides."""
MIN_MATCHMAKING_S = 2.0
"""In less, peers on home links seldom find each other."""
COMMON = GPUS["T4"]
"""The GPU that volunteers have for nothing, on Colab and Kaggle."""


def doubts(card: RunCard, rows: int | None, lengths: Sequence[int]) -> dict[str, str]:
    """Return what is doubtful of each field; `rows` are those of the data, `lengths` the text tokens of some captions.

    None and no lengths stand for data that cannot be read.
    """
    told = _of_sizes(card, lengths) | _of_schedule(card, rows) | _of_averaging(card) | _of_people(card)
    return {field: why for field, why in told.items() if why}


def _of_sizes(card: RunCard, lengths: Sequence[int]) -> dict[str, str]:
    model, told = card.model, {}
    cut = sum(length > model.text_length for length in lengths)
    if cut > MAX_CUT * len(lengths):
        told["model.text_length"] = (
            f"{cut / len(lengths):.0%} of the captions are longer, and their ends are not read: the longest of "
            f"{len(lengths):,} has {max(lengths)} text tokens."
        )
    elif lengths and model.text_length > 64 and model.text_length > 4 * max(lengths):
        told["model.text_length"] = (
            f"the longest of {len(lengths):,} captions has {max(lengths)} text tokens: each sample computes "
            f"{model.text_length - max(lengths)} more for nothing."
        )
    needed = needs_of(card)[0]
    if needed > COMMON.size:
        told["model.dim"] = (
            f"a trainer needs up to {needed / 1e9:.1f} GB on a GPU at batch 1, but a {COMMON.name} of Colab has "
            f"{COMMON.size / 1e9:.1f}: `dalle-lib memory` tells which GPUs do."
        )
    return told


def _of_schedule(card: RunCard, rows: int | None) -> dict[str, str]:
    optimizer, batch, told = card.optimizer, card.averaging.target_batch_size, {}
    if rows is not None:
        passes = passes_of(card, rows)
        if batch > rows:
            told["averaging.target_batch_size"] = f"an epoch has {batch / rows:,.1f} times as many samples as the data."
        if passes > MAX_PASSES:
            told["optimizer.total_epochs"] = f"{passes:,.0f} passes over {rows:,} rows: fewer epochs, or more data."
        elif passes < 1:
            told["optimizer.total_epochs"] = f"the run sees {passes:.0%} of its {rows:,} rows: more epochs."
    if optimizer.total_epochs < FEW_EPOCHS:
        told["optimizer.total_epochs"] = f"in fewer than {FEW_EPOCHS} epochs little is learned: smaller ones, or more."
    if optimizer.warmup_epochs > optimizer.total_epochs / 2:
        told["optimizer.warmup_epochs"] = "the learning rate rises for more than half of the run: 1 in 10 is usual."
    if not USUAL_LR[0] <= optimizer.lr <= USUAL_LR[1]:
        low, high = USUAL_LR
        told["optimizer.lr"] = f"expected {low:g} to {high:g}: beyond, nothing was trained with this optimizer here."
    for name in "code_corruption", "caption_dropout":
        if (share := getattr(card.recipe, name)) > 0.5:
            told[f"recipe.{name}"] = f"{share:.0%} of what the model should learn from is taken away."
    return told


def _of_averaging(card: RunCard) -> dict[str, str]:
    averaging, told = card.averaging, {}
    if averaging.matchmaking_s < MIN_MATCHMAKING_S:
        told["averaging.matchmaking_s"] = (
            f"in less than {MIN_MATCHMAKING_S:g} s, peers on home links seldom find each other."
        )
    if averaging.timeout_s < 2 * averaging.matchmaking_s:
        told["averaging.timeout_s"] = (
            "who lets others wait for half of it is left out, which is less than matchmaking takes: raise it."
        )
    if averaging.audits == 0 and averaging.reducers == "all":
        told["averaging.audits"] = "whoever reduces may lie, and nobody looks."
    return told


def _of_people(card: RunCard) -> dict[str, str]:
    members, told = card.members, {}
    if card.state != "open":
        told["state"] = f"nobody can join a run that is {card.state}."
    if not card.initial_peers:
        told["initial_peers"] = "none: volunteers must be told an address, or begin alone."
    if members is None:
        told["members"] = "everybody may take part, also those who send noise: rules and audits alone hold them off."
    elif members.server is not None and members.organization is None:
        told["members.organization"] = "none: everybody with an account on the Hub gets an access token."
    elif members.server is not None and members.client_id is None:
        told["members.client_id"] = "none: volunteers must show the authority a Hub token of theirs."
    elif members.server is None:
        told["members.server"] = "none: you give each peer its access token by hand (`dalle-lib run token`)."
    if members is not None and members.organization and members.invitation is None:
        told["members.invitation"] = "none: who is no member is not told by which link to become one."
    return told
