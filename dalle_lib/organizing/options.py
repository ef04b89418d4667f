"""What an organiser chooses for a new run. Imports nothing heavy: the command line takes its options from here."""

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from dalle_lib.swarm.process.addresses import require_addresses

if TYPE_CHECKING:
    from dalle_lib.run import MembersCard


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """Who may take part in a new run, and where its first peer will be."""

    members: bool = False
    """Only peers with an access token take part. You give them by hand, unless --server names who does."""
    organization: str | None = None
    """The organisation on the Hub whose members may take part; with --server, that asks the Hub."""
    server: str | None = None
    """Address at which the authority's server will be, such as https://run.example.org; http for this machine alone."""
    client_id: str | None = None
    """Public client id of your application on the Hub, through which volunteers prove who they are by a code. Without
    it, they show their Hub tokens."""
    invitation: str | None = None
    """Link by which somebody joins the organisation."""
    first_peer: str | None = None
    """HOST:PORT where your first peer will be: a name or an IPv4 address that others can reach, and a port. Its address
    gets into the card, so volunteers need none."""

    def __post_init__(self) -> None:
        if self.client_id is not None and self.server is None:
            raise ValueError(
                "client_id is for the authority's server, which asks volunteers who they are: give its address, too."
            )
        if self.first_peer is not None:
            first_peer_address(self.first_peer, "Qm" + "a" * 44)
        if self.for_members:
            self.card_of("A" * 43 + "=")

    def card_of(self, authority: str) -> "MembersCard":
        """Return what a card says of the members; `authority` is a public key. Raises ValueError if no card can."""
        from pydantic import ValidationError

        from dalle_lib.run.parts import MembersCard, problems_in

        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {name: value for name, value in told.items() if name in MembersCard.model_fields}
        try:
            return MembersCard(authority=authority, **told)
        except ValidationError as error:
            raise ValueError(f"no run can be so: {problems_in(error)}.") from error

    @property
    def for_members(self) -> bool:
        """Whether the run is for members."""
        return any((self.members, self.organization, self.server, self.invitation))

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to make keys for."""
        return any(getattr(self, field.name) for field in fields(self))


def first_peer_address(place: str, peer_id: str) -> str:
    """Return the address at which others reach a peer whose place is HOST:PORT. Raises ValueError for what is none."""
    found = re.fullmatch(r"(?P<host>[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})", place)
    if found is None:
        raise ValueError(
            f"expected the first peer's place as HOST:PORT, a name or an IPv4 address and a port, such as "
            f"run.example.org:31337, but got {place!r:.100}."
        )
    kind = "ip4" if re.fullmatch(r"[0-9.]+", found["host"]) else "dns4"
    address = f"/{kind}/{found['host']}/tcp/{found['port']}/p2p/{peer_id}"
    require_addresses([address])
    return address
