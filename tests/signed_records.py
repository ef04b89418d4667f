"""Records as peers sign them, and recordings of these, without a hash table: for tests of what is read of them."""

import gzip
import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from auth_peers import identity
from hivemind.dht import DHTID
from hivemind.dht.validation import CompositeValidator, DHTRecord
from statuses import peer_status

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.recording import ENDING, RECORDINGS, Recorder
from dalle_lib.run import RunCard
from dalle_lib.swarm import wire
from dalle_lib.swarm.peer.metrics import EXPIRES_S, MetricsBoard
from dalle_lib.swarm.process.signed import SignedLook, SignedRecord

BEGAN, EVERY_S, EPOCH_S = 1_790_000_000.0, 20.0, 60.0
NAMES = ("ada", "bob", "cleo")


def told_at(name: str, at: float, **told) -> dict:
    """Return what a peer tells that joined at BEGAN and has computed since, like all others."""
    second = max(0.0, at - BEGAN)
    epoch = int(second // EPOCH_S)
    usual = {
        "epoch": epoch,
        "samples": int(3 * second),
        "compute_s": second,
        "counted": 3.0 * second,
        "started_at": BEGAN,
    }
    status = peer_status(identity(name).peer_id, name, **usual | {"loss": max(0.1, 5.0 - 0.1 * epoch)} | told)
    return {**asdict(status), "is_leaving": False, "reported_at": int(at)}


def signed(key: str, name: str, at: float, **told) -> SignedRecord:
    """Return the record that a peer of that name signs at a time for the run of a card's key."""
    return of_bytes(key, name, at, wire.dumps(told_at(name, at) | told))


def of_bytes(key: str, name: str, at: float, packed: bytes) -> SignedRecord:
    """Return the record of any bytes that a peer of that name signs at a time."""
    own = MetricsBoard(key, identity(name).private_key)
    place = DHTID.generate(source=f"{key}_peers").to_bytes()
    unsigned = DHTRecord(place, wire.dumps(own.validators[1].local_public_key), packed, at + EXPIRES_S)
    value = CompositeValidator(own.validators).sign_value(unsigned)
    return SignedRecord(place, unsigned.subkey, value, unsigned.expiration_time)


def look_at(key: str, at: float, names: Iterable[str] = NAMES, **told) -> SignedLook:
    """Return a look at these peers."""
    records = {identity(name).peer_id: signed(key, name, at, **told) for name in names}
    return SignedLook(time=at, records=records, tokens={}, not_shown=0)


def record(folder: Path, card: RunCard, looks: Sequence[SignedLook], hidden: Iterable[str] = ()) -> Path:
    """Return the file to which a monitor in `folder` records these looks."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(MonitorDatabase(folder / "monitor.sqlite")) as database:
        recorder = Recorder(folder, card, max_mb=1.0)
        for look in looks:
            recorder.note(look, set(hidden), database)
        recorder.write(database)
    return max((folder / RECORDINGS).glob(f"*{ENDING}"))


def lines_of(file: Path) -> list[dict]:
    """Return the lines of a recording."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def with_lines(file: Path, lines: Iterable[dict]) -> Path:
    """Write a recording of these lines, and return its file."""
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return file
