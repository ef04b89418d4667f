"""A peer proves who its user is to the real server over HTTP, renews, follows bans, and tells why it cannot."""

import contextlib
import logging
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from auth_peers import identity_file
from hivemind.p2p import PeerID
from served_authority import ADA, BOB, ServedAuthority

from dalle_lib.auth import AuthorityAway, DeviceCode, HubAuthorizer, Identity, NotAdmitted
from dalle_lib.auth.bans import BANS
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.proof_time import PROOF, proof_until
from dalle_lib.auth.server.database import Database
from dalle_lib.run.parts import MembersCard

PEER = PeerKey.load_or_create(identity_file("key of ada"))


@pytest.fixture
def authority(tmp_path, hub, mini):
    served = ServedAuthority(tmp_path / "authority", hub, mini)
    yield served
    served.stop()


@pytest.fixture
def peer(authority, tmp_path) -> HubAuthorizer:
    (tmp_path / "peer").mkdir()
    return HubAuthorizer(authority.card, PEER, tmp_path / "peer", "ada's peer")


def ban(authority: ServedAuthority, kind: str, name: str) -> None:
    database = Database(authority.place.database)
    database.insert("bans", kind=kind, name=name, since=time.time(), reason="")
    database.close()


def test_a_code_that_the_user_approves_gives_an_access_token_which_is_kept_for_its_owner(authority, peer):
    shown = []

    def approve(code: DeviceCode) -> None:
        shown.append(code)
        authority.oauth.answer(code.code, authority.oauth.hub.users[ADA])

    token = peer.prove_by_code(approve)
    assert (token.user, token.peer_id) == ("Ada", PEER.peer_id)
    assert peer.kept() == token
    assert peer.held.file.stat().st_mode & 0o777 == 0o600
    assert shown[0].page.startswith(f"{authority.card.members.server}/join/")
    assert authority.oauth.hub.url in shown[0].link


def test_who_says_no_at_the_hub_is_told_what_to_do(authority, peer):
    with pytest.raises(NotAdmitted, match=r"refused it on the Hub's page\. Begin again") as refused:
        peer.prove_by_code(lambda code: authority.oauth.answer(code.code, None))
    assert refused.value.code == "denied"
    assert peer.kept() is None


def test_a_hub_token_proves_too_and_is_told_to_nobody_else(authority, peer, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    assert peer.prove_by_token(ADA).user == "Ada"
    with pytest.raises(NotAdmitted, match=r"https://huggingface\.co/crew") as refused:
        peer.prove_by_token(BOB)
    with pytest.raises(NotAdmitted, match="copy it again") as unusual:
        peer.prove_by_token("hf_ada secret")
    told = [str(refused.value), str(unusual.value), repr(refused.value), repr(peer), str(vars(peer))]
    written = "".join(file.read_bytes().decode("latin-1") for file in peer.held.file.parent.iterdir())
    everything = "\n".join([*told, caplog.text, written, *capfd.readouterr()])
    assert [secret for secret in (ADA, BOB, "ada secret") if secret in everything] == []


def test_renewals_need_neither_user_nor_hub_and_an_authority_that_is_away_leaves_the_old_one(authority, peer):
    first = peer.prove_by_token(ADA)
    authority.ahead_s = 30
    with authority.oauth.hub.away():
        second = peer.renew()
    assert second.expires > first.expires
    with authority.away():
        with pytest.raises(AuthorityAway, match="cannot be reached"):
            peer.renew()
        assert peer.kept() == second
    assert peer.renew().peer_id == PEER.peer_id
    authority.ahead_s = 90
    with pytest.raises(NotAdmitted, match="clock") as refused:
        peer.renew()
    assert refused.value.code == "clock_off"


def test_the_folder_tells_until_when_a_proof_counts_unless_an_older_authority_does_not(authority, peer, monkeypatch):
    def without_the_time(*asked, **options) -> tuple[int, dict]:
        status, told = ask(*asked, **options)
        told.pop("proof_until", None)
        return status, told

    folder, shown, began = peer.held.file.parent, [], int(time.time())
    assert proof_until(folder) is None
    peer.prove_by_token(ADA)
    proved = proof_until(folder)
    assert began <= proved - 168 * 3600 <= time.time()
    peer.renew()
    assert proof_until(folder) == proved
    ask = peer._post
    monkeypatch.setattr(peer, "_post", without_the_time)

    def approve(code: DeviceCode) -> None:
        shown.append(code)
        authority.oauth.answer(code.code, authority.oauth.hub.users[ADA])

    assert peer.prove_by_code(approve) == peer.kept()
    assert (shown[0].proof_until, proof_until(folder)) == (None, None)


def test_a_broken_time_in_the_folder_is_none(tmp_path):
    for broken in b"", b"soon", b"9" * 30, b"-1", b"\xff", b"9" * 5000:
        (tmp_path / PROOF).write_bytes(broken)
        assert proof_until(tmp_path) is None


def test_a_ban_reaches_the_folder_of_the_peer_and_counts_there(authority, peer):
    peer.look_at_bans()
    first = peer.held.file.with_name(BANS).read_bytes()
    peer.look_at_bans()
    token = peer.prove_by_token(ADA)
    ban(authority, "user", "ada")
    peer.look_at_bans()
    assert peer.held.file.with_name(BANS).read_bytes() != first
    assert peer.bans.names(token)
    assert peer.kept() is None
    with pytest.raises(NotAdmitted, match="banned"):
        peer.prove_by_token(ADA)


def test_a_ban_list_that_is_lost_meanwhile_is_fetched_again(authority, peer):
    token = peer.prove_by_token(ADA)
    ban(authority, "user", "ada")
    peer.look_at_bans()
    peer.held.file.with_name(BANS).write_bytes(b"")
    peer.look_at_bans()
    assert peer.bans.names(token)


def test_a_paused_run_renews_and_a_finished_one_does_not(authority, peer):
    peer.prove_by_token(ADA)
    authority.write(state="paused", message="back at noon")
    peer.renew()
    with pytest.raises(NotAdmitted, match="back at noon"):
        peer.prove_by_token(ADA)
    authority.write(state="finished")
    with pytest.raises(NotAdmitted, match="finished"):
        peer.renew()


class Liar(socketserver.BaseRequestHandler):
    answer = b""

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(self.answer)


LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 2_000_000
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


def with_body(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (LONG, "without end|cannot be reached"),
        (MOVED, "has moved"),
        (b"nonsense", "cannot be reached"),
        (with_body(200, b"[" * 50_000), "cannot be read"),
        (with_body(200, b'{"access_token": 7}'), "access_token"),
        (with_body(403, b"<html>"), "without a reason"),
        (with_body(503, b'{"error": "busy", "message": "a\\u001b[2Jb", "remedy": "c"}'), r"says: a\\x1b\[2Jb c"),
    ],
)
def test_what_is_no_answer_of_an_authority_is_an_authority_that_is_away(answer, told, authority, tmp_path):
    with (
        in_place_of(authority, type("Other", (Liar,), {"answer": answer}), tmp_path) as lied_to,
        pytest.raises(AuthorityAway, match=told),
    ):
        lied_to.prove_by_token(ADA)


class Slow(Liar):
    """Sends the headers of its answer a letter at a time, without an end."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                self.request.sendall(b"x")
                time.sleep(0.1)


def test_headers_that_come_a_letter_at_a_time_hold_a_peer_no_longer_than_others(authority, tmp_path, monkeypatch):
    monkeypatch.setattr("dalle_lib.auth.hub_authorizer.TIMEOUT_S", 1.0)
    with in_place_of(authority, Slow, tmp_path) as held_up, pytest.raises(AuthorityAway, match="cannot be reached"):
        held_up.look_at_bans()


@contextlib.contextmanager
def in_place_of(authority: ServedAuthority, handler: type, folder: Path) -> Iterator[HubAuthorizer]:
    """Serve something else in the authority's place, for the peer that this yields."""
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        members = MembersCard(authority=authority.root.public_key, server=address)
        try:
            yield HubAuthorizer(authority.card.with_changes(members=members), PEER, folder)
        finally:
            server.shutdown()
            thread.join()


def test_a_key_that_is_made_before_the_peer_starts_is_the_one_that_hivemind_reads(tmp_path):
    key = PeerKey.load_or_create(tmp_path / "identity")
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o600
    theirs = Identity.load_or_create(tmp_path / "identity")
    assert (theirs.peer_id, theirs.public_key) == (key.peer_id, key.public_key)
    assert str(PeerID.from_identity((tmp_path / "identity").read_bytes())) == key.peer_id
    assert theirs.private_key.get_public_key().verify(b"words", key.sign(b"words").encode())
    (tmp_path / "identity").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="Move it away"):
        PeerKey.load_or_create(tmp_path / "identity")
