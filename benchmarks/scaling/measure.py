"""Measures what the simulation takes from `dalle_lib/planning/constants.py`: bytes of records, seconds of calls."""

import dataclasses
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from statistics import median

import hivemind
import psutil
from hivemind.dht import DHTID
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import SchemaValidator
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.optim.progress_tracker import LocalTrainingProgress, TrainingProgressSchema
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Authority, Identity, Role
from dalle_lib.run import RunCard
from dalle_lib.swarm import hash_table, wire
from dalle_lib.swarm.averaging.group_keys import group_keys
from dalle_lib.swarm.averaging.introductions import Introduction, read, signed
from dalle_lib.swarm.peer.membership import records_of

PEERS, TABLES, CALLS, REPEATS = 20, 8, 100, 5
"""Peers whose records are made, and that hold a table; how often things are done at a time, and how many times."""


def measured() -> dict[str, float]:
    """Return the constants, by their names, as they are on this machine; it takes half a minute."""
    wire.install()
    card = RunCard.load("emoji-mini")
    identities = [Identity(RSAPrivateKey()) for _ in range(PEERS)]
    rounds = f"{card.key}_grad_averager"
    averager, progress = group_keys(rounds)[0], f"{card.key}_progress"
    told = [_progress(identity) for identity in identities]
    tables = {
        "averager": [_record(card, one, averager, True) for one in identities],
        "progress": [_record(card, one, progress, what) for one, what in zip(identities, told, strict=True)],
    }
    gathered = [_gathered(identity, rounds) for identity in identities]
    check = _validator(card, identities[0])
    found = _dictionary(tables["progress"])
    return {
        "AVERAGER_BYTES": _entry_bytes(tables["averager"]),
        "PROGRESS_BYTES": _entry_bytes(tables["progress"]),
        "INTRODUCTION_BYTES": len(gathered[0]) + len(PeerID.from_base58(identities[0].peer_id).to_bytes()) + 6,
        "LOOK_ENTRY_S": _seconds(lambda: [check.validate(record) for record in tables["progress"]]) / PEERS
        + _seconds(lambda: wire.loads(found)) / PEERS,
        "ANSWER_ENTRY_S": _seconds(partial(_dictionary, tables["progress"])) / PEERS,
        "CHECK_INTRODUCTION_S": _seconds(
            lambda: [
                read(of, PeerID.from_base58(one.peer_id), rounds, 60)
                for of, one in zip(gathered, identities, strict=True)
            ]
        )
        / PEERS,
        **_calls(),
    }


def _seconds(of: Callable[[], object]) -> float:
    """Return the seconds of the processor that a call takes: the median of some."""
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        of()
        took.append(time.process_time() - began)
    return median(took)


def _progress(identity: Identity) -> dict:
    peer = PeerID.from_base58(identity.peer_id).to_bytes()
    told = LocalTrainingProgress(
        peer_id=peer, epoch=1234, samples_accumulated=123, samples_per_second=0.51, time=get_dht_time(),
        client_mode=False,
    )  # fmt: skip
    return told.dict()


def _validator(card: RunCard, identity: Identity) -> CompositeValidator:
    return CompositeValidator([
        records_of(card), RSASignatureValidator(identity.private_key),
        SchemaValidator(TrainingProgressSchema, prefix=card.key),
    ])  # fmt: skip


def _record(card: RunCard, identity: Identity, key: str, value: object) -> DHTRecord:
    """Return a record as its peer signs it."""
    mark = RSASignatureValidator(identity.private_key).local_public_key
    place = DHTID.generate(source=key).to_bytes()
    unsigned = DHTRecord(place, wire.dumps(mark), wire.dumps(value), get_dht_time() + 30)
    value = RSASignatureValidator(identity.private_key).sign_value(unsigned)
    record = dataclasses.replace(unsigned, value=value)
    if not _validator(card, identity).validate(record):
        raise RuntimeError(f"expected a record that the run admits, but {key} was refused")
    return record


def _dictionary(records: list[DHTRecord]) -> bytes:
    with DictionaryDHTValue().freeze() as made:
        for record in records:
            made.store(wire.loads(record.subkey), record.value, record.expiration_time)
    return wire.dumps(made)


def _entry_bytes(records: list[DHTRecord]) -> int:
    """Return the bytes that one more peer's record makes an answer longer."""
    return round((len(_dictionary(records)) - len(_dictionary(records[:1]))) / (len(records) - 1))


def _gathered(identity: Identity, rounds: str) -> bytes:
    authority = Authority.generate()
    token = authority.issue("ada-of-the-crew", Role.MEMBER, "emoji-mini", identity.public_key, timedelta(days=1))
    told = signed(Introduction(1234, token=token.to_bytes()), rounds, identity)
    return wire.dumps([None, 0, wire.dumps(told)])


def _calls() -> dict[str, float]:
    """Return the seconds of the processor of a call, and of asking a peer in a search of the hash table.

    They are those of both sides and of their network daemons, which are processes of their own.
    """
    hash_table.install()
    tables, known = [], []
    for _ in range(TABLES):
        tables.append(hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=known))
        known = known or [str(address) for address in tables[0].get_visible_maddrs()]
    try:
        call_s = _used_by(partial(_ping, peer=tables[0].peer_id), tables[1])
        return {"CALL_S": call_s, "FIND_S": _used_by(_search, tables[1]) / (TABLES - 1)}
    finally:
        for table in tables:
            table.shutdown()


def _used_by(task: Callable, table: hivemind.DHT) -> float:
    """Return the seconds of the processor of one of the CALLS of a task: the median of some."""
    used = []
    for _ in range(REPEATS):
        before = _used_s()
        table.run_coroutine(task)
        used.append((_used_s() - before) / CALLS)
    return median(used)


async def _ping(_table, node, peer: PeerID) -> None:
    for _ in range(CALLS):
        if await node.protocol.call_ping(peer) is None:
            raise RuntimeError(f"expected an answer from {peer}, but got none")


async def _search(_table, node) -> None:
    for number in range(CALLS):
        await node.get(f"nothing lies under {number}", latest=True)


def _used_s() -> float:
    """Return the seconds of the processor that this process and its children have used."""
    everybody = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in everybody)
