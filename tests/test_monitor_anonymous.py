"""A monitor tells no name of users who want none, and still credits and judges them."""

import json
import stat

import pytest
from statuses import peer_status

from dalle_lib.monitor.anonymous import KEY, anonymised, key_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import status_of
from dalle_lib.swarm.process.evidence import witness, witnessed
from dalle_lib.swarm.process.status import SwarmStatus

BEGAN = 1_790_000_000.0
IDS = [f"Qm{number:044}" for number in range(4)]
USERS = dict(zip(IDS, ("zoe", "zoe", "bob", "cleo"), strict=True))
"""Zoe wants no name told; tags are hexadecimal, so none can hold her name by chance, as they can hold "ada"."""


def look(second: float, users: dict[str, str] = USERS) -> SwarmStatus:
    peers = [
        peer_status(
            peer, f"desk-of-{USERS[peer]}", anonymous=USERS[peer] == "zoe", started_at=BEGAN, compute_s=second,
            counted=second, witnessed=witness(3, dict.fromkeys(IDS, 9.0), peer),
        )
        for peer in IDS
    ]  # fmt: skip
    return SwarmStatus(
        time=BEGAN + second, epoch=5, total_epochs=99, samples_in_epoch=None, target_batch_size=100, peers=peers,
        users=users,
    )  # fmt: skip


def test_nothing_that_a_monitor_keeps_or_tells_names_them(mini, tmp_path):
    key, database = key_in(tmp_path), MonitorDatabase(tmp_path / "monitor.sqlite")
    for second in 10, 700:
        seen = anonymised(look(second), key)
        Observer(database).note(seen)
    told = status_of(mini, database, BEGAN + 700)
    database.back_up(tmp_path / "copy.sqlite")
    database.close()
    for kept in json.dumps(told).encode(), (tmp_path / "copy.sqlite").read_bytes():
        assert b"zoe" not in kept
        assert not any(peer.encode() in kept for peer in IDS[:2])
        assert b"bob" in kept
    tags = {row[1] for row in told["users"] if row[1].startswith("anonymous-")}
    assert len(tags) == 1, "all peers of a user are one"
    assert {peer["name"] for peer in told["peers"]} == {*tags, "desk-of-bob", "desk-of-cleo"}
    assert len({peer["id"] for peer in told["peers"]}) == 4


def test_tags_stay_and_follow_from_a_secret_of_the_folder(tmp_path):
    key = key_in(tmp_path)
    assert key_in(tmp_path) == key
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    first, again, other = anonymised(look(1), key), anonymised(look(2), key), anonymised(look(1), b"x" * 32)
    assert first.users == again.users
    assert not set(first.users.values()) & set(other.users.values()) - {"bob", "cleo"}
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(ValueError, match="expected 32 bytes in"):
        key_in(tmp_path)


def test_what_others_saw_of_them_still_counts(tmp_path):
    seen = anonymised(look(1), key_in(tmp_path))
    ids = [peer.peer_id for peer in seen.peers]
    assert set(ids[2:]) == set(IDS[2:])
    for peer in seen.peers:
        assert witnessed(peer.witnessed, ids)[1] == {other: 9.0 for other in ids if other != peer.peer_id}


def test_without_members_each_is_a_user_of_their_own(tmp_path):
    seen = anonymised(look(1, users={}), key_in(tmp_path))
    assert len({seen.user_of(peer) for peer in seen.peers}) == 4
