"""Says who may take part in a round, who may reduce, and by which rule parts are combined."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPublicKey

from dalle_lib.auth import AccessToken, HeldToken, Identity, Refused, Role, Roster
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.patience import LEAST_S


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Says who may do what in a round, the same for all peers of a run. By default everybody may do everything."""

    rule: str = "mean"
    """How a reducer combines parts: a name in `dalle_lib.aggregation.RULES`."""
    reducers: str = "all"
    """Who may reduce: "all", "members" or "vouched"."""
    max_weight: float = float("inf")
    """Cap on a peer's weight in one round, in samples."""
    most_decide: bool = False
    """Whether peers that claim weight zero count alike unless enough of the users claim more, or a vouched one does
    (`fair_weights`). So it is with parameters: a stranger that says that it alone has an update would rule all who lack
    it."""
    audits: float = 0.0
    """Mean number of parts of a round that another peer reduces a second time, as a check."""
    max_peers_per_user: int | None = None
    """How many peers of one user may take part in a round; None for any number."""
    max_share_per_user: float = 1.0
    """Cap on the share of a round's weight that one user's peers have together, unless the round has one user."""
    measures: bool = False
    """Whether reducers get parts by what vouched peers have measured that they can upload, or all the same."""
    answer_size: int = 1
    """How long an average is on the wire, in multiples of a part on its way to a reducer."""
    is_local: bool = False
    """Whether peers average how far their own steps have led them: with more samples, as much further."""
    least_wait_s: float = LEAST_S
    """Seconds for which a round waits for any peer that was not late in the last one."""
    roster: Roster | None = None
    """Knows who is a member; None lets everybody in."""
    identity: Identity | None = None
    """This peer's own key, with which it signs what it tells others. Who only reads others' records needs none."""
    own: HeldToken | None = None
    """This peer's own access token, which may be renewed; None in a run without members."""
    shown: Mapping[str, AccessToken] | None = None
    """The access tokens that the peers of a group have signed for its round, by peer id; None outside of a round."""

    @classmethod
    def of(cls, card: RunCard, **own) -> "Trust":
        """Return what a run card says; `own` are this peer's: `identity`, and with members `roster`, `own`."""
        return cls(
            rule=card.averaging.rule,
            reducers=card.averaging.reducers,
            max_weight=2.0 * card.averaging.target_batch_size,
            audits=card.averaging.audits,
            measures=card.averaging.parts == "measured",
            answer_size=8 // card.averaging.upload_bits,
            least_wait_s=card.averaging.least_wait_s,
            is_local=card.averaging.strategy == "local",
            max_peers_per_user=card.members.max_peers if card.members else None,
            max_share_per_user=card.members.max_share if card.members else 1.0,
            **own,
        )

    @property
    def token(self) -> bytes:
        """This peer's own access token as it is now, as bytes; empty where there is none."""
        held = None if self.own is None else self.own.now()
        return b"" if held is None else held.to_bytes()

    def longest_way(self, weight: float) -> float:
        """Return how many times as far as a peer of this weight another one may have come by its own steps."""
        return max(1.0, self.max_weight / weight) if self.is_local and weight > 0 else 1.0

    async def refusal(self, peer_id: str, token: bytes | None = None, left_s: float = 0.0) -> str | None:
        """Return why a peer may not take part, or None if it may.

        `token` is the access token in its introduction, which may not be empty where a run has members, and counts for
        `left_s` seconds more; None where it introduces itself not.
        """
        if self.roster is None:
            return None
        if token:
            try:
                shown = AccessToken.from_bytes(token)
                self.roster.learn(peer_id, shown)
                if shown.expires.timestamp() < get_dht_time() + left_s:
                    return "its access token is about to expire"
            except Refused as refused:
                return str(refused)
            except ValueError as error:
                return f"its access token cannot be read: {error}"
        if token == b"" or await self.roster.member(peer_id) is None:
            return "it has no valid access token of this run"
        return None

    def of_group(self, tokens: Mapping[str, bytes]) -> "Trust":
        """Return the same for a group, whose peers have shown these access tokens, which `refusal` has let pass.

        A peer may have two, of two users, and show one here and one there: what rosters know of it may differ. In a
        round each peer's user and role are those of the token that all of the group have seen.
        """
        if self.roster is None:
            return self
        return replace(self, shown={peer: AccessToken.from_bytes(token) for peer, token in tokens.items() if token})

    def _token_of(self, peer_id: str) -> AccessToken | None:
        if self.shown is not None:
            return self.shown.get(peer_id)
        return self.roster.known(peer_id) if self.roster else None

    def record_refusal(self, peer_id: str) -> str | None:
        """Return why a peer's record of itself does not count, or None if it does."""
        if self.roster is None or self.roster.fetch(peer_id) is not None:
            return None
        return "it has no valid access token of this run"

    def user_of(self, peer_id: str) -> str:
        """Return the user that a peer belongs to; in a run without members each peer is a user of its own."""
        token = self._token_of(peer_id)
        return token.user if token else peer_id

    def too_many(self, peers: Iterable[str]) -> str | None:
        """Return what is wrong if one user has too many of these peers, which are some, or None."""
        (user, count), *_ = Counter(map(self.user_of, peers)).most_common(1)
        if self.max_peers_per_user is None or count <= self.max_peers_per_user:
            return None
        return f"{user!r} has {count} peers in it, but at most {self.max_peers_per_user} may take part in a round"

    def surplus(self, tokens: Mapping[PeerID, bytes]) -> list[PeerID]:
        """Return who of a group has no place in it, because others of the same user were there before."""
        if self.max_peers_per_user is None:
            return []
        trust, users, without = self.of_group({str(peer): token for peer, token in tokens.items()}), Counter(), []
        for peer in tokens:
            user = trust.user_of(str(peer))
            users[user] += 1
            if users[user] > self.max_peers_per_user:
                without.append(peer)
        return without

    def may_reduce(self, peer_id: str) -> bool:
        """Return whether a peer that may take part may also reduce."""
        if self.reducers == "members":
            return self._token_of(peer_id) is not None
        return self.reducers == "all" or self.is_vouched(peer_id)

    def is_vouched(self, peer_id: str) -> bool:
        """Return whether the run's authority vouches for a peer that may take part."""
        token = self._token_of(peer_id)
        return token is not None and token.role is Role.VOUCHED

    def is_heard(self, peer_id: str) -> bool:
        """Return whether it counts what a peer has measured that others can upload."""
        return self.measures and self.is_vouched(peer_id)


def owner_key(public_key: bytes) -> bytes:
    """Return the mark by which hivemind recognises what the owner of a public key (DER) stores in the hash table."""
    key = RSAPublicKey(serialization.load_der_public_key(public_key))
    return RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", key.to_bytes())
