"""What each peer tells its group about itself before a round, signed, so that a leader can only pass it on.

The leader of a group collects what its followers tell and hands everything to everybody. Who reduces, who is behind and
who is a member follows from it, so each peer signs its own, and each checks those of all others.
"""

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

VALID_S = 600.0
"""Seconds for which an introduction counts: a round is scheduled some time before it begins."""
MAX_EPOCH = 10**9
"""A later epoch is none that a run has."""


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
    """Whether it reduces only where none of the others does, because its volunteer limits what it sends."""

    @property
    def may_lead(self) -> bool:
        """Whether others may follow it into a group: one that waits to count reduces only where nobody else can."""
        return not self.is_new if self.is_counted else self.is_reducer


def signed(told: Introduction, rounds: str, identity: Identity) -> list[bytes]:
    """Return an introduction as its peer sends it: what it tells, the public key, and the signature.

    `rounds` names what is averaged, and in which run: an introduction counts nowhere else.
    """
    message = wire.dumps([rounds, get_dht_time(), *astuple(told)])
    return [message, identity.public_key, identity.private_key.sign(message)]


def read(gathered: bytes, peer: PeerID, rounds: str) -> Introduction:
    """Return the introduction of a peer, from what hivemind gathers of it: bandwidth, mode, and what `signed` made.

    Bandwidth and mode, which nobody has signed, count for nothing. Raises ValueError if the peer has not signed the
    introduction, not for these rounds, or long ago.
    """
    message, public_key, signature = _opened(gathered)
    if peer_id_of(public_key) != str(peer):
        raise ValueError("its introduction was signed by somebody else")
    try:
        check_key(public_key)
    except Refused as refused:
        raise ValueError(str(refused)) from refused
    if not RSAPublicKey(serialization.load_der_public_key(public_key)).verify(message, signature):
        raise ValueError("its introduction was changed after it had signed it")
    return _checked(wire.loads(message), rounds)


def _opened(gathered: bytes) -> list[bytes]:
    match wire.loads(gathered):
        case [_, _, bytes() as told]:
            match wire.loads(told):
                case [bytes() as message, bytes() as public_key, bytes() as signature]:
                    return [message, public_key, signature]
    raise ValueError("its introduction is not signed, as all of the run are")


def _checked(told: Any, rounds: str) -> Introduction:
    expected = [str, float, *Introduction.__annotations__.values()]
    if not isinstance(told, list) or list(map(type, told)) != expected:
        raise ValueError("its introduction has another form than that of the run's peers")
    where, time, *fields = told
    introduction = Introduction(*fields)
    if where != rounds:
        raise ValueError(f"its introduction is for other rounds: {where!r:.80}")
    if not abs(get_dht_time() - time) <= VALID_S:  # NaN too
        raise ValueError(f"its introduction is of another time: {get_dht_time() - time:.0f} s ago")
    if not 0 <= introduction.epoch <= MAX_EPOCH:
        raise ValueError(f"its introduction names epoch {introduction.epoch!r:.40}")
    return introduction


def for_hivemind(may_reduce: bool, is_counted: bool = True) -> bytes:
    """Return what hivemind shall take for a peer's message: with a role, and no bandwidth, as all are treated alike.

    A claimed bandwidth would draw work to whoever makes it. `counted_in` reads the rest.
    """
    mode = AveragingMode.NODE if may_reduce else AveragingMode.CLIENT
    return wire.dumps([None if may_reduce else 0.0, mode.value, wire.dumps(is_counted)])


def reducers_of(told: Mapping[PeerID, Introduction]) -> set[PeerID]:
    """Return who reduces among the peers of a group that may: those that can and do not spare, or else all that can."""
    able = {peer for peer, of in told.items() if of.is_reducer}
    return {peer for peer in able if not told[peer].is_sparing} or able


def counted_in(gathered: Iterable[bytes]) -> list[bool]:
    """Return whether each peer of a group counts, from what `for_hivemind` made."""
    return [wire.loads(is_counted) for _, _, is_counted in map(wire.loads, gathered)]
