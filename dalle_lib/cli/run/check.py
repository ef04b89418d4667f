"""`dalle-lib run check`."""

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from dalle_lib.run import RunCard


@dataclass(frozen=True, kw_only=True)
class Check:
    """Read all that a run's card names, as its peers will, and tell what the run is.

    For example:

    dalle-lib run check outputs/photos-run
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """An embedded run, a folder, or owner/name on the Hub."""

    def run(self) -> None:
        """Print what the run is, or raise ValueError for the first thing that does not fit."""
        from dalle_lib.run import RunCard, hub_token_for, require_fit

        card = RunCard.load(self.named, hub_token_for(self.named))
        require_fit(card)
        print(f"{describe(card)}\nAll that the card names is there, and fits.")


def describe(card: "RunCard") -> str:
    """Return what a run is: its model, data and schedule, and the key under which its peers meet."""
    from dalle_lib.run import codes_of_run
    from dalle_lib.run.sizes import size_of

    sizes, codes = card.model, card.data.format
    with closing(codes_of_run(card, seed=0)) as stream:
        rows, size = stream.data.manifest.rows, stream.data.manifest.size
    epochs, each = card.optimizer.total_epochs, card.averaging.target_batch_size
    return "\n".join(
        [
            f"Run:      {card.name}, {size_of(card)}.",
            f"Pictures: {codes.grid}x{codes.grid} codes, each one of {codes.codebook_size:,}; captions of up to "
            f"{sizes.text_length} text tokens.",
            f"Data:     {card.data.train}, {rows:,} rows in {size:,} bytes.",
            f"Schedule: {epochs:,} epochs of {each:,} samples, {epochs * each / rows:,.1f} passes over the data.",
            f"Key:      {card.key}. Only peers with the same one meet.",
        ]
    )
