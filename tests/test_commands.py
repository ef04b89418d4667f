"""What `dalle-lib` answers to mistakes: one line, at once, and exit code 2; a crash alone brings its log."""

import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from command_line import answer
from peer_files import save_progress

import dalle_lib
from dalle_lib.cli import main
from dalle_lib.cli.invitation import invitation
from dalle_lib.cli.join import Join, beginning
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import EMBEDDED
from dalle_lib.swarm import CannotJoin, Peer, PeerFailed, PeerSettings, join, join_run
from dalle_lib.swarm.process.crew import require_way_in
from dalle_lib.swarm.process.events import EventLog

PEER = "12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"


@pytest.fixture
def nothing_starts(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.process.crew.join", lambda *_: pytest.fail("a peer was started"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--run", "nosuch"], "no run 'nosuch': expected an embedded run"),
        (["--run", "."], "the folder . has no run.json"),
        (["--run", "broken"], "broken/run.json is no valid run card: Invalid JSON"),
        (["--run", "emoji-mini"], "Add --initial-peers with the address"),
        (["--run", "emoji-mini", "--initial-peers", NOBODY], "(127.0.0.1 port 1: Connection refused)"),
        (["--run", "emoji-mini", "--initial-peers", "/ip4/127.0.0.1/tcp/1"], "it lacks the peer's id"),
        (["--run", "emoji-mini", "--role", "bootstrap", "--client-mode"], "cannot be in client mode"),
        (["--run", "emoji-mini", "--name", "../ada"], "expected a name of 1 to 64 letters"),
        (["--run", "emoji-mini", "--name", ""], "expected a name of 1 to 64 letters"),
        (["--run", "emoji-mini", "--port", "70000"], "expected a port from 1 to 65535"),
        (["--run", "emoji-mini", "--device", "gpu"], 'expected a device such as "cpu"'),
        (["--run", "emoji-mini", "--role", "bootstrap", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 0"),
        (["--run", "emoji-mini", "--alone", "--host", "localhost"], "expected an IPv4 address of this machine"),
        (["--run", "ada"], "It goes on by: dalle-lib join --run emoji-mini --name 'ada b'"),
        (["--run", "no_data", "--role", "trainer", "--initial-peers", NOBODY], "not beside its card in no_data: emoji"),
        (["--run", "emoji-mini", "--alone", "--folder", "broken/run.json"], "Name another --folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_by_one_line_before_anything_starts(arguments, told, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{'name': ")
    (tmp_path / "broken" / "settings.json").write_text("{}")  # of some other program
    (tmp_path / "ada").mkdir()
    PeerSettings(run="emoji-mini", name="ada b").save(tmp_path / "ada" / "settings.json")
    (tmp_path / "no_data").mkdir()
    for name in "tokenizer.json", "emoji-mini.safetensors":
        (tmp_path / "no_data" / name).touch()
    (tmp_path / "no_data" / "run.json").write_bytes((EMBEDDED / "emoji-mini.json").read_bytes())
    if "--alone" not in arguments:  # whose mistake is found when its folder is made
        request.getfixturevalue("nothing_starts")
    monkeypatch.setattr("dalle_lib.run.files.download", lambda *_: pytest.fail("the Hub was asked"))
    is_away = "Connection refused" in told or "cannot listen" in told  # of the network, and no mistake in typing
    assert told in answer(monkeypatch, "join", *arguments, code=1 if is_away else 2)


def test_without_hivemind_it_is_said_what_to_install(monkeypatch, nothing_starts):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert 'pip install "dalle-lib[swarm]"' in answer(monkeypatch, "join", "--run", "emoji-mini", "--alone", code=1)


def test_without_a_package_it_is_said_which_part_of_the_kit_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("dalle_lib.cli.Generate.run", lambda _: CLIPRanker("clip"))
    assert 'pip install "dalle-lib[inference]"' in answer(monkeypatch, "generate", "frog", code=1)


def test_a_clip_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("dalle_lib.cli.Generate.run", lambda _: CLIPRanker(tmp_path))
    told = answer(monkeypatch, "generate", "frog")
    assert f"{tmp_path} cannot be read as a CLIP, which chooses among pictures" in told


def test_an_error_of_several_lines_is_told_in_one(monkeypatch):
    def fail(_):
        raise ValueError("expected this,\n  but that came")

    monkeypatch.setattr("dalle_lib.cli.Generate.run", fail)
    assert answer(monkeypatch, "generate", "frog") == "dalle-lib: expected this, but that came"


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dalle_lib.cli.Generate.run", interrupt)
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "generate", "frog"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "dalle-lib: stopped.\n"


def test_a_first_peer_that_is_no_peer_is_told_in_one_line_and_without_a_log(swarm_folder, monkeypatch, capsys):
    monkeypatch.chdir(swarm_folder)
    monkeypatch.setattr("dalle_lib.swarm.process.addresses.ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        mute = NOBODY.replace("tcp/1/", f"tcp/{server.getsockname()[1]}/")
        arguments = ["--host", "127.0.0.1", "--initial-peers", mute]
        told = answer(monkeypatch, "join", "--run", "emoji-mini", "--folder", str(swarm_folder), *arguments, code=1)
    assert f"none of the first peers of emoji-mini answers (127.0.0.1 port {mute.split('/')[4]}: no answer" in told
    shown = capsys.readouterr().out
    assert not any(word in shown for word in ("Traceback", "issue"))


def test_a_port_that_is_in_use_is_told(swarm_folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = PeerSettings(run="emoji-mini", role="bootstrap", host="127.0.0.1", port=port)
        with pytest.raises(CannotJoin, match=rf"listen on 127\.0\.0\.1, port {port}: Address already in use"):
            join(settings, swarm_folder).wait_for("connected")


def test_a_peer_that_cannot_write_its_events_is_told_so(swarm_folder):
    (swarm_folder / "events.jsonl").mkdir()  # as on a disk that is full, the first event cannot be written
    with pytest.raises(CannotJoin, match=r"could not write to .*events\.jsonl, and ended\. [\d,.]+ MB are free"):
        join(PeerSettings(run="emoji-mini", host="127.0.0.1"), swarm_folder)


def test_a_file_that_is_not_the_runs_is_told_without_the_log(mini, swarm_folder):
    run = mini.save(swarm_folder / "run")
    (run / mini.checkpoint.name).write_bytes(b"not those weights")
    peer = join(PeerSettings(run=str(run), host="127.0.0.1"), swarm_folder / "peer")
    with pytest.raises(CannotJoin, match=r"is not the file that run 'emoji-mini' names[^\n]*$"):
        peer.wait(timeout_s=300)


def test_a_state_that_cannot_be_used_is_told_without_the_log(mini, swarm_folder):
    save_progress(swarm_folder, mini, epoch=5)
    with pytest.raises(CannotJoin, match=r"optimizer\.safetensors cannot be read .*expected parameter[^\n]*Remove it"):
        join(PeerSettings(run="emoji-mini", host="127.0.0.1", alone=True), swarm_folder).wait(timeout_s=300)


def test_every_setting_of_a_peer_is_an_option_by_its_own_name(monkeypatch):
    given = {"run": "r", "name": "n", "initial_peers": (NOBODY, NOBODY), "alone": True, "max_minutes": 2.5}
    given |= {"device": "cpu", "role": "trainer", "host": "127.0.0.1", "port": 7, "client_mode": False, "seed": 3}
    given |= {"announce": ("/dns4/home.example/tcp/7",)}
    given |= {"team": "cats", "anonymous": True, "start_after_s": 1.5, "batch_size": 5, "threads": 2, "duty": 0.5}
    given |= {"between": ("22:00-07:00", "12:00-13:00"), "only_when_idle": True, "not_on_battery": True, "niceness": 5}
    given |= {"gpu_share": 0.5, "max_upload_mbps": 20.0, "monthly_gb": 50.0}
    settings = PeerSettings(**given)
    names = {field.name for field in fields(PeerSettings)}
    assert {*given, "state_every_s", "keeps_signed"} == names, "but a monitor's own"
    joined, checked = [], []
    monkeypatch.setattr("dalle_lib.cli.Join.run", lambda command: joined.append(command))
    monkeypatch.setattr("dalle_lib.cli.Doctor.run", lambda command: checked.append(command))
    client = replace(settings, client_mode=True, announce=())  # which cannot be both
    typed, of_client = Join(peer=settings).as_typed(), Join(peer=client).as_typed()
    for command in typed, of_client, ["dalle-lib", "doctor", *typed[2:]], ["dalle-lib", "doctor"]:
        monkeypatch.setattr(sys, "argv", command)
        main()
    assert [join.peer for join in joined] == [settings, client]
    assert [doctor.peer for doctor in checked] == [settings, PeerSettings(run="emoji-mini")]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["memory", "gpt2"]], ids=" ".join)
def test_output_that_nobody_reads_ends_a_command_silently(arguments):
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "dalle_lib", *arguments]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(theirs)
    assert (done.stderr, done.returncode) == ("", 1)


def test_the_version_and_where_to_start_are_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "--version"])
    main()
    assert capsys.readouterr().out == f"dalle-lib {dalle_lib.__version__}\n"
    for name in dalle_lib.__all__:
        assert name in dalle_lib.__doc__, "help(dalle_lib) names what users need first"


LAN, HERE = (f"/ip4/{host}/tcp/31337/p2p/{PEER}" for host in ("192.168.1.5", "127.0.0.1"))
PUBLIC = f"/ip4/93.184.216.34/tcp/31337/p2p/{PEER}"


def test_the_invitation_is_the_line_that_friends_type(mini, monkeypatch):
    settings = PeerSettings(run="emoji-mini", port=31337)

    def line(addresses) -> str:
        told = invitation(settings, mini, addresses)
        (line,) = re.findall("^Friends: (.*)$", told, re.M)
        return line

    joined = []
    monkeypatch.setattr("dalle_lib.cli.Join.run", lambda command: joined.append(command))
    for addresses, named in (([HERE, LAN, PUBLIC], (PUBLIC, LAN)), ([HERE, LAN], (LAN,)), ([HERE], (HERE,))):
        host = "127.0.0.1" if addresses == [HERE] else "0.0.0.0"
        monkeypatch.setattr(sys, "argv", shlex.split(line(addresses)))
        main()
        assert joined.pop().peer == PeerSettings(run="emoji-mini", name="your-name", initial_peers=named, host=host)


def test_the_invitation_says_who_can_use_it_and_what_they_need(mini, tmp_path):
    def told(*addresses: str, card=mini, **settings) -> str:
        return invitation(PeerSettings(**{"run": "emoji-mini", "port": 31337, **settings}), card, addresses)

    assert "this machine alone" in told(HERE)
    assert "forward TCP port 31337 of your router" in told(HERE, LAN)
    assert "forward" not in told(LAN, PUBLIC)
    assert "--port" not in told(PUBLIC)
    assert "With a --port of your choice" in told(PUBLIC, port=0)
    assert f"They need a copy of {tmp_path}" in told(PUBLIC, run=str(tmp_path))
    led = told(PUBLIC, card=mini.with_changes(initial_peers=(LAN,)))
    assert "--initial-peers" not in led, "the card leads newcomers to the run"


def test_a_peer_that_runs_is_shown_again_though_its_first_peers_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(Peer, "is_running", True)
    monkeypatch.setattr("dalle_lib.swarm.process.crew.join", lambda settings, folder, token, card: Peer(folder))
    settings = PeerSettings(run="emoji-mini", name="ada", device="cpu", initial_peers=(NOBODY,))
    assert list(join_run(settings, tmp_path).peers) == ["ada"]
    monkeypatch.setattr(Peer, "is_running", False)
    with pytest.raises(ConnectionError, match="none of the first peers of emoji-mini answers"):
        join_run(settings, tmp_path)


def test_who_has_no_address_is_told_of_a_peer_of_the_run_on_this_machine(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(Peer, "is_running", property(lambda peer: peer.folder.name == "ada"))
    ada, ben = (PeerSettings(run="emoji-mini", name=name, device="cpu") for name in ("ada", "ben"))
    (tmp_path / "ada").mkdir()
    ada.save(tmp_path / "ada" / "settings.json")
    with pytest.raises(ValueError, match="ada takes part in it on this machine, and its terminal shows its address"):
        require_way_in(ben, mini, tmp_path)
    apart, first = (replace(each, alone=True) for each in (ben, ada))
    assert "Apart:   ada takes part" in beginning(mini, apart, Peer(tmp_path / "ben"), is_old=False)
    assert "Apart:" not in beginning(mini, replace(apart, role="bootstrap"), Peer(tmp_path / "ben"), is_old=False)
    monkeypatch.setattr(Peer, "is_running", False)
    assert "Apart:" not in beginning(mini, first, Peer(tmp_path / "ada"), is_old=False)


def test_a_crash_ends_with_its_first_line_because_its_log_was_shown(tmp_path, monkeypatch):
    EventLog(tmp_path).write("failed", error="RuntimeError: it broke\nin two lines")

    def crash(_):
        Peer(str(tmp_path)).wait()

    monkeypatch.setattr("dalle_lib.cli.Join.run", crash)
    with pytest.raises(PeerFailed, match=r"(?s)in two lines.*\(no log\)"):
        crash(None)
    assert answer(monkeypatch, "join", "--run", "emoji-mini", code=1) == "dalle-lib: RuntimeError: it broke"
