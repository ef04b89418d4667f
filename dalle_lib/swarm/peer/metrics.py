"""What peers tell each other about themselves, signed, in the swarm's hash table."""

import time
from dataclasses import asdict, dataclass

import hivemind
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from pydantic.v1 import BaseModel, StrictBool, StrictFloat, StrictInt, confloat, conint, constr

EXPIRES_S = 60.0
_KEY = "peers"


class _PeerRecord(BaseModel):
    peer_id: constr(strict=True, max_length=128)
    name: constr(strict=True, max_length=64)
    epoch: conint(strict=True, ge=0)
    samples: conint(strict=True, ge=0)
    samples_per_s: confloat(strict=True, ge=0)
    loss: StrictFloat | None
    is_leaving: StrictBool
    reported_at: StrictInt


class _Schema(BaseModel):
    peers: dict[BytesWithPublicKey, _PeerRecord]


@dataclass(frozen=True, kw_only=True)
class PeerMetrics:
    """One peer's own account of itself. It is signed, so nobody else can write it; nothing checks that it is true."""

    peer_id: str
    name: str
    epoch: int
    samples: int
    """Samples computed since it joined."""
    samples_per_s: float
    loss: float | None
    """Mean loss of its last epoch; None before the first."""
    is_leaving: bool = False
    reported_at: int = 0
    """Seconds since 1970, by its own clock."""


class MetricsBoard:
    """The place in the hash table where the peers of one run post their metrics."""

    def __init__(self, key: str, private_key: RSAPrivateKey | None = None) -> None:
        self._key = f"{key}_{_KEY}"
        signatures = RSASignatureValidator(private_key)
        self._subkey = signatures.local_public_key
        self.validators = [SchemaValidator(_Schema, prefix=key), signatures]
        """Give these to the DHT; unsigned or ill-formed records are refused."""

    def post(self, dht: hivemind.DHT, metrics: PeerMetrics) -> None:
        """Publish this peer's metrics without waiting; they expire after EXPIRES_S."""
        record = {**asdict(metrics), "reported_at": int(time.time())}
        expiration = get_dht_time() + EXPIRES_S
        dht.store(self._key, record, expiration_time=expiration, subkey=self._subkey, return_future=True)

    def read(self, dht: hivemind.DHT) -> list[PeerMetrics]:
        """Return the last metrics of each peer that is there."""
        found = dht.get(self._key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return []
        records = [PeerMetrics(**entry.value) for entry in found.value.values()]
        return sorted((r for r in records if not r.is_leaving), key=lambda r: (r.name, r.peer_id))
