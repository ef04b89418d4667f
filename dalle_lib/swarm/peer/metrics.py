"""What peers tell each other about themselves, signed, in the swarm's hash table."""

import time
from collections.abc import Iterable
from dataclasses import MISSING, Field, asdict, fields, replace
from functools import partial
from types import UnionType

import hivemind
from hivemind.dht import DHTID
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import DHTRecord
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from pydantic.v1 import BaseModel, StrictBool, StrictInt, confloat, conint, constr, create_model, validator

from dalle_lib.swarm import wire
from dalle_lib.swarm.process.settings import is_name, require_team
from dalle_lib.swarm.process.status import PeerStatus
from dalle_lib.swarm.records import MAX_CLOCK_S, Rule, RunRecords, is_own, writer_of
from dalle_lib.swarm.searches import as_signed

EXPIRES_S = 60.0
COMPLETE_EXPIRES_S = 7 * 24 * 3600.0
"""Seconds for which the peers that keep the hash table remember who left with the run's last epoch."""
_EXPIRES = {False: EXPIRES_S, True: COMPLETE_EXPIRES_S}
"""Seconds for which a record may be believed, by whether its peer leaves."""
LOOK_S = 30.0
"""Seconds that a look waits for the hash table, whose searches end after searches.SEARCH_S."""
_KEY = "peers"
_LINES = "hardware", "kit", "witnessed", "trained", "held", "sketch"
_STRICT = {str: constr, int: conint, float: confloat, float | None: confloat}


def _strict(field: Field) -> type | UnionType:
    """Return the pydantic type that takes values of a field of `PeerStatus` within its limits, and converts none."""
    if field.type is bool:
        return StrictBool
    strict = _STRICT[field.type](strict=True, **field.metadata)
    return strict | None if field.type == float | None else strict


def _shown(name: str) -> str:
    """Return what terminals show as it is: no sign in it moves their cursor or hides what is there."""
    if not is_name(name):
        raise ValueError(f"expected a name as peers have, but got {name!r}.")
    return name


def _team(team: str) -> str:
    """Return the team that a peer names, or "" for none."""
    require_team(team)
    return team


def _printable(text: str) -> str:
    """Return a text that terminals show as it is, which may be empty."""
    if not text.isprintable():
        raise ValueError(f"expected a line to read, but got {text!r}.")
    return text


class _AsTold(BaseModel):
    def dict(self, **kwargs) -> dict:
        """Return the fields that were told: hivemind refuses a record to which its schema adds one."""
        return super().dict(**{**kwargs, "exclude_unset": True})


_Record = create_model(
    "_Record",
    __base__=_AsTold,
    __validators__={
        "shown": validator("peer_id", "name", allow_reuse=True)(_shown),
        "of_team": validator("team", allow_reuse=True)(_team),
        "printable": validator(*_LINES, allow_reuse=True)(_printable),
    },
    # What versions before do not tell, and refuse, has a default, which is not told.
    **{
        field.name: (_strict(field), ... if field.default is MISSING else field.default) for field in fields(PeerStatus)
    },
    is_leaving=(StrictBool, ...),
    reported_at=(StrictInt, ...),
    more=(dict, {}),
)
"""A `PeerStatus`, whether the peer is leaving, and when it said so: seconds since 1970, by its own clock. What
later versions add they put, by name, into `more`, of which each version reads what it knows: this one nothing."""


class _Schema(BaseModel):
    peers: dict[BytesWithPublicKey, _Record]


class MetricsBoard:
    """The place in the hash table where the peers of one run post their metrics."""

    def __init__(self, key: str, private_key: RSAPrivateKey | None = None) -> None:
        self._key = f"{key}_{_KEY}"
        self._signatures = RSASignatureValidator(private_key)
        self._subkey = self._signatures.local_public_key
        self._own = RunRecords({self._key: Rule(is_own, max(_EXPIRES.values()))})
        self._schema = SchemaValidator(_Schema, prefix=key)
        self.validators = [self._schema, self._signatures, self._own]
        """Give these to the hash table; it then refuses records that are unsigned, ill-formed or another's."""

    def post(
        self, dht: hivemind.DHT, status: PeerStatus, is_leaving: bool = False, expires_s: float = EXPIRES_S
    ) -> None:
        """Publish what this peer tells of itself, without waiting. It expires after `expires_s` seconds."""
        defaults = {field.name: field.default for field in fields(status)}
        told = {name: value for name, value in asdict(status).items() if value != defaults[name]}
        record = {**told, "is_leaving": is_leaving, "reported_at": int(time.time())}
        expiration = get_dht_time() + expires_s
        dht.store(self._key, record, expiration_time=expiration, subkey=self._subkey, return_future=True)

    def read(self, dht: hivemind.DHT) -> list[PeerStatus]:
        """Return what each peer that is there last told, sorted by name. Raises TimeoutError as `signed` does."""
        return self.told_by(self.signed(dht), get_dht_time(), 0)[0]

    def said_complete(self, dht: hivemind.DHT, total_epochs: int) -> bool:
        """Return whether a peer that has left said that it had the last epoch of the run. Nothing checks that."""
        return self.told_by(self.signed(dht), get_dht_time(), total_epochs)[1]

    def signed(self, dht: hivemind.DHT) -> list[DHTRecord]:
        """Return what lies on the board, each record as its peer has signed it and the hash table has checked it.

        Raises TimeoutError if this peer's own part of the hash table does not answer.
        """
        return dht.run_coroutine(partial(_signed, key=self._key), return_future=True).result(LOOK_S)

    def told_by(self, records: Iterable[DHTRecord], now: float, total_epochs: int) -> tuple[list[PeerStatus], bool]:
        """Return what `read` and `said_complete` do, of records as `signed` gives them and the hash table's time."""
        told = [found for record in records if (found := self.believed(record, now)) is not None]
        there = [record for record in told if not record["is_leaving"]]
        known = {field.name for field in fields(PeerStatus)}
        peers = [PeerStatus(**{name: told for name, told in record.items() if name in known}) for record in there]
        said_complete = any(record["is_leaving"] and record["epoch"] >= total_epochs for record in told)
        return sorted(peers, key=lambda peer: (peer.name, peer.peer_id)), said_complete

    def believed(self, record: DHTRecord, now: float) -> dict | None:
        """Return what a record that the hash table has checked tells, or None if it is not believed, or has expired.

        A peer that says it shall be believed for longer than peers do is not: it would never go away. Nor is one that
        tells of another.
        """
        told, left_s = wire.loads(self._signatures.strip_value(record)), record.expiration_time - now
        is_timely = -MAX_CLOCK_S <= left_s <= _EXPIRES[told["is_leaving"]] + MAX_CLOCK_S
        return told if is_timely and told["peer_id"] == writer_of(wire.loads(record.subkey)) else None

    def check(self, record: DHTRecord) -> None:
        """Check a record that was kept elsewhere, as the hash table does with one that comes: who signed it, and all.

        Raises ValueError, which says why, for one that the hash table of this run would not have taken.
        """
        for is_right, why in (
            (self._own.validate, "it is of another run, or of no peer"),
            (self._signatures.validate, "it is not what its peer has signed"),
            (self._is_well_formed, "it is nothing that a peer of this version tells"),
        ):
            try:
                is_refused = not is_right(record)
            except ValueError:  # hivemind raises it for signatures that are none
                is_refused = True
            if is_refused:
                raise ValueError(why)

    def _is_well_formed(self, record: DHTRecord) -> bool:
        told = wire.loads(self._signatures.strip_value(record))
        return self._schema.validate(replace(record, value=wire.dumps(told)))  # as hivemind can read it


async def _signed(_dht: hivemind.DHT, node: DHTNode, key: str) -> list[DHTRecord]:
    """Return the records under a key. Runs in the process of the hash table."""
    as_signed.set(True)  # each question to that process is a task of its own
    found, key_id = await node.get(key, latest=True), DHTID.generate(source=key).to_bytes()
    entries = found.value if found is not None and isinstance(found.value, dict) else {}
    return [DHTRecord(key_id, wire.dumps(mark), value, expires) for mark, (value, expires) in entries.items()]
