"""The files in deploy/ and the lines of docs/organiser.md: commands that exist, no secrets, a Space that starts."""

import base64
import configparser
import fnmatch
import inspect
import io
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import tyro
import yaml
from checkout import ROOT
from ports import free_port

from dalle_lib.auth import Authority, create_app
from dalle_lib.auth.server import Folder, RunSettings, ServerSettings
from dalle_lib.checks.organiser import AUTHORITY, FIRST_PEER, PEERS
from dalle_lib.cli import COMMANDS, _commands, main
from dalle_lib.hub_http import httpx
from dalle_lib.monitor.evaluating import CLOSE_S
from dalle_lib.monitor.uploading import Uploader
from dalle_lib.organizing.keys import MONITOR
from dalle_lib.run.parts import MembersCard
from dalle_lib.swarm.process.join import STOP_TIMEOUT_S

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ENVIRONMENT = dict(line.split("=", 1) for line in (DEPLOY / "example.env").read_text().splitlines() if line[0] != "#")
MAIN = re.compile(r"(?:^|\s|/)dalle-lib (?=[a-z]|--)")


def filled(text: str) -> str:
    """Return a line with the values of example.env in the place of its variables."""
    return re.sub(r"\$\{?(\w+)(?::[?-][^}]*)?\}?", lambda found: ENVIRONMENT.get(found[1], "7"), text)


def in_a_line(command: str | list[str]) -> str:
    return command if isinstance(command, str) else shlex.join(command)


def of_document(file: Path) -> list[str]:
    """Return the commands of dalle-lib in a document's blocks of code, and those with arguments in its backticks."""
    text = file.read_text()
    blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S)).replace("\\\n", " ")
    spoken = re.findall(
        r"`(dalle-lib [a-z][^` ]* [^` ]+ [^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    )
    lines = [re.sub(r"docker compose run .* first-peer ", "dalle-lib ", line) for line in blocks.splitlines()]
    return [line.strip() for line in (*lines, *spoken) if MAIN.search(line)]


def all_lines() -> dict[str, list[str]]:
    composed = {
        f"compose.yaml {name}": [f"dalle-lib {filled(in_a_line(service['command']))}"]
        for name, service in COMPOSE["services"].items()
        if "command" in service
    }
    units = {unit.name: [filled(parsed(unit)["Service"]["ExecStart"])] for unit in UNITS}
    script = [line for line in (DEPLOY / "space/start.sh").read_text().splitlines() if MAIN.search(line)]
    documents = {file.name: of_document(file) for file in (ROOT / "docs/organiser.md", DEPLOY / "space/README.md")}
    return {
        **composed,
        **units,
        "start.sh": [filled(re.sub("; done|for .* do ", "", line)) for line in script],
        **documents,
    }


def parsed(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters="=", strict=False)
    parser.optionxform = str
    parser.read(unit)
    return parser


@pytest.mark.parametrize("options", ["", "--refresh-card"])
def test_options_of_the_first_peer_reach_its_command_line(monkeypatch, options):
    monkeypatch.setitem(ENVIRONMENT, "OPTIONS", options)
    for where, told in all_lines().items():
        if "first-peer" in where:
            words = shlex.split(MAIN.split(told[0], maxsplit=1)[1])
            taken = tyro.cli(_commands(words), args=words, prog="dalle-lib")
            assert taken.refresh_card == bool(options)


@pytest.mark.parametrize(("where", "lines"), all_lines().items())
def test_every_command_is_one_that_dalle_lib_takes(where, lines):
    assert lines
    for line in lines:
        words = shlex.split(MAIN.split(line, maxsplit=1)[1].split(" | ")[0].split(" > ")[0])
        taken = tyro.cli(_commands(words), args=words, prog="dalle-lib")  # it ends the test by SystemExit for others
        assert isinstance(taken, COMMANDS[words[0]]), line


def test_what_stops_a_monitor_waits_until_it_has_sent_what_is_left():
    longest_s = STOP_TIMEOUT_S + 2 * CLOSE_S + inspect.signature(Uploader.close).parameters["timeout_s"].default
    unit = parsed(DEPLOY / "systemd/dalle-lib-monitor.service")["Service"]
    assert int(unit["TimeoutStopSec"]) >= longest_s
    assert COMPOSE["services"]["monitor"]["stop_grace_period"] == f"{unit['TimeoutStopSec']}s"


def test_the_plans_of_the_evening_can_be_made(monkeypatch, capsys):
    plans = [line for line in of_document(ROOT / "docs/organiser.md") if line.startswith("dalle-lib run plan my-run ")]
    assert plans
    for line in plans:
        monkeypatch.setattr("sys.argv", shlex.split(line.replace("my-run", "emoji-mini")))
        main()
        assert "epoch" in capsys.readouterr().out


def test_the_proxy_passes_on_what_volunteers_ask_and_keeps_the_metrics(tmp_path):
    Folder(tmp_path).save(ServerSettings())
    served = {re.sub("{.*?}", "x", route.path) for route in create_app(tmp_path).routes}
    passed = re.search(r"@outside path (.*)", (DEPLOY / "Caddyfile").read_text())[1].split()
    outside = {path for path in served if any(fnmatch.fnmatch(path, pattern) for pattern in passed)}
    assert served - outside == {"/metrics"}


def test_what_compose_starts_has_limits_and_no_secret_but_in_folders():
    for service in COMPOSE["services"].values():
        assert service["mem_limit"]
        assert service["restart"] == "unless-stopped"
        told = service["environment"]  # no Hub token itself
        assert set(told) <= {"HF_TOKEN_PATH", "HF_HOME", "DOMAIN", "AUTHORITY"}
    for variable in set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text())):
        assert variable in ENVIRONMENT
    services = COMPOSE["services"]
    assert services["authority"]["volumes"][0].endswith(f"/{AUTHORITY}:/authority")
    assert services["first-peer"]["volumes"] == [f"${{KEYS}}/{PEERS}:/peers"]
    assert FIRST_PEER in services["first-peer"]["command"].split()
    assert services["monitor"]["volumes"] == [f"${{KEYS}}/{MONITOR}:/{MONITOR}"]
    assert "ports" not in services["authority"]  # it is reached through the proxy alone


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_run_as_users_of_their_own_that_may_change_nothing_else(unit):
    service = parsed(unit)["Service"]
    users = re.findall(r"^u (\S+)", (DEPLOY / "systemd/dalle-lib.conf").read_text(), re.M)
    assert service["User"] in users
    assert [parsed(other)["Service"]["User"] for other in UNITS].count(service["User"]) == 1
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "UMask": "0077"}
    assert {name: service[name] for name in expected} == expected
    assert service["Restart"] == "always"
    assert f"/var/lib/{service['StateDirectory']}" in service["ExecStart"]


def test_the_installer_names_each_file_of_the_systemd_way():
    told = (DEPLOY / "systemd/install.sh").read_text()
    files = [file.relative_to(DEPLOY / "systemd") for file in (DEPLOY / "systemd").rglob("*.*") if file.is_file()]
    assert [file for file in files if str(file) not in told and file.name != "install.sh"] == []
    assert f"for part in {AUTHORITY} {PEERS} {MONITOR}; do" in told


def packed(mini, folder: Path) -> str:
    """Return the secret of a Space whose authority serves the run "club"."""
    root = Authority.generate()
    card = mini.with_changes(name="club", members=MembersCard(authority=root.public_key, organization="crew"))
    (folder / "card").mkdir(parents=True)
    (folder / "card" / "run.json").write_text(card.model_dump_json())
    Folder(folder).save(ServerSettings(runs=(RunSettings(card="card"),), proxies=1))
    Folder(folder).key("club").parent.mkdir()
    root.delegate("club", timedelta(days=9)).save(Folder(folder).key("club"))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(folder, ".")
    return base64.b64encode(archive.getvalue()).decode()


def started(tmp_path: Path, port: int, **environment: str) -> subprocess.Popen:
    """Start the script of the Space with a disk in `tmp_path`."""
    command = tmp_path / "bin" / "dalle-lib"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dalle_lib "$@"\n')
    command.chmod(0o700)
    path = f"{command.parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", str(DEPLOY / "space/start.sh")],
        env=os.environ | {"PATH": path, "DISK": str(tmp_path), "PORT": str(port)} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_a_space_serves_from_its_secret_which_only_the_servers_files_keep(mini, hub, tmp_path):
    secret, port = packed(mini, tmp_path / "own"), free_port()
    server = started(tmp_path, port, AUTHORITY=secret, BANNED="mallory")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for _ in range(1200):
                assert server.poll() is None, server.stdout.read()
                try:
                    assert client.get("/runs/club").json()["organization"] == "crew"
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            assert b"mallory" in client.get("/runs/club/bans").content
        key = Folder(tmp_path / "authority").key("club")
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        own = Path(f"/proc/{server.pid}/environ")
        if own.exists():
            assert secret.encode() not in own.read_bytes()
            assert f"PORT={port}".encode() in own.read_bytes()
    finally:
        server.terminate()
        told = server.communicate(timeout=120)[0]
    assert secret[:40] not in told


def test_a_space_without_its_secret_says_what_is_missing(tmp_path):
    server = started(tmp_path, free_port(), AUTHORITY="")
    assert "secret AUTHORITY" in server.communicate(timeout=120)[0]
    assert server.returncode != 0


def test_the_port_of_the_space_is_the_one_that_its_readme_names():
    front = yaml.safe_load((DEPLOY / "space/README.md").read_text().split("---")[1])
    assert front["sdk"] == "docker"
    assert f"${{PORT:-{front['app_port']}}}" in (DEPLOY / "space/start.sh").read_text()
    assert f"EXPOSE {front['app_port']}" in (DEPLOY / "space/Dockerfile").read_text()
