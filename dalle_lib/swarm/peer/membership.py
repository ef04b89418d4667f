"""What makes a peer a member of its run: a lasting identity and, where the run has members, an access token."""

import math
import shlex
from datetime import datetime
from pathlib import Path

import hivemind
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.validation import RecordValidatorBase

from dalle_lib.auth import (
    AccessToken,
    Bans,
    HeldToken,
    HubAuthorizer,
    Identity,
    Members,
    Refused,
    Roster,
    TokenValidator,
    Upkeep,
    clock_offset_s,
    publish_token,
)
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.bans import BANS
from dalle_lib.auth.clocks import TOLERATED_S
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.roster import check_token_of, token_keys
from dalle_lib.files import small_bytes
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.donors import offers_key
from dalle_lib.swarm.averaging.group_keys import group_keys
from dalle_lib.swarm.averaging.introductions import VALID_S
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.metrics import LOOK_S
from dalle_lib.swarm.process.folder import IDENTITY, TOKEN
from dalle_lib.swarm.records import Rule, RunRecords, is_an_averagers, is_checked_elsewhere, is_own

PROGRESS_EXPIRES_S = 60.0
"""Seconds for which hivemind's peers publish their progress, and that they have a state to give."""


def access_token(card: RunCard, folder: Path, identity: Identity) -> AccessToken:
    """Return the access token in a peer's folder, for a run with members.

    Raises ValueError if there is none, or it does not let this peer take part now.
    """
    file = folder / TOKEN
    remedy = (
        "Start it with dalle-lib join, which asks you to prove who you are."
        if card.members.server
        else f"Send the run's organiser what `dalle-lib id --folder {shlex.quote(str(folder))}` prints, ask for one "
        f"that names peer {identity.peer_id}, put it there, and start again."
    )
    if not file.exists():
        raise ValueError(f"run {card.name!r} is for members: expected an access token in {file}. {remedy}")
    try:
        token = AccessToken.from_bytes(small_bytes(file))
    except ValueError as error:
        raise ValueError(f"{file} holds no access token ({error}). {remedy}") from error
    try:
        check_token_of(identity.peer_id, token, authority_key(card.members.authority), card.name)
    except Refused as refused:
        raise Refused(f"{file} does not count: {refused}. {remedy}") from refused
    return token


def records_of(card: RunCard) -> RunRecords:
    """Return what admits the records of a run's progress, averagers and access tokens, and no others."""
    key, longest_s = card.key, card.averaging.search_s + VALID_S
    rules = {f"{key}_progress": Rule(is_own, PROGRESS_EXPIRES_S)}
    for averager in f"{key}_grad_averager", f"{key}_state_averager":
        rules[offers_key(averager)] = Rule(is_an_averagers, PROGRESS_EXPIRES_S)
        rules |= {group: Rule(is_an_averagers, longest_s) for group in group_keys(averager)}
    if card.members is not None:
        rules |= {shard: Rule(is_checked_elsewhere, math.inf) for shard in token_keys(key)}
    return RunRecords(rules)


class Membership:
    """A peer's identity and access token, both from files in its folder, and what follows from them."""

    def __init__(self, card: RunCard, folder: Path) -> None:
        """Read both, and make an identity where there is none.

        Raises ValueError if the run has members and the folder has no valid access token for it.
        """
        self.card, self.folder = card, folder
        self.identity = Identity.load_or_create(folder / IDENTITY)
        self.authorizer: Members | None = None
        self.upkeep: Upkeep | None = None
        """What keeps this peer a member; None in a run without members."""
        if card.members is not None:
            authority, served = authority_key(card.members.authority), card.members.server is not None
            self.bans = Bans(folder / BANS, authority, card.name)
            self.held = HeldToken(folder, self.identity.peer_id, authority, card.name)
            hub = HubAuthorizer(card, PeerKey.load(folder / IDENTITY), folder) if served else None
            self.upkeep = Upkeep(self.held, self.bans, hub)
            if served and self.held.now() is not None:
                self.renew()
            token = access_token(card, folder, self.identity)
            self.authorizer = Members(
                self.identity, token, card.members.authority, card.name, newest=self.held.now, bans=self.bans
            )

    @property
    def identity_file(self) -> str:
        """The file from which hivemind takes this peer's key, and so its id."""
        return str(self.folder / IDENTITY)

    def validators(self) -> list[RecordValidatorBase]:
        """Return the validators that keep out of the hash table what is no record of the run, or a false one."""
        own = [records_of(self.card), RSASignatureValidator(self.identity.private_key)]
        if self.card.members is None:
            return own
        return [*own, TokenValidator(self.card.members.authority, self.card.name, self.card.key)]

    def publish(self, dht: hivemind.DHT) -> None:
        """Publish the access token in the hash table, where other peers look it up.

        Call this again from time to time: the peers that store it come and go. Raises TimeoutError if the hash table
        hangs.
        """
        if self.authorizer is not None and (token := self.held.counting()) is not None:
            publish_token(dht, token, self.card.key, LOOK_S)

    @property
    def expires(self) -> datetime | None:
        """When the access token that this peer holds ends; None where it has none."""
        held = None if self.authorizer is None else self.held.now()
        return None if held is None else held.expires

    def renew(self) -> None:
        """Renew the access token if that is due, as after a long wait or download.

        Raises NoLongerAdmitted, a ValueError, if this peer can take part no longer.
        """
        if self.upkeep is not None:
            self.upkeep.look()

    def trust(self, dht: hivemind.DHT) -> Trust:
        """Return whom this peer's averagers may average with, and by which rules."""
        if self.authorizer is None:
            return Trust.of(self.card, identity=self.identity)
        roster = Roster(self.card.members.authority, self.card.name, self.card.key, dht, self.bans, self.held)
        return Trust.of(self.card, identity=self.identity, roster=roster, own=self.held)

    def clock_problem(self, dht: hivemind.DHT) -> str | None:
        """Return what is wrong with this computer's clock, compared with other members' clocks, or None.

        Raises TimeoutError if the hash table hangs.
        """
        offset_s = None if self.authorizer is None else clock_offset_s(dht, LOOK_S)
        if offset_s is None or abs(offset_s) <= TOLERATED_S:
            return None
        direction = "ahead of" if offset_s > 0 else "behind"
        return (
            f"this computer's clock is {abs(offset_s):.0f} s {direction} the other members': set it, or they refuse "
            "this peer"
        )
