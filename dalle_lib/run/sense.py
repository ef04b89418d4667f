"""Whether the parts of a card make sense together."""

import re
from typing import Any

OPENAI_CLIP = "openai/clip-vit-base-patch32"
"""`dalle_lib.rerank.OPENAI_CLIP`, of which `CLIPRanker` knows the commit; importing that would load torch."""


def require_sense(card: Any) -> None:
    """Raise ValueError for the first thing in a card by which its parts cannot be together."""
    averaging, optimizer, data = card.averaging, card.optimizer, card.data
    if averaging.reducers != "all" and card.members is None:
        raise ValueError(f"reducers={averaging.reducers!r} needs `members`: without access tokens nobody is known.")
    if averaging.strategy == "local" and averaging.delayed:
        raise ValueError(
            f'strategy="local" cannot be delayed={averaging.delayed!r}: the common step would undo the steps '
            f"that a peer makes meanwhile. Write delayed=false."
        )
    if averaging.matchmaking_s > averaging.timeout_s:
        raise ValueError(
            f"matchmaking_s={averaging.matchmaking_s:g} is above timeout_s={averaging.timeout_s:g}: no "
            "round would be whole before it is given up."
        )
    longest_s = averaging.longest_matchmaking_s
    if longest_s is not None and longest_s < averaging.matchmaking_s:
        raise ValueError(
            f"longest_matchmaking_s={longest_s:g} is below matchmaking_s={averaging.matchmaking_s:g}: leave it out, "
            "and no round waits longer than that."
        )
    if longest_s is not None and longest_s > averaging.timeout_s / 2:
        raise ValueError(
            f"longest_matchmaking_s={longest_s:g} is above half of timeout_s={averaging.timeout_s:g}: too little would "
            "be left for the round."
        )
    if optimizer.total_epochs < optimizer.warmup_epochs:
        raise ValueError(f"total_epochs={optimizer.total_epochs} is below warmup_epochs={optimizer.warmup_epochs}.")
    is_elsewhere = any(source.startswith("hf://") for source in (data.train, data.held_out))
    if is_elsewhere and not re.fullmatch("[0-9a-f]{40}", data.revision or ""):
        raise ValueError(
            f"data.revision must be a commit of the data on the Hub, 40 hexadecimal digits, but is "
            f"{data.revision!r}: a branch may hold other data tomorrow."
        )
    if not card.clip_is_beside and card.clip != OPENAI_CLIP and card.clip not in card.pins:
        raise ValueError(
            f"pins must name the commit of the CLIP {card.clip} on the Hub, but does not: its main branch may hold "
            "another one tomorrow."
        )
    codes = data.format
    if (card.model.grid, card.model.image_vocab) != (codes.grid, codes.codebook_size):
        raise ValueError(
            f"the model draws grids of {card.model.grid} among {card.model.image_vocab} codes, but the data have "
            f"grids of {codes.grid} among {codes.codebook_size}."
        )
