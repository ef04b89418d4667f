"""What makes a peer a member of its run: a lasting identity and, where the run has members, an access token."""

from pathlib import Path

import hivemind
from hivemind.dht.validation import RecordValidatorBase

from dalle_lib.auth import (
    AccessToken,
    Identity,
    Members,
    Roster,
    TokenValidator,
    clock_offset_s,
    current_token,
    publish_token,
)
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.clocks import TOLERATED_S
from dalle_lib.auth.roster import check_token_of
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.hash_table import OwnRecords
from dalle_lib.swarm.process.folder import IDENTITY, TOKEN

PROGRESS_EXPIRES_S = 60.0
"""Seconds for which hivemind's peers publish their progress."""


def access_token(card: RunCard, folder: Path, identity: Identity) -> AccessToken:
    """Return the access token in a peer's folder, for a run with members.

    Raises ValueError if there is none, or it does not let this peer take part now.
    """
    file = folder / TOKEN
    if not file.exists():
        raise ValueError(
            f"run {card.name!r} is for members: expected an access token in {file}. Ask the run's organiser for one "
            f"that names peer {identity.peer_id}, put it there, and start again."
        )
    token = AccessToken.from_bytes(file.read_bytes())
    check_token_of(identity.peer_id, token, authority_key(card.members.authority), card.name)
    return token


class Membership:
    """A peer's identity and access token, both from files in its folder, and what follows from them."""

    def __init__(self, card: RunCard, folder: Path) -> None:
        """Read both, and make an identity where there is none.

        Raises ValueError if the run has members and the folder has no valid access token for it.
        """
        self.card, self.folder = card, folder
        self.identity = Identity.load_or_create(folder / IDENTITY)
        self.authorizer: Members | None = None
        if card.members is not None:
            token = access_token(card, folder, self.identity)
            self.authorizer = Members(self.identity, token, card.members.authority, card.name)

    @property
    def identity_file(self) -> str:
        """The file from which hivemind takes this peer's key, and so its id."""
        return str(self.folder / IDENTITY)

    def validators(self) -> list[RecordValidatorBase]:
        """Return the validators that keep false access tokens and nobody's progress out of the hash table."""
        own = OwnRecords({f"{self.card.key}_progress": PROGRESS_EXPIRES_S})
        if self.card.members is None:
            return [own]
        return [own, TokenValidator(self.card.members.authority, self.card.name, self.card.key)]

    def publish(self, dht: hivemind.DHT) -> None:
        """Publish the access token in the hash table, where other peers look it up.

        Call this again from time to time: the peers that store it come and go.
        """
        if self.authorizer is not None:
            publish_token(dht, current_token(dht), self.card.key)

    def trust(self, dht: hivemind.DHT) -> Trust:
        """Return whom this peer's averagers may average with, and by which rules."""
        if self.authorizer is None:
            return Trust.of(self.card)
        roster = Roster(self.card.members.authority, self.card.name, self.card.key, dht)
        roster.learn(self.identity.peer_id, self.authorizer.token)
        return Trust.of(self.card, roster=roster, token=self.authorizer.token.to_bytes())

    def clock_problem(self, dht: hivemind.DHT) -> str | None:
        """Return what is wrong with this computer's clock, compared with other members' clocks, or None."""
        offset_s = None if self.authorizer is None else clock_offset_s(dht)
        if offset_s is None or abs(offset_s) <= TOLERATED_S:
            return None
        direction = "ahead of" if offset_s > 0 else "behind"
        return (
            f"this computer's clock is {abs(offset_s):.0f} s {direction} the other members': set it, or they refuse "
            "this peer"
        )
