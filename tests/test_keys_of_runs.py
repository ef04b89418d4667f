"""The keys of a new run: where they lie, who may read them, and that card, server and first peer agree."""

import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tyro
from command_line import answer

from dalle_lib.auth import AccessToken, Authority, Role
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server import Folder
from dalle_lib.auth.server.runs import Runs
from dalle_lib.auth.tokens import TOKEN
from dalle_lib.cli.join import Join
from dalle_lib.cli.run.new import what_next
from dalle_lib.organizing.keys import make_keys
from dalle_lib.organizing.making import MadeRun
from dalle_lib.organizing.options import KeySettings
from dalle_lib.run import RunCard
from dalle_lib.swarm.process.folder import IDENTITY, crew_folder

SERVED = KeySettings(
    organization="crew", server="https://run.example.org", client_id="app", first_peer="run.example.org:31337"
)


@pytest.fixture
def run(mini, tmp_path) -> Path:
    """A run's folder, without keys."""
    return mini.with_changes(name="club").save(tmp_path / "out")


def test_card_server_and_first_peer_agree_and_nothing_secret_is_in_the_runs_folder(run):
    before = {file.name for file in run.rglob("*")}
    made = make_keys(RunCard.load(run), run, SERVED)
    card = RunCard.load(run)
    assert made.folder == run.with_name("out.keys")
    root = Authority.load(made.root)
    assert card.members.authority == root.public_key
    assert (card.members.organization, card.members.server) == ("crew", "https://run.example.org")
    key = PeerKey.load(crew_folder(made.peers, card, "first-peer") / "first-peer" / IDENTITY)
    assert card.initial_peers == (f"/dns4/run.example.org/tcp/31337/p2p/{key.peer_id}",)
    assert made.peer_id == key.peer_id
    moved = Path(shutil.copytree(made.authority, run.with_name("elsewhere")))  # the rented machine
    served = Runs(Folder(moved)).named("club")
    watches = PeerKey.load(made.monitor / "monitor" / IDENTITY).peer_id
    assert served.peers == {key.peer_id: Role.VOUCHED, watches: Role.MEMBER}
    assert card.monitors == (watches,)
    assert served.card.model_dump() == card.model_dump()
    assert Folder(moved).settings().proxies == 1
    assert {file.name for file in run.rglob("*")} == before
    for file in (made.root, made.folder, made.authority, made.authority / "keys" / "club.pem", key_file(made, card)):
        assert not file.stat().st_mode & 0o077, file
    assert str(made.root) not in (run / "run.json").read_text()


def key_file(made, card) -> Path:
    return crew_folder(made.peers, card, "first-peer") / "first-peer" / IDENTITY


def test_what_an_organiser_is_told_to_type_can_be_typed(run):
    server = "http://127.0.0.1:8131"
    made = make_keys(RunCard.load(run), run, KeySettings(server=server, first_peer="127.0.0.1:4001"))
    told = what_next(MadeRun(made.card, run, made, None))
    typed = [shlex.split(line.split(maxsplit=1)[1]) for line in told.splitlines() if "  dalle-lib " in line]
    commands = {command: [words for words in typed if words[1:3] == command.split()] for command in TYPED}
    assert {command: len(found) for command, found in commands.items()} == dict.fromkeys(TYPED, 1)
    assert commands["auth-server serve"][0][-2:] == ["--port", "8131"]
    peer = tyro.cli(Join, args=commands["join --run"][0][2:])
    assert (peer.peer.port, peer.peer.role, peer.folder) == (4001, "bootstrap", made.peers)


TYPED = ("auth-server serve", "join --run", "run publish")


def test_without_a_server_the_first_peer_has_an_access_token_by_the_root_key(run):
    made = make_keys(RunCard.load(run), run, KeySettings(members=True))
    token = AccessToken.from_bytes((key_file(made, made.card).parent / TOKEN).read_bytes())
    token.check_for(made.peer_id, authority_key(made.card.members.authority), "club", datetime.now(UTC))
    assert (token.role, made.authority, made.card.initial_peers) == (Role.VOUCHED, None, ())


def test_a_run_for_everybody_gets_a_first_peer_alone(run):
    made = make_keys(RunCard.load(run), run, KeySettings(first_peer="203.0.113.7:4001"))
    assert (made.root, made.authority, made.card.members) == (None, None, None)
    assert made.card.initial_peers[0].startswith("/ip4/203.0.113.7/tcp/4001/p2p/Qm")
    assert made.card.fingerprint == RunCard.load(run).fingerprint


def test_keys_are_never_replaced(run):
    make_keys(RunCard.load(run), run, SERVED)
    root = (run.with_name("out.keys") / "root.pem").read_bytes()
    with pytest.raises(ValueError, match="may be the only copy of a run's keys"):
        make_keys(RunCard.load(run), run, SERVED)
    run.with_name("out.keys").rename(run.with_name("safe"))
    with pytest.raises(ValueError, match="names an authority"):
        make_keys(RunCard.load(run), run, SERVED)
    assert (run.with_name("safe") / "root.pem").read_bytes() == root
    assert not run.with_name("out.keys").exists()


def test_the_first_peer_keeps_its_identity_when_the_run_gets_to_the_hub(run, hub):
    made = make_keys(RunCard.load(run), run, SERVED)
    hub.add("ada/club", {"run.json": (run / "run.json").read_bytes()})
    published = RunCard.load("ada/club")
    assert key_file(made, published) == key_file(made, made.card)
    assert crew_folder(made.peers, published, "ada") == made.peers / "ada--club"


@pytest.mark.parametrize("place", ["run.example.org", "x:70000", "1.2.3.400:5", "[::1]:5", "a b:5", ":5", "x:0"])
def test_a_place_where_no_first_peer_can_be_is_refused(place):
    with pytest.raises(ValueError, match=r"HOST:PORT|is not the address of a first peer"):
        KeySettings(first_peer=place)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"server": "http://run.example.org"}, r"server: .*https://"),
        ({"organization": "a crew"}, "organization: .*match pattern"),
        ({"client_id": "app"}, "give its address, too"),
        ({"invitation": "javascript:x"}, "invitation: "),
    ],
)
def test_options_that_cannot_be_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        KeySettings(**options)


def test_a_server_takes_the_card_on_the_hub_in_place_of_its_copy_and_keeps_the_settings(run, hub):
    made = make_keys(RunCard.load(run), run, SERVED)
    hub.add("ada/club", {"run.json": (run / "run.json").read_bytes()})
    command = [sys.executable, "-m", "dalle_lib", "auth-server", "add", "ada/club", "--folder", str(made.authority)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (served,) = Folder(made.authority).settings().runs
    assert (served.card, served.peers[made.peer_id]) == ("ada/club", Role.VOUCHED)


def test_a_wrong_option_is_told_before_anything_is_made(monkeypatch, tmp_path):
    told = answer(monkeypatch, "run", "new", str(tmp_path / "x"), "--data", str(tmp_path), "--first-peer", "nowhere")
    assert "HOST:PORT" in told
    assert not list(tmp_path.iterdir())
