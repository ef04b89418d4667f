"""`dalle-lib run finish`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Finish:
    """End a run: its last checkpoint lies beside the card, its page thanks everybody, and nobody joins any more.

    For example, with the newest checkpoint of its monitor, and with the model in a peer's folder:

    dalle-lib run finish owner/photos --licence cc-by-4.0

    dalle-lib run finish owner/photos --model peers/owner--photos/ada/model.safetensors
    """

    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
    """The run on the Hub."""
    model: Path | None = None
    """File with the weights; without it, the newest checkpoint that the run's monitor has sent."""
    licence: str = ""
    """The model's licence by its name on the Hub, such as cc-by-4.0."""

    def run(self) -> None:
        """End it, and say what people draw with."""
        from dalle_lib.organizing.finishing import finish_run
        from dalle_lib.organizing.inviting import Invitation
        from dalle_lib.platforms import hub_token

        card = finish_run(self.repository, hub_token(), model=self.model, licence=self.licence)
        print(f"Run:      {card.name}, finished.\nPage:     {Invitation.to(self.repository, card).page}")
        print(f'Draw:     dalle-lib generate "a prompt" --run {self.repository}')
