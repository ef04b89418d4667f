"""A peer stays a member while it runs: it renews its access token, follows bans, and leaves when it is to."""

import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from auth_peers import identity_file
from served_authority import ADA, ServedAuthority
from test_hub_authorizer import ban

from dalle_lib.auth import HubAuthorizer, NoLongerAdmitted, Role, Upkeep, upkeep
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server.database import Database
from dalle_lib.swarm.peer.keeping import keeping_member
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.process.events import EVENTS, EventLog, read_events
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.join import NotAMember

PEER = PeerKey.load_or_create(identity_file("key of ada"))


@pytest.fixture
def authority(tmp_path, hub, mini):
    served = ServedAuthority(tmp_path / "authority", hub, mini, bans_every_s=5)
    yield served
    served.stop()


@pytest.fixture
def peer(authority, tmp_path) -> HubAuthorizer:
    (tmp_path / "peer").mkdir()
    proved = HubAuthorizer(authority.card, PEER, tmp_path / "peer", "ada's peer")
    proved.prove_by_token(ADA)
    return proved


def hold(peer: HubAuthorizer, authority: ServedAuthority, seconds: float) -> None:
    """Let a peer hold an access token that counts for so many seconds more."""
    token = authority.root.issue("Ada", Role.MEMBER, "club", PEER.public_key, timedelta(seconds=seconds))
    peer.held.file.write_bytes(token.to_bytes())


def kept_by(peer: HubAuthorizer) -> Upkeep:
    return Upkeep(peer.held, peer.bans, peer)


def end_proof(authority: ServedAuthority) -> None:
    database = Database(authority.place.database)
    database.change("UPDATE peers SET proof_until = 0")
    database.close()


def test_an_access_token_is_renewed_in_time_and_after_its_end_too(authority, peer):
    first, upkeep_of_ada = peer.held.now(), kept_by(peer)
    assert upkeep_of_ada.look() is None
    assert peer.held.now() == first, "it counts for an hour"
    for seconds in 0, -7200, -6 * 86_400:  # a sleep of days
        hold(peer, authority, seconds)
        assert upkeep_of_ada.look() is None
        assert peer.held.counting() is not None


def test_an_authority_that_is_away_is_told_of_and_waited_for_beyond_the_end(authority, peer, monkeypatch):
    monkeypatch.setattr(upkeep, "RETRY_S", (600.0, 600.0))  # however long the authority takes to come back
    with authority.away():
        hold(peer, authority, -60)
        upkeep_of_ada = kept_by(peer)
        assert "ended at" in (told := upkeep_of_ada.look()), told
        assert "cannot be reached" in told
        monkeypatch.setattr(upkeep, "AWAY_S", 0.0)
        with pytest.raises(NoLongerAdmitted, match=r"there is no other: .*cannot be reached.* dalle-lib join"):
            upkeep_of_ada.look()
        monkeypatch.undo()
    assert "cannot be reached" in upkeep_of_ada.look(), "it is not asked again at each look"
    upkeep_of_ada._next_try = 0.0
    assert upkeep_of_ada.look() is None
    assert peer.held.counting() is not None


def test_a_clock_that_is_off_after_a_sleep_is_told_of_and_its_setting_waited_for(authority, peer, monkeypatch):
    hold(peer, authority, -60)
    upkeep_of_ada = kept_by(peer)
    late = SimpleNamespace(time=lambda: time.time() - 3600, monotonic=time.monotonic)
    monkeypatch.setattr("dalle_lib.auth.hub_authorizer.time", late)
    assert " s behind. Set this computer's clock" in (told := upkeep_of_ada.look()), told
    monkeypatch.undo()
    upkeep_of_ada._next_try = 0.0
    assert upkeep_of_ada.look() is None
    assert peer.held.counting() is not None


def test_who_has_to_prove_again_takes_part_until_the_access_token_ends(authority, peer, monkeypatch):
    class Later(datetime):
        """An hour from now."""

        @classmethod
        def now(cls, tz):
            return datetime.now(tz) + timedelta(hours=1)

    end_proof(authority)
    hold(peer, authority, 3000)
    upkeep_of_ada = kept_by(peer)
    upkeep_of_ada.look()
    upkeep_of_ada._renew_at = 0.0
    assert "counts until" in (told := upkeep_of_ada.look()), told
    assert "proof of identity" in told
    monkeypatch.setattr(upkeep, "datetime", Later)
    with pytest.raises(NoLongerAdmitted, match=r"proof of identity.*start the peer again with dalle-lib join"):
        upkeep_of_ada.look()


def test_a_ban_and_the_end_of_the_run_end_a_peer_whose_access_token_counts(authority, peer):
    upkeep_of_ada = kept_by(peer)
    upkeep_of_ada.look()
    authority.write(state="finished", message="thank you all")
    hold(peer, authority, 0)
    with pytest.raises(NoLongerAdmitted, match="thank you all"):
        upkeep_of_ada.look()
    hold(peer, authority, 3000)
    ban(authority, "user", "ada")
    upkeep_of_ada._next_look = 0.0
    with pytest.raises(NoLongerAdmitted, match="banned"):
        upkeep_of_ada.look()


def test_where_no_server_is_the_organiser_is_asked_and_a_new_file_is_taken_at_once(authority, peer):
    hold(peer, authority, 0)
    alone = Upkeep(peer.held, peer.bans, None)
    with pytest.raises(NoLongerAdmitted, match=f"organiser for a new one, and put it in {peer.held.file}$"):
        alone.look()
    hold(peer, authority, 3000)
    assert alone.look() is None


def test_a_banned_peer_without_a_hash_table_that_answers_leaves_and_says_why(authority, peer):
    folder, stop = peer.held.file.parent, threading.Event()
    (folder / IDENTITY).write_bytes(identity_file("key of ada").read_bytes())
    keeping = keeping_member(Membership(authority.card, folder), EventLog(folder), stop)
    ban(authority, "user", "ada")
    with pytest.raises(NotAMember, match="banned"), keeping:
        assert stop.wait(60)


STUCK = """
import sys, threading, time
from dalle_lib.auth import Bans, HeldToken, Upkeep
from dalle_lib.swarm.peer import keeping
from dalle_lib.swarm.process.events import EVENTS, EventLog, read_events
from pathlib import Path

folder, peer_id, authority = Path(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3])
keeping.LEAVE_TIMEOUT_S = 0.1
upkeep = Upkeep(HeldToken(folder, peer_id, authority, "club"), Bans(folder / "bans", authority, "club"), None)
keeper = keeping._Keeper(upkeep, peer_id, EventLog(folder), threading.Event())
threading.Thread(target=keeper.keep, daemon=True).start()
time.sleep(300)
"""


def test_a_peer_that_does_not_leave_by_itself_is_ended_and_its_folder_says_why(authority, peer):
    hold(peer, authority, -1)
    folder, key = peer.held.file.parent, authority_key(authority.root.public_key)
    done = subprocess.run([sys.executable, "-c", STUCK, folder, PEER.peer_id, key.hex()], timeout=300)
    assert done.returncode == 1
    (failed,) = read_events(folder)
    assert failed["not_a_member"] is True
    assert "there is no other: ask the run's organiser" in failed["error"]


def test_a_peer_that_does_not_leave_by_itself_is_ended_though_its_folder_cannot_say_why(authority, peer):
    hold(peer, authority, -1)
    folder, key = peer.held.file.parent, authority_key(authority.root.public_key)
    (folder / EVENTS).mkdir()
    done = subprocess.run([sys.executable, "-c", STUCK, folder, PEER.peer_id, key.hex()], timeout=300)
    assert done.returncode == 1
