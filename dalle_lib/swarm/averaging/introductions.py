"""What each peer tells its group about itself before a round, signed, so that a leader can only pass it on.

The leader of a group collects what its followers tell and hands everything to everybody. Who reduces, who is behind and
who is a member follows from it, so each peer signs its own, and each checks those of all others.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from cryptography.hazmat.primitives import serialization
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPublicKey

from dalle_lib.auth import Identity, Refused
from dalle_lib.peer_keys import check_key, peer_id_of
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.carried import unpacked
from dalle_lib.swarm.averaging.earned import votes_of
from dalle_lib.swarm.averaging.trust import Trust

VALID_S = 600.0
"""Seconds for which an introduction counts: a round is scheduled some time before it begins."""
CLOCKS_S = 60.0
"""Seconds by which clocks of peers may differ, on top of which others believe for longer what a leader has let in: who
times its introduction to expire in between would else have honest leaders blamed, and rounds end before they begin."""
MAX_EPOCH = 10**9
"""A later epoch is none that a run has."""
MAX_BYTES = 7 * 2**10
"""A longer introduction is no peer's: with the longest access token and key it has 6 kB. A leader sends those of all in
one message, which must not be too long for who gets it, with as many followers as may have a stream open."""
MAX_APART = 1
"""Epochs by which peers may be apart that average gradients: one that is further off has other parameters."""
LATER = 2
"""Fields at the end that the first versions of introductions lack."""


@dataclass(frozen=True)
class Introduction:
    """What a peer tells its group about itself before a round."""

    epoch: int = 0
    """The epoch whose gradients the peer brings."""
    is_behind: bool = False
    """Whether its parameters lack an update that others made, so that the group should average parameters soon."""
    token: bytes = b""
    """The peer's access token, as bytes; empty in a run without members."""
    is_reducer: bool = True
    """Whether it can reduce: others can connect to it, and it brings a gradient of its own."""
    is_counted: bool = True
    """Whether its gradients and parameters count. Who joins with an older state follows others, and leads no group:
    newcomers alone would average with each other, and train on as a second run. Where all others are clients, it leads
    and reduces their round of parameters, as nobody else can."""
    is_new: bool = False
    """Whether it has met nobody for a round of gradients since it counts. It leads no group then: several who have just
    counted would find each other first, and miss the others' round."""
    is_sparing: bool = False
    """Whether it reduces only where too few others do (`shares_of`), because its volunteer limits what it sends, or it
    was too slow for the others."""
    carried: bytes = b""
    """What it has measured that others can upload, as `carried.unpacked` reads it."""

    @property
    def may_lead(self) -> bool:
        """Whether others may follow it into a group: one that waits to count reduces only where nobody else can."""
        return not self.is_new if self.is_counted else self.is_reducer


def vote(told: Mapping[PeerID, Introduction], trust: Trust) -> int:
    """Return the epoch of a group's round: the median of its users' epochs, the later of two.

    Peers that do not count have no vote, unless nobody does. Newcomers may have missed an update since they took over a
    state, so the others among them say which of the epochs next to the median it is, and no more: one that lies has no
    other honest peer to outvote it there. Where half of these others say one thing and half another, all decide.
    """
    counted = {peer: of for peer, of in told.items() if of.is_counted} or told
    known = {peer: of for peer, of in counted.items() if not of.is_new} or counted
    of_all, of_known = (
        votes_of((trust.user_of(str(peer)), of.epoch) for peer, of in some.items()).values()
        for some in (counted, known)
    )
    median = statistics.median_high(of_all)
    theirs = min(max(median, statistics.median_low(of_known)), statistics.median_high(of_known))
    return min(max(theirs, median - 1), median + 1)


def signed(told: Introduction, rounds: str, identity: Identity) -> list[bytes]:
    """Return an introduction as its peer sends it: what it tells, the public key, and the signature.

    `rounds` names what is averaged, and in which run: an introduction counts nowhere else. The last LATER fields are
    left out where nothing is told by them: peers of versions before these read it then. They refuse one that has
    them, so a peer that spares its upload does not average with those. What later versions add needs no such care:
    they put it, by name, into a dictionary at the end, of which each version reads what it knows.
    """
    fields = astuple(told) if told.is_sparing or told.carried else astuple(told)[:-LATER]
    message = wire.dumps([rounds, get_dht_time(), *fields])
    return [message, identity.public_key, identity.private_key.sign(message)]


def read(gathered: bytes, peer: PeerID, rounds: str, later_s: float = 0.0) -> Introduction:
    """Return the introduction of a peer, from what hivemind gathers of it: bandwidth, mode, and what `signed` made.

    Bandwidth and mode, which nobody has signed, count for nothing. Raises ValueError if the peer has not signed the
    introduction, not for these rounds, or longer ago than VALID_S and `later_s` seconds, or if it is beyond MAX_BYTES.
    """
    if len(gathered) > MAX_BYTES:
        raise ValueError(f"its introduction has {len(gathered):,} bytes: expected at most {MAX_BYTES:,}")
    message, public_key, signature = _opened(gathered)
    if peer_id_of(public_key) != str(peer):
        raise ValueError("its introduction was signed by somebody else")
    try:
        check_key(public_key)
    except Refused as refused:
        raise ValueError(str(refused)) from refused
    if not RSAPublicKey(serialization.load_der_public_key(public_key)).verify(message, signature):
        raise ValueError("its introduction was changed after it had signed it")
    return _checked(wire.loads(message), rounds, later_s)


def _opened(gathered: bytes) -> list[bytes]:
    match wire.loads(gathered):
        case [_, _, bytes() as told]:
            match wire.loads(told):
                case [bytes() as message, bytes() as public_key, bytes() as signature]:
                    return [message, public_key, signature]
    raise ValueError("its introduction is not signed, as all of the run are")


def _checked(told: Any, rounds: str, later_s: float) -> Introduction:
    expected = [str, float, *Introduction.__annotations__.values()]
    if isinstance(told, list) and told and isinstance(told[-1], dict):
        told = told[:-1]  # what a later version tells: this one knows none of it
    if not isinstance(told, list) or list(map(type, told)) not in (expected, expected[:-LATER]):
        raise ValueError("its introduction has another form than that of the run's peers")
    where, time, *fields = told
    introduction = Introduction(*fields)
    if where != rounds:
        raise ValueError(f"its introduction is for other rounds: {where!r:.80}")
    if not abs(get_dht_time() - time) <= VALID_S + later_s:  # NaN too
        raise ValueError(f"its introduction is of another time: {get_dht_time() - time:.0f} s ago")
    if not 0 <= introduction.epoch <= MAX_EPOCH:
        raise ValueError(f"its introduction names epoch {introduction.epoch!r:.40}")
    try:
        unpacked(introduction.carried)
    except ValueError as error:
        raise ValueError(f"its introduction tells of others' uploads in another form: {error}") from error
    return introduction


def for_hivemind(share: int, is_counted: bool = True) -> bytes:
    """Return what hivemind shall take for a peer's message: with a role, and no bandwidth.

    A claimed bandwidth would draw work to whoever makes it. `share` is what the peer reduces, relative to the others;
    `shares_and_counted` reads it.
    """
    mode = AveragingMode.NODE if share else AveragingMode.CLIENT
    return wire.dumps([None if share else 0.0, mode.value, wire.dumps([share, is_counted])])


def shares_and_counted(gathered: Iterable[bytes]) -> tuple[list[int], list[bool]]:
    """Return what each peer of a group reduces, and whether it counts, from what `for_hivemind` made."""
    shares, counted = zip(*(wire.loads(told) for _, _, told in map(wire.loads, gathered)), strict=True)
    return list(shares), list(counted)
