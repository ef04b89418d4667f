"""`dalle-lib run finish`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Finish:
    """End a run: its last checkpoint lies beside the card, its page thanks everybody, and nobody joins any more.

    A monitor that may write there does so by itself at the last epoch. For example, with the newest checkpoint of a
    monitor, and with the model in a peer's folder:

    dalle-lib run finish owner/photos --licence cc-by-4.0

    dalle-lib run finish owner/photos --model peers/owner--photos/ada/model.safetensors
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, or owner/name on the Hub."""
    model: Path | None = None
    """File with the weights; without it, the newest checkpoint that the run's monitor has sent."""
    licence: str = ""
    """The model's licence by its name on the Hub, such as cc-by-4.0."""

    def run(self) -> None:
        """End it, and say what people draw with."""
        from dalle_lib.organizing.finishing import finish_run
        from dalle_lib.organizing.inviting import Invitation
        from dalle_lib.organizing.publishing import PAGE
        from dalle_lib.platforms import hub_token

        card = finish_run(self.named, hub_token(), model=self.model, licence=self.licence)
        page = Path(self.named) / PAGE if card.repository is None else Invitation.to(self.named, card).page
        print(f"Run:      {card.name}, finished.\nPage:     {page}")
        print(f'Draw:     dalle-lib generate "a prompt" --run {self.named}')
