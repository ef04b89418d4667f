"""Cards that ask for another version, and runs that are paused or finished: each gets a clear answer."""

import json

import pytest
from command_line import answer

from dalle_lib.checks.preflight import preflight
from dalle_lib.names import is_web_address
from dalle_lib.run import MembersCard, RunCard, RunClosed
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.crew import require_way_in
from dalle_lib.version import __version__

AUTHORITY = "A" * 43 + "="


@pytest.mark.parametrize(("state", "why"), [("paused", "nobody can join it now"), ("finished", "nothing left")])
def test_nobody_joins_a_closed_run_and_the_organisers_words_say_why(mini, tmp_path, monkeypatch, state, why):
    run = str(mini.with_changes(state=state, message="back on Monday").save(tmp_path / "run"))
    card, settings = RunCard.load(run), PeerSettings(run=run, name="ada", alone=True)
    with pytest.raises(RunClosed, match=rf"{state}.*{why}.*'back on Monday'.*[Dd]rawing with its model works"):
        require_way_in(settings, card, tmp_path / "peers")
    told = answer(monkeypatch, "join", "--run", run, "--name", "ada", "--alone", "--folder", str(tmp_path / "peers"))
    assert f"is {state}" in told
    row = preflight(run, tmp_path).loc["run"]
    assert not row["ok"]
    assert row["here"] == f"emoji-mini is {state}"
    first = PeerSettings(run=run, name="first", role="bootstrap", host="127.0.0.1")
    require_way_in(first, card, tmp_path / "peers")


def test_an_open_run_takes_peers_and_its_message_hinders_nobody(mini, tmp_path):
    card = RunCard.load(mini.with_changes(message="welcome").save(tmp_path / "run"))
    settings = PeerSettings(run=str(tmp_path / "run"), name="ada", alone=True, host="127.0.0.1")
    require_way_in(settings, card, tmp_path / "peers")


@pytest.mark.parametrize("kit", [f">={__version__}", f"=={__version__}", ">=0.0.1,<99", None])
def test_a_card_that_takes_this_version_is_read(mini, tmp_path, kit):
    assert RunCard.load(mini.with_changes(kit=kit).save(tmp_path / "run")).kit == kit


@pytest.mark.parametrize("kit", [">=99", "<0.0.1"])
def test_a_card_for_other_versions_says_which_even_where_it_has_unknown_fields(mini, tmp_path, kit):
    file = mini.save(tmp_path / "run") / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "kit": kit, "surprise": 1}))
    with pytest.raises(ValueError, match=rf"takes dalle-lib {kit}, but this is version {__version__}: install one"):
        RunCard.load(file)


def test_versions_that_a_shell_would_obey_are_not_told_to_be_typed(mini, tmp_path):
    file = mini.save(tmp_path / "run") / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "kit": "===`reboot`"}))
    with pytest.raises(ValueError, match="kit: expected versions of the kit") as refused:
        RunCard.load(file)
    assert "pip install" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "closed"}, "state: Input should be 'open', 'paused' or 'finished', but got 'closed'"),
        ({"message": "two\nlines"}, "message: expected one line of printable characters"),
        ({"message": "x" * 501}, "at most 500 characters"),
        ({"kit": "new ones"}, "kit: expected versions of the kit as in"),
        ({"kit": "===`reboot`"}, "kit: expected versions of the kit as in"),
        ({"kit": '==="&reboot&"'}, "kit: expected versions of the kit as in"),
        ({"server": "http://run.example.org"}, "members.server: expected an address such as https"),
        ({"server": "https://user:secret@run.example.org"}, "expected an address such as https"),
        ({"invitation": "javascript:alert(1)"}, "members.invitation: expected an address"),
        ({"organization": "../crew"}, "members.organization: String should match pattern"),
        ({"client_id": "a b"}, "members.client_id: String should match pattern"),
    ],
    ids=str,
)
def test_what_a_card_cannot_tell_volunteers_is_refused(mini, change, why):
    is_own = next(iter(change)) in RunCard.model_fields
    fields = change if is_own else {"members": {"authority": AUTHORITY, **change}}
    with pytest.raises(ValueError, match="no run card can be so") as error:
        mini.with_changes(**fields)
    assert why in str(error.value)


def test_an_authority_on_this_machine_needs_no_encryption():
    for server in "http://127.0.0.1:8000", "http://localhost:8000/", "https://run.example.org":
        assert MembersCard(authority=AUTHORITY, server=server).server == server.rstrip("/")


def test_what_volunteers_are_told_makes_no_other_run(mini):
    members = {"authority": AUTHORITY}
    told = {"server": "https://run.example.org", "organization": "crew", "client_id": "x1", "invitation": "https://a.b"}
    plain = mini.with_changes(members=members)
    changed = mini.with_changes(members=members | told, state="paused", message="soon", kit=">=0.1")
    assert changed.fingerprint == plain.fingerprint


def test_a_web_address_is_encrypted_or_of_this_machine_and_holds_no_password():
    for good in "https://run.example.org", "http://127.0.0.1:8000/x?y=1", "http://[::1]/", "http://localhost":
        assert is_web_address(good)
    bad = ["http://run.example.org", "https://u:p@x.y", "javascript://localhost/x", "ftp://localhost", "https://a b"]
    bad += ["https://hugg\u0456ngface.co", "https://a.b%2ec.d", "https://a.b\\.c.d", "https://a.b/<svg/onload=x>"]
    for other in [*bad, "https://x\n", "https://x\u200b.y", "https://", "https://x:0", "https://x:99999", ""]:
        assert not is_web_address(other), other
