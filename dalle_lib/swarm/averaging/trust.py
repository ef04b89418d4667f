"""Says who may take part in a round, who may reduce, and by which rule parts are combined."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.utils.crypto import RSAPublicKey

from dalle_lib.auth import AccessToken, Refused, Role, Roster
from dalle_lib.run import RunCard


class Introduction(NamedTuple):
    """Holds what each peer tells its group about itself before a round."""

    epoch: int | None = None
    """The epoch whose gradients the peer brings; None from stock hivemind peers."""
    is_behind: bool = False
    """Whether its parameters lack an update that others made, so that the group should average parameters soon."""
    token: bytes = b""
    """The peer's access token, as bytes; empty in a run without members."""

    @classmethod
    def parse(cls, told: Any) -> "Introduction":
        """Return the introduction in a message; a message of any other form counts as an empty introduction."""
        match told:
            case [int() as epoch, bool() as is_behind, bytes() as token]:
                return cls(epoch, is_behind, token)
        return cls()


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Says who may do what in a round, the same for all peers of a run. By default everybody may do everything."""

    rule: str = "mean"
    """How a reducer combines parts: a name in `dalle_lib.aggregation.RULES`."""
    reducers: str = "all"
    """Who may reduce: "all", "members" or "vouched"."""
    max_weight: float = float("inf")
    """Cap on a peer's weight in one round, in samples."""
    audits: float = 0.0
    """Mean number of parts of a round that another peer reduces a second time, as a check."""
    max_peers_per_user: int | None = None
    """How many peers of one user may take part in a round; None for any number."""
    max_share_per_user: float = 1.0
    """Cap on the share of a round's weight that one user's peers have together, unless the round has one user."""
    roster: Roster | None = None
    """Knows who is a member; None lets everybody in."""
    token: bytes = b""
    """This peer's own access token, as bytes."""

    @classmethod
    def of(cls, card: RunCard, **own) -> "Trust":
        """Return what a run card says; `own` are `roster` and `token` in a run with members."""
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
        """Return why a peer may not take part, or None if it may. `token` is the access token it showed, if any."""
        if self.roster is None:
            return None
        if token:
            try:
                self.roster.learn(peer_id, AccessToken.from_bytes(token))
            except Refused as refused:
                return str(refused)
            except ValueError as error:
                return f"its access token cannot be read: {error}"
        if await self.roster.member(peer_id) is None:
            return "it has no valid access token of this run"
        return None

    def record_refusal(self, peer_id: str, owner: bytes) -> str | None:
        """Return why a record about a peer does not count, or None if it does.

        `owner` is hivemind's mark of the key that signed the record, as `owner_key` returns it.
        """
        if self.roster is None:
            return None
        if (token := self.roster.fetch(peer_id)) is None:
            return "it has no valid access token of this run"
        return None if owner == owner_key(token.public_key) else "somebody else wrote it"

    def user_of(self, peer_id: str) -> str:
        """Return the user that a peer belongs to; in a run without members each peer is a user of its own."""
        token = self.roster.known(peer_id) if self.roster else None
        return token.user if token else peer_id

    def may_reduce(self, peer_id: str) -> bool:
        """Return whether a peer that may take part may also reduce."""
        token = self.roster.known(peer_id) if self.roster else None
        return self.reducers == "all" or (
            token is not None and (self.reducers == "members" or token.role is Role.VOUCHED)
        )


def owner_key(public_key: bytes) -> bytes:
    """Return the mark by which hivemind recognises what the owner of a public key (DER) stores in the hash table."""
    key = RSAPublicKey(serialization.load_der_public_key(public_key))
    return RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", key.to_bytes())
