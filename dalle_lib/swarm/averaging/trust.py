"""What the averagers of a run go by: who may take part in a round, who may reduce, and by which rule."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.utils.crypto import RSAPublicKey

from dalle_lib.auth import AccessToken, Refused, Role, Roster
from dalle_lib.run import RunCard


class Introduction(NamedTuple):
    """What each peer tells its group about itself before a round."""

    epoch: int | None = None
    """The epoch whose gradients it brings; None from peers of plain hivemind."""
    is_behind: bool = False
    """Whether its parameters lack an update that others made, so that the group should average parameters soon."""
    token: bytes = b""

    @classmethod
    def parse(cls, told: Any) -> "Introduction":
        """Return what a peer told; what is not as expected counts as not told."""
        match told:
            case [int() as epoch, bool() as is_behind, bytes() as token]:
                return cls(epoch, is_behind, token)
        return cls()


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Who may do what in a round, the same for all peers of a run; by default all may do all."""

    rule: str = "mean"
    """How a reducer combines parts: a name in `aggregation.RULES`."""
    reducers: str = "all"
    """Who may reduce: "all", "members" or "vouched"."""
    max_weight: float = float("inf")
    """What a peer's samples count for at most in one round."""
    audits: float = 0.0
    """How many parts of a round are reduced a second time by another peer, on average."""
    max_peers_per_user: int | None = None
    max_share_per_user: float = 1.0
    """Of the weight of a round; it has no effect in a round of one user alone."""
    roster: Roster | None = None
    """Who is a member; None lets everybody in."""
    token: bytes = b""
    """This peer's own."""

    @classmethod
    def of(cls, card: RunCard, **own) -> "Trust":
        """Return what a card says; `own` are the roster and this peer's token, where the run has members."""
        return cls(
            rule=card.averaging.rule,
            reducers=card.averaging.reducers,
            max_weight=2.0 * card.averaging.target_batch_size,
            audits=card.averaging.audits,
            max_peers_per_user=card.members.max_peers if card.members else None,
            max_share_per_user=card.members.max_share if card.members else 1.0,
            **own,
        )

    async def refusal(self, peer_id: str, token: bytes = b"") -> str | None:
        """Return why a peer may not take part, or None if it may. `token` is what it showed, if anything."""
        if self.roster is None:
            return None
        if token:
            try:
                self.roster.learn(peer_id, AccessToken.from_bytes(token))
            except Refused as refused:
                return str(refused)
            except ValueError as error:
                return f"its token cannot be read: {error}"
        if await self.roster.member(peer_id) is None:
            return "it has no valid token of this run"
        return None

    def record_refusal(self, peer_id: str, owner: bytes) -> str | None:
        """Return why a record about a peer does not count, or None. `owner` marks the key that it is signed with."""
        if self.roster is None:
            return None
        if (token := self.roster.fetch(peer_id)) is None:
            return "it has no valid token of this run"
        return None if owner == owner_key(token.public_key) else "it was written by somebody else"

    def user_of(self, peer_id: str) -> str:
        """Return the user a peer belongs to; without members, each peer is a user of its own."""
        token = self.roster.known(peer_id) if self.roster else None
        return token.user if token else peer_id

    def may_reduce(self, peer_id: str) -> bool:
        """Return whether a peer that may take part may also reduce."""
        token = self.roster.known(peer_id) if self.roster else None
        return self.reducers == "all" or (
            token is not None and (self.reducers == "members" or token.role is Role.VOUCHED)
        )


def owner_key(public_key: bytes) -> bytes:
    """Return how hivemind marks what the owner of a key (DER) stores in the hash table."""
    key = RSAPublicKey(serialization.load_der_public_key(public_key))
    return RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", key.to_bytes())
