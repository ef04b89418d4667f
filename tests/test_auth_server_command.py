"""dalle-lib auth-server as a process: add, serve, rotate, members, over real HTTP."""

import os
import re
import subprocess
import sys
import time

import pytest
from auth_asking import Key, joined_body
from ports import free_port

from dalle_lib.auth import Authority
from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run.parts import MembersCard

COMMAND = [sys.executable, "-m", "dalle_lib", "auth-server"]


def typed(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path, mini, hub) -> str:
    root = Authority.generate()
    root.save(tmp_path / "root.pem")
    members = MembersCard(authority=root.public_key, organization="crew", client_id="app")
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "run.json").write_text(mini.with_changes(name="club", members=members).model_dump_json())
    place = str(tmp_path / "authority")
    told = typed("add", str(tmp_path / "card"), "--root", str(tmp_path / "root.pem"), "--folder", place)
    assert "serves club" in told
    return place


def test_a_run_is_added_served_and_its_keys_rotated_while_it_runs(folder, tmp_path, hub):
    hub.users["hf_ada"] = User("ada", {"crew": "read"})
    OAuth(hub)
    log, port = tmp_path / "log", free_port()
    with open(log, "wb") as written:
        server = subprocess.Popen(
            [*COMMAND, "serve", "--folder", folder, "--port", str(port)], stdout=written, stderr=written, env=os.environ
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for _ in range(1200):
                try:
                    client.get("/healthz")
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            assert client.get("/runs/club").json()["organization"] == "crew"
            told = typed("rotate", "--root", str(tmp_path / "root.pem"), "--folder", folder)
            assert "club has a new signing key" in told
            body = joined_body(Key(), "token")
            answer = client.post("/runs/club/token", json=body, headers={"Authorization": "Bearer hf_ada"})
            assert answer.status_code == 200
        assert "club: ada, a peer with a valid access token\n" in typed("members", "--folder", folder)
        assert "running already" in typed("serve", "--folder", folder, "--port", str(free_port()), code=2)
    finally:
        server.terminate()
        assert server.wait(120) in (0, -15)
    assert re.search(r"POST /runs/\{run\}/token 200", log.read_text())
    assert "hf_ada" not in log.read_text()


def test_a_folder_or_a_key_of_others_is_refused(folder, tmp_path):
    assert "nothing is there" in typed("members", "--folder", str(tmp_path / "none"), code=2)
    Authority.generate().save(tmp_path / "other.pem")
    told = typed("rotate", "--root", str(tmp_path / "other.pem"), "--folder", folder, code=2)
    assert "its card names another" in told
    assert "is not banned" in typed("unban", "nobody", "--folder", folder, code=2)
