"""`dalle-lib run edit`."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Change what may change while a run goes on: whether it is open, what it tells volunteers, where it is found.

    Peers that run go on as before. Who is banned and who is vouched for is set at the authority: dalle-lib auth-server
    ban, and `roles` in its server.json. For example:

    dalle-lib run edit owner/photos --state paused --message "Back on Monday."

    dalle-lib run edit owner/photos --state open

    dalle-lib run edit outputs/photos-run --initial-peers /dns4/run.example.org/tcp/31337/p2p/Qm...
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, or owner/name on the Hub."""
    state: Literal["open", "paused", "finished"] | None = None
    """open: anybody who may can join. paused: nobody new. finished: nobody, for good."""
    message: str | None = None
    """One line for volunteers; "" for none."""
    kit: str | None = None
    """Versions of dalle-lib that the run takes, as in ">=0.2,<0.4"."""
    initial_peers: tuple[str, ...] | None = None
    """Addresses of the first peers, in place of those in the card."""
    checkpoints: str | None = None
    """The repository, owner/name, to which the run's monitor sends checkpoints."""
    monitors: tuple[str, ...] | None = None
    """Ids of the monitors' peers, in place of those in the card: only they may name the newest checkpoint."""
    server: str | None = None
    """Address of the authority's server."""
    organization: str | None = None
    """Organisation on the Hub whose members may take part."""
    client_id: str | None = None
    """Public client id of the authority's application on the Hub."""
    invitation: str | None = None
    """Link by which somebody joins the organisation."""
    json: bool = False
    """Print the new card as JSON on standard output."""

    def run(self) -> None:
        """Write the change, and say what the card says now."""
        from dalle_lib.organizing.editing import CHANGEABLE, MEMBERS, edit_run
        from dalle_lib.run import hub_token_for

        given = {name: getattr(self, name, None) for name in (*CHANGEABLE, *MEMBERS)}
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            raise ValueError("expected something to change, but no option was given: dalle-lib run edit --help.")
        card = edit_run(self.named, hub_token_for(self.named), **changes)
        told = [f"Message:  {card.message}"] if card.message else []
        print(card.as_text() if self.json else "\n".join([f"Run:      {card.name}, {card.state}.", *told]))
