"""A peer remembers where others answered: few addresses, and a way in when the first peers are away."""

import json
import socket
import threading

import pytest
from test_first_peers import NOBODY, PEER

from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.addresses import peer_in
from dalle_lib.swarm.process.crew import require_way_in
from dalle_lib.swarm.process.met import MAX_MET, MAX_OF_ONE, MET, addresses_met, remember

OTHER = "QmZ6fyUGT9u8SevfWhTzAM8x7gKhgPFahFkZCq1o3FgQju"


def at(port: int, peer: str = OTHER) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def test_whoever_answered_last_comes_first_and_nobody_fills_the_list(tmp_path):
    assert addresses_met(tmp_path) == []
    remember(tmp_path, [at(1), at(2, PEER)])
    remember(tmp_path, [at(2, PEER)])
    assert addresses_met(tmp_path) == [at(2, PEER), at(1)]
    remember(tmp_path, [at(port) for port in range(10, 60)])
    assert addresses_met(tmp_path) == [at(10), at(11), at(2, PEER)]
    ids = [f"{OTHER[:-2]}{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
    remember(tmp_path, [at(7, peer) for peer in ids])
    kept = addresses_met(tmp_path)
    assert len(kept) == MAX_MET
    assert [peer_in(address) for address in kept] == ids[:MAX_MET]
    assert max(map([peer_in(address) for address in kept].count, ids)) <= MAX_OF_ONE


@pytest.mark.parametrize("broken", ["", "[1]", '["/ip4/127.0.0.1/tcp/1"]', "{", '["/ip4/1.2.3.4/tcp/1/p2p/nobody"]'])
def test_a_broken_list_counts_as_none_and_is_written_anew(tmp_path, caplog, broken):
    (tmp_path / MET).write_text(broken)
    assert addresses_met(tmp_path) == []
    assert "met.json cannot be read" in caplog.text
    remember(tmp_path, [at(1)])
    assert addresses_met(tmp_path) == [at(1)]


def test_a_peer_that_was_met_is_a_way_in_where_no_first_peer_answers(mini, tmp_path):
    settings, said = PeerSettings(run="emoji-mini", name="ada"), []
    away, unnamed = mini.with_changes(initial_peers=(NOBODY,)), mini.with_changes(initial_peers=())
    (tmp_path / "ada").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        (tmp_path / "ada" / MET).write_text(json.dumps([at(server.getsockname()[1])]))
        for card in away, unnamed:
            require_way_in(settings, card, tmp_path, say=said.append)
    assert said == ["None of the first peers of emoji-mini answers, but one does that ada has met before."] * 2
    for card in away, unnamed:
        with pytest.raises(ConnectionError, match=r"none of the first peers .* \(127\.0\.0\.1 port \d+: "):
            require_way_in(settings, card, tmp_path)


def answer(server: socket.socket) -> None:
    """Say to the next two who connect what every peer says first."""
    for _ in range(2):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"\x13/multistream/1.0.0\n")
