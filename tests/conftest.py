import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from dalle_lib.run import RunCard

DATA = Path(__file__).parent / "data"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the running processes whose command line names something in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def living(processes: list[psutil.Process], timeout_s: float = 30) -> list[psutil.Process]:
    """Return those of `processes` that are still alive after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (alive := [p for p in processes if _is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def swarm_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for peers; fails the test that leaves a process behind, after ending it."""
    yield tmp_path
    left = processes_of(tmp_path)
    commands = [process.info["cmdline"] for process in left]
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, f"processes outlived the test: {commands}"


@pytest.fixture(scope="session")
def mini() -> RunCard:
    return RunCard.load("emoji-mini")


class StandInHub(SimpleHTTPRequestHandler):
    """Answers the Hub's questions about the repositories whose files `server.files` holds, by owner/name/file."""

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, send: bool) -> None:
        files = self.server.files
        if asked := re.match(r"/api/models/([\w-]+/[\w-]+)", self.path):
            siblings = [
                {"rfilename": name.removeprefix(f"{asked[1]}/"), "size": len(data), "lfs": self.lfs(name)}
                for name, data in files.items()
                if name.startswith(f"{asked[1]}/")
            ]
            info = {"id": asked[1], "sha": "0" * 40, "siblings": siblings}
            tree = [{"type": "file", "path": s["rfilename"], "size": s["size"], "oid": "0" * 40} for s in siblings]
            body = json.dumps(tree if "/tree/" in self.path else info).encode() if siblings else None
            tag = "info"
        else:
            name = re.sub(r"/resolve/\w+/", "/", self.path.removeprefix("/"))
            body, tag = files.get(name), self.lfs(name)["sha256"] if name in files else None
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        headers = {"Content-Length": len(body), "ETag": f'"{tag}"', "X-Repo-Commit": "0" * 40}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if send:
            self.wfile.write(body)

    def lfs(self, name: str) -> dict:
        data = self.server.files[name]
        digest = self.server.digests.get(name) or hashlib.sha256(data).hexdigest()
        return {"sha256": digest, "size": len(data), "pointerSize": 130}

    def log_message(self, *message) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    """A stand-in for the Hub on this machine: `files` are what it holds, `digests` what it wrongly says of them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInHub) as server:
        server.files, server.digests = {}, {}
        address = f"http://127.0.0.1:{server.server_port}"
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
