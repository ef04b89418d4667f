"""What an organiser does with a run on the Hub: publish, change, list, invite; tokens from a list without a server."""

import base64
import json
import re
import shlex
import subprocess
import sys
from datetime import timedelta

import nbformat
import pytest
from checkout import NOTEBOOKS
from filelock import FileLock
from huggingface_hub import HfApi

from dalle_lib.auth import Authority, Role
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server.runs import Runs
from dalle_lib.auth.server.settings import Folder
from dalle_lib.organizing.editing import edit_run
from dalle_lib.organizing.inviting import Invitation
from dalle_lib.organizing.keys import make_keys
from dalle_lib.organizing.listing import MAX_PROBLEM, list_runs
from dalle_lib.organizing.options import KeySettings
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.organizing.tokens import issue_tokens, read_list
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.parts import MembersCard
from dalle_lib.swarm.process.folder import TOKEN

HF_TOKEN = "hf_madeUpForThisTest"
PEER = "/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.fixture
def run(tmp_path, mini, hub, monkeypatch):
    """The folder of a run, with a key in it that must not be sent; the organiser may write to crew."""
    hub.users[HF_TOKEN] = User("ada", {"crew": "write"})
    folder = mini.with_changes(name="icons").save(tmp_path / "icons")
    Authority.generate().save(folder / "root.pem")
    return folder


def typed(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "dalle_lib", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_published_run_is_the_one_in_the_folder_with_a_page_and_without_keys(run, hub):
    assert publish_run(run, "crew/icons", HF_TOKEN) == f"{hub.url}/crew/icons"
    files = set(HfApi(token=HF_TOKEN).list_repo_files("crew/icons"))
    assert {"run.json", "README.md", "notebook.ipynb", "tokenizer.json", "vqgan.safetensors"} <= files
    data = RunCard.load(run).data.train
    assert any(name.startswith(f"{data}/") for name in files)
    assert not any(name.endswith(".pem") for name in files)
    there, here = RunCard.load("crew/icons"), RunCard.load(run)
    assert there.model_dump() == here.model_dump()
    assert there.data_source(data) != here.data_source(data)
    publish_run(run, "crew/icons", HF_TOKEN)
    uploads = list(map(str, hub.requests("PUT /_lfs")))
    assert len(uploads) == len(set(uploads)) > 2, "a large file was sent twice"


def test_the_authority_takes_the_card_of_a_published_run_from_the_hub(run, hub, tmp_path):
    keys = make_keys(RunCard.load(run), run, KeySettings(server="http://127.0.0.1:1", organization="crew"))
    publish_run(run, "crew/icons", HF_TOKEN)
    served = Runs(Folder(keys.authority))
    assert [settings.card for settings in served.settings.runs] == ["crew/icons"]
    assert keys.peer_id in served.settings.runs[0].peers


def test_another_run_or_a_changed_card_there_is_not_replaced_by_mistake(run, hub, tmp_path):
    publish_run(run, "crew/icons", HF_TOKEN)
    edit_run("crew/icons", HF_TOKEN, state="paused", message="back soon")
    with pytest.raises(ValueError, match=r"say the same of state, message, but they differ"):
        publish_run(run, "crew/icons", HF_TOKEN)
    other = RunCard.load(run).with_changes(name="others").save(tmp_path / "others")
    with pytest.raises(ValueError, match=r"no run but 'others' in crew/icons, but it holds icons-"):
        publish_run(other, "crew/icons", HF_TOKEN)
    assert RunCard.load("crew/icons").state == "paused"
    publish_run(other, "crew/icons", HF_TOKEN, anew=True)
    assert RunCard.load("crew/icons").name == "others"


@pytest.mark.parametrize(("token", "says"), [(None, "Log in with"), ("hf_reads", "may write there")])
def test_who_may_not_write_is_told_so(run, hub, token, says):
    hub.users["hf_reads"] = User("bob", {"crew": "read"}, access="read")
    with pytest.raises(PermissionError, match=says):
        publish_run(run, "crew/icons", token)
    hub.faults.append(Fault("api", status=503))
    with pytest.raises(ConnectionError, match="Nothing was changed: try again later"):
        publish_run(run, "crew/icons", HF_TOKEN)


def test_a_run_that_lacks_something_is_not_published(run, hub):
    (run / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"not beside its card.*tokenizer\.json"):
        publish_run(run, "crew/icons", HF_TOKEN)
    assert not hub.log


def test_a_change_on_the_hub_is_made_on_top_of_those_of_others(run, hub):
    publish_run(run, "crew/icons", HF_TOKEN)
    hub.faults.append(Fault("POST .*/commit/", times=1, status=412))
    told = edit_run("crew/icons", HF_TOKEN, state="paused")
    assert told.state == RunCard.load("crew/icons").state == "paused"
    edit_run("crew/icons", HF_TOKEN, message="one")
    card = edit_run("crew/icons", HF_TOKEN, state="open")
    assert (card.state, card.message, card.key) == ("open", "one", RunCard.load(run).key)
    commits = len(hub.requests("POST .*/commit/"))
    edit_run("crew/icons", HF_TOKEN, state="open")
    assert len(hub.requests("POST .*/commit/")) == commits, "nothing changed, so nothing is committed"
    hub.faults.append(Fault("POST .*/commit/", status=412))
    with pytest.raises(ConnectionError, match=r"no change was made in 5 attempts: .*Somebody else has changed it"):
        edit_run("crew/icons", HF_TOKEN, state="finished")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer": {}}, "expected what may change while a run goes on"),
        ({"state": "over"}, "state: Input should be"),
        ({"message": "two\nlines"}, "one line"),
        ({"initial_peers": (PEER, "run.example.org:31337")}, "not the address of a first peer"),
        ({"server": "https://run.example.org"}, "has no members"),
        ({"name": "new"}, "they make another run"),
    ],
)
def test_what_would_make_another_run_or_no_card_changes_nothing(run, changes, says):
    before = (run / "run.json").read_bytes()
    with pytest.raises(ValueError, match=says):
        edit_run(run, **changes)
    assert (run / "run.json").read_bytes() == before
    with pytest.raises(ValueError, match="part of the kit"):
        edit_run("emoji-mini", state="paused")


def test_two_programs_that_change_a_card_here_take_turns(run, monkeypatch):
    monkeypatch.setattr("dalle_lib.organizing.editing.LOCK_S", 0.1)
    with FileLock(run / ".run.json.lock"), pytest.raises(ConnectionError, match=r"another program has been changing"):
        edit_run(run, state="paused")
    assert RunCard.load(run).state == "open"
    assert edit_run(run, state="paused").state == RunCard.load(run).state == "paused"


def test_members_fields_change_and_the_authority_stays(run):
    members = MembersCard(authority=Authority.generate().public_key, organization="crew")
    RunCard.load(run).with_changes(members=members).save(run)
    key = RunCard.load(run).key
    card = edit_run(run, server="https://run.example.org/", initial_peers=(PEER,))
    assert card.model_dump() == RunCard.load(run).model_dump()
    assert card.members == members.model_copy(update={"server": "https://run.example.org"})
    assert card.key == key


def test_notebook_01_without_a_run_lists_those_that_are_open(run, hub):
    cells = [cell.source for cell in nbformat.read(NOTEBOOKS[0], as_version=4).cells if cell.cell_type == "code"]
    (sign_in,) = (source for source in cells if "title Sign in" in source)
    with pytest.raises(RuntimeError, match=r"(?s)RUN is empty: .*No run is on the Hub today"):
        exec(sign_in, {"RUN": ""})
    publish_run(run, "crew/icons", HF_TOKEN)
    with pytest.raises(RuntimeError, match=r"crew/icons: open, a text-to-image model of 3\.6 million parameters"):
        exec(sign_in, {"RUN": ""})


def test_open_runs_come_first_and_one_that_cannot_be_read_says_why(run, hub):
    assert list_runs() == []
    assert "No run is on the Hub today" in typed("runs")
    publish_run(run, "crew/icons", HF_TOKEN)
    publish_run(run, "crew/private", HF_TOKEN, private=True)
    page = b"---\ntags:\n- dalle-lib-run\n---\n"
    hub.add("mallory/newer", {"README.md": page, "run.json": b'{"name": "x", "protocol": 99}'})
    hub.add("mallory/none", {"README.md": page})
    hub.add("mallory/huge", {"README.md": page, "run.json": b"{}" + b" " * MAX_CARD_BYTES})
    hub.add("mallory/odd", {"README.md": page, "run.json": json.dumps({f"\x1b[2J{i}": i for i in range(999)}).encode()})
    hub.add("ada/model", {"README.md": b"---\ntags:\n- other\n---\n"})
    edit_run("crew/icons", HF_TOKEN, state="paused", message="back soon")
    publish_run(run, "crew/again", HF_TOKEN)
    listed = list_runs()
    assert [one.repository for one in listed[:2]] == ["crew/again", "crew/icons"]
    problems = {one.repository: one.problem for one in listed if one.card is None}
    assert set(problems) == {"mallory/newer", "mallory/none", "mallory/huge", "mallory/odd"}
    assert "needs protocol 99" in problems["mallory/newer"]
    assert "has no run.json" in problems["mallory/none"]
    assert "at most" in problems["mallory/huge"]
    assert not hub.requests("GET /mallory/huge/resolve"), "a card of any size was fetched"
    assert all(len(problem) <= MAX_PROBLEM and problem.isprintable() for problem in problems.values())
    assert "crew/private" in {one.repository for one in list_runs(HF_TOKEN)}
    told = typed("runs")
    assert "crew/icons: paused" in told
    assert "Says:  back soon" in told
    assert "dalle-lib join --run crew/again" in told
    assert {one["repository"] for one in json.loads(typed("runs", "--json"))} == {one.repository for one in listed}


def test_the_invitation_has_all_ways_in(run, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", HF_TOKEN)
    assert "run invite crew/icons" in typed("run", "publish", str(run), "crew/icons")
    told = typed("run", "invite", "crew/icons", "--team", 'Ada\'s "owls"', "--out", str(tmp_path / "out"))
    (line,) = (line for line in told.splitlines() if line.startswith("Terminal:"))
    assert shlex.split(line)[1:] == [
        "dalle-lib", "join", "--run", "crew/icons", "--name", "YOUR-NAME", "--team", 'Ada\'s "owls"'
    ]  # fmt: skip
    assert "█" in told
    assert HF_TOKEN not in told
    notebook = nbformat.reads((tmp_path / "out" / "notebook.ipynb").read_text(), as_version=4)
    nbformat.validate(notebook)
    (settings,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    assert re.search(r'^RUN = "crew/icons"  # @param', settings.source, re.M)
    filled_in = {}
    exec(settings.source, filled_in)
    assert filled_in["TEAM"] == 'Ada\'s "owls"'
    assert f"{hub.url}/crew/icons" in Invitation.to("crew/icons", RunCard.load("crew/icons"))._repr_html_()
    assert "is here: `dalle-lib run publish` it first" in typed("run", "invite", str(run), code=2)


def test_the_commands_change_a_run(run, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", HF_TOKEN)
    publish_run(run, "crew/icons", HF_TOKEN)
    assert "icons, paused" in typed("run", "edit", "crew/icons", "--state", "paused", "--message", "back soon")
    told = json.loads(typed("run", "edit", "crew/icons", "--message", "", "--json"))
    assert (told["state"], told["message"]) == ("paused", "")
    assert "no option was given" in typed("run", "edit", "crew/icons", code=2)


@pytest.mark.parametrize(
    "line",
    ["../../ada {}", "a/b {}", "ada {} member more", "ada {} boss", "ada", "ada AAAA"]
    + [f"ada {{0}}{end}eve {{0}} vouched" for end in "\u2028\x0c\r"],
)
def test_a_line_of_the_list_that_says_something_else_gives_no_tokens(tmp_path, line):
    public = base64.b64encode(PeerKey.load_or_create(tmp_path / "identity").public_key).decode()
    (tmp_path / "list").write_text(f"bob {public}\n{line.format(public)}\n", newline="")
    with pytest.raises(ValueError, match=r'list, line 2: expected "USER PUBLIC-KEY"'):
        read_list(tmp_path / "list")


def test_a_list_that_is_no_text_is_named(tmp_path):
    (tmp_path / "list").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"list cannot be read as a list of members .*in UTF-8"):
        read_list(tmp_path / "list")


def test_tokens_from_a_list_count_for_their_peers_alone(tmp_path, mini):
    root, keys = Authority.generate(), [PeerKey.load_or_create(tmp_path / name / "identity") for name in ("ada", "bob")]
    root.save(tmp_path / "root.pem")
    card = mini.with_changes(name="club", members=MembersCard(authority=root.public_key))
    card.save(tmp_path / "run")
    public = [base64.b64encode(key.public_key).decode() for key in keys]
    (tmp_path / "list").write_text(f"# the club\u2028eve {public[0]}\n\nada {public[0]} vouched\r\nbob {public[1]}\n")
    told = typed("run", "token", str(tmp_path / "run"), "--root", str(tmp_path / "root.pem"),
                 "--names", str(tmp_path / "list"), "--out", str(tmp_path / "tokens"), "--hours", "2")  # fmt: skip
    assert re.search(r"tokens/ada-\w{8}\.access\.token: ada, vouched, until", told)
    peers = read_list(tmp_path / "list")
    assert [peer.role for peer in peers] == [Role.VOUCHED, Role.MEMBER]
    issued = issue_tokens(card, root, peers, tmp_path / "again", timedelta(hours=1))
    assert [token.user for token in issued.values()] == ["ada", "bob"]
    assert all(file.name.endswith(f".{TOKEN}") for file in issued)
    with pytest.raises(ValueError, match="its card names another"):
        issue_tokens(card, Authority.generate(), peers, tmp_path / "third", timedelta(hours=1))
    for line in "ada", "ada notAKey", f"ada {public[0]} king":
        (tmp_path / "list").write_text(f"\n{line}\n")
        with pytest.raises(ValueError, match=r"line 2: expected .USER PUBLIC-KEY"):
            read_list(tmp_path / "list")
