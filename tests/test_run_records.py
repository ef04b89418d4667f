"""What the peers of a real run store in its hash table: each key has a rule, and each record is its writer's own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hivemind.dht import DHTID
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.validation import CompositeValidator, DHTRecord
from one_hot import give_token, start_beside
from test_swarm import short_run, trainer, wait_until

from dalle_lib.auth import Authority, Role
from dalle_lib.auth.roster import token_keys
from dalle_lib.run import RunCard
from dalle_lib.swarm import LocalSwarm, records, wire
from dalle_lib.swarm.averaging.donors import offers_key
from dalle_lib.swarm.averaging.group_keys import group_keys
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import MetricsBoard

SCRIPT = Path(__file__).parent / "recorder.py"
WEEKS_S = 30 * 24 * 3600
TOKENS = "access tokens"
"""Anybody may hand on those of others: the authority has signed them."""


def kinds_of(card: RunCard) -> dict[bytes, str]:
    """Return what lies under each key that a run uses."""
    key, gradients, parameters = card.key, f"{card.key}_grad_averager", f"{card.key}_state_averager"
    names = {f"{key}_progress": "progress", f"{key}_peers": "metrics", offers_key(parameters): "states to give"}
    names |= dict.fromkeys(group_keys(gradients), "groups for gradients")
    names |= dict.fromkeys(group_keys(parameters), "groups for parameters")
    names |= dict.fromkeys(token_keys(key), TOKENS)
    return {DHTID.generate(source=name).to_bytes(): kind for name, kind in names.items()}


def is_admitted(validator: CompositeValidator, record: DHTRecord, brought_by: str) -> bool:
    before = records.storing.set(brought_by)
    try:
        return validator.validate(record)
    finally:
        records.storing.reset(before)


def stored_in(line: list) -> Iterator[tuple[str, DHTRecord]]:
    """Yield who brought what, for each record of a line of the recorder's that was stored.

    hivemind hands a peer that it meets the records of others, too, by whole dictionaries; all but tokens are refused.
    """
    writer, key, subkey, value, expires, is_stored = line
    key, subkey, value = map(bytes.fromhex, (key, subkey, value))
    if not is_stored:
        return
    if subkey == DHTProtocol.IS_DICTIONARY:
        for name, (each, until) in wire.loads(value).items():
            yield writer, DHTRecord(key, wire.dumps(name), each, until)
    else:
        yield writer, DHTRecord(key, subkey, value, expires)


@pytest.mark.chaos
def test_each_key_of_a_run_has_a_rule_and_each_record_is_its_writers_own(mini, swarm_folder):
    authority = Authority.generate()
    card = short_run(mini, state_every=1, target_batch_size=64).with_changes(
        members={"authority": authority.public_key, "max_share": 0.7}
    )
    roles = {"bootstrap": Role.VOUCHED, "peers/ada": Role.VOUCHED, "peers/bob": Role.MEMBER, "peers/eve": Role.MEMBER}
    for name, role in {**roles, "recorder": Role.MEMBER}.items():
        (swarm_folder / name).mkdir(parents=True)
        give_token(authority, card, swarm_folder / name, name, role=role)
    swarm = LocalSwarm.start(card, swarm_folder)
    try:
        folder = swarm_folder / "recorder"
        with start_beside(SCRIPT, folder, run=swarm.run) as recorder:
            assert recorder.stdout.readline() == "ready\n"
            ada, _eve = swarm.add(trainer("ada")), swarm.add(trainer("eve", client_mode=True))
            wait_until(lambda: any(event["event"] == "averaged" for event in ada.events()))
            swarm.add(trainer("bob"))  # finds a run that goes on, and takes the state over
            swarm.wait(timeout_s=300)
            recorder.communicate("", timeout=60)
    finally:
        swarm.close()
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    kinds, seen = kinds_of(card), set()
    membership = Membership(card, folder)
    board = MetricsBoard(card.key, membership.identity.private_key)
    validator = CompositeValidator([*membership.validators(), *board.validators])
    for writer, record in (each for line in lines for each in stored_in(line)):
        kind = kinds.get(record.key)
        assert kind is not None, f"a key without a rule: {record}"
        seen.add(kind)
        assert is_admitted(validator, record, writer), record
        false = {
            "for weeks": replace(record, expiration_time=record.expiration_time + WEEKS_S),
            "changed": replace(record, value=record.value + b"x"),
            "under another key": replace(record, key=DHTID.generate(source=f"{card.key}_other").to_bytes()),
            "in place of all others": replace(record, subkey=DHTProtocol.IS_REGULAR_VALUE),
        }
        admitted = [what for what, each in false.items() if is_admitted(validator, each, writer)]
        assert not admitted, (kind, admitted)
        assert is_admitted(validator, record, "another peer") == (kind == TOKENS), kind
    assert seen == set(kinds.values())
