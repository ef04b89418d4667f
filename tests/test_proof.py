"""Who joins a run whose authority has a server proves who they are before a peer starts, once."""

import re
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from served_authority import ADA, BOB, ServedAuthority

from dalle_lib.amounts import moment
from dalle_lib.auth import NotAdmitted, Role
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.proof_time import proof_until
from dalle_lib.auth.tokens import TOKEN, AccessToken
from dalle_lib.swarm import NotAMember, Peer, PeerSettings
from dalle_lib.swarm.peer.main import _prepare
from dalle_lib.swarm.process.crew import start_crew
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.proof import prove_identity


@pytest.fixture
def authority(tmp_path, hub, mini):
    served = ServedAuthority(tmp_path / "authority", hub, mini)
    yield served
    served.stop()


def test_a_code_is_shown_until_it_is_approved_and_a_peer_that_comes_back_asks_nobody(authority, tmp_path, capsys):
    def approve() -> None:
        while not authority.oauth.flows:
            time.sleep(0.02)
        (flow,) = authority.oauth.flows.values()
        authority.oauth.answer(flow.user_code, authority.oauth.hub.users[ADA])

    friend = threading.Thread(target=approve)
    friend.start()
    first = prove_identity(authority.card, tmp_path / "ada")
    friend.join()
    told = capsys.readouterr().out
    assert re.search(rf"{authority.card.members.server}/join/\S+\n", told)
    assert re.search(r"peer ada and the code [0-9A-F]{4}-[0-9A-F]{4}", told)
    until = moment(proof_until(tmp_path / "ada"))
    assert f"ada takes part as Ada, a member of club. Your proof of identity counts until {until}.\n" in told
    before = re.search(r"Your approval counts until (\S+ \S+): then the peer saves and leaves", told)[1]
    assert before <= until, "the approval came a moment later"
    authority.ahead_s = 30
    with authority.oauth.hub.away():
        assert prove_identity(authority.card, tmp_path / "ada").expires > first.expires
    assert capsys.readouterr().out == ""
    with authority.away():
        prove_identity(authority.card, tmp_path / "ada")
    assert "Going on with an access token until" in capsys.readouterr().out


def test_a_peer_has_an_access_token_before_it_starts(authority, tmp_path, monkeypatch):
    held = []

    def start(settings, folder, token, card) -> Peer:
        held.append(AccessToken.from_bytes((folder / TOKEN).read_bytes()).peer_id)
        assert held[-1] == PeerKey.load(folder / IDENTITY).peer_id
        return Peer(folder)

    monkeypatch.setattr("dalle_lib.swarm.process.crew.join", start)
    settings = PeerSettings(run="club", name="ada")
    start_crew(settings, authority.card, tmp_path / "peers", proof=ADA)
    assert len(held) == 1
    with pytest.raises(NotAdmitted, match="does not name bob"):
        start_crew(PeerSettings(run="club", name="bob"), authority.card, tmp_path / "peers", proof=BOB)
    assert len(held) == 1


def command(*typed: str) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "dalle_lib", *typed]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


def test_the_command_line_ends_with_2_where_it_is_the_volunteers_turn(authority, tmp_path, monkeypatch):
    run, name = str(authority.place.path / "card"), ["--name", "ada", "--host", "127.0.0.1", "--role", "bootstrap"]
    join = ["join", "--run", run, *name, "--folder", str(tmp_path / "peers"), "--hub-token"]
    none = command(*join)
    assert (none.returncode, "there is none: log in" in none.stderr) == (2, True), none.stderr
    monkeypatch.setenv("HF_TOKEN", BOB)
    refused = command(*join)
    assert refused.returncode == 2, refused.stderr
    assert "https://huggingface.co/crew" in refused.stderr
    assert BOB not in refused.stdout + refused.stderr
    with authority.away():
        away = command(*join)
    assert (away.returncode, "cannot be reached" in away.stderr) == (1, True), away.stderr
    told = command("id", "--folder", str(tmp_path / "peers"))
    assert told.returncode == 0, told.stderr
    assert f"id:         {PeerKey.load(tmp_path / 'peers' / 'club' / 'ada' / IDENTITY).peer_id}\n" in told.stdout
    assert command("id", "--folder", str(tmp_path / "none")).returncode == 2


def test_a_peer_whose_access_token_does_not_count_makes_its_program_end_with_2(authority, tmp_path):
    folder = tmp_path / "ada"
    key = PeerKey.load_or_create(folder / IDENTITY)
    token = authority.root.issue("ada", Role.MEMBER, "club", key.public_key, timedelta(seconds=-5))
    (folder / TOKEN).write_bytes(token.to_bytes())
    with pytest.raises(
        NotAMember, match=r"ended at .* proof of identity, .* start the peer again with dalle-lib join"
    ) as refused:
        _prepare(folder, PeerSettings(run=str(authority.place.path / "card"), role="bootstrap"), None, EventLog(folder))
    assert isinstance(refused.value, ValueError)  # the command line's code 2
    EventLog(folder).write("failed", error="no", cannot_join=True, not_a_member=True)
    with pytest.raises(NotAMember):
        Peer(folder).wait(timeout_s=5)
