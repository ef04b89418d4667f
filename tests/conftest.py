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
from urllib.parse import parse_qs, unquote, urlsplit

import psutil
import pytest
import torch
from hypothesis import settings

from dalle_lib.run import RunCard

DATA = Path(__file__).parent / "data"

settings.register_profile("same everywhere", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("same everywhere")

# What a shell starts in the background ignores Ctrl+C, and so would the programs that tests start and press it in.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """A folder for peers. A test that leaves a process of it behind fails, and the process is ended."""
    yield tmp_path
    left = living(processes_of(tmp_path), timeout_s=10)  # a peer that has told why it ends takes a moment
    commands = [process.info["cmdline"] for process in left]
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, f"processes outlived the test: {commands}"


@pytest.fixture(scope="session")
def mini() -> RunCard:
    return RunCard.load("emoji-mini")


class StandInHub(SimpleHTTPRequestHandler):
    """Answers the Hub's questions about the repositories whose files `server.files` holds.

    Files are named owner/name/file, and those of data sets datasets/owner/name/file. `server.private` maps owner/name
    to the Hub token that a private repository asks for; requests without it are refused in the Hub's own words.
    """

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, send: bool) -> None:
        files = self.server.files
        if (refusal := self.refusal()) is not None:
            self.reply(self.server.refusal, b"", refusal, send)
            return
        if asked := re.match(r"/api/(?:models|(datasets))/([\w-]+/[\w-]+)", self.path):
            folder = "/".join(filter(None, asked.groups())) + "/"
            siblings = [
                {"rfilename": name.removeprefix(folder), "size": len(data), "lfs": self.lfs(name)}
                for name, data in files.items()
                if name.startswith(folder)
            ]
            info = {"id": asked[2], "sha": "0" * 40, "siblings": siblings}
            body = json.dumps(self.tree(siblings) if "/tree/" in self.path else info).encode() if siblings else None
            tag = "info"
        else:
            name = re.sub(r"/resolve/\w+/", "/", self.path.removeprefix("/"))
            body, tag = files.get(name), self.lfs(name)["sha256"] if name in files else None
        if body is None:
            self.send_error(404)
            return
        part = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if part:
            body = body[int(part[1]) : int(part[2]) + 1]
        self.reply(206 if part else 200, body, {"ETag": f'"{tag}"', "X-Repo-Commit": "0" * 40}, send)

    def reply(self, status: int, body: bytes, headers: dict[str, str], send: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if send:
            self.wfile.write(body)

    def refusal(self) -> dict[str, str] | None:
        """Return why this request is refused, as headers, or None if it is not."""
        asked = re.match(r"/(?:api/models/|api/datasets/|datasets/)?([\w-]+/[\w-]+)", self.path)
        token, shown = self.server.private.get(asked and asked[1]), self.headers.get("Authorization")
        if token is None or shown == f"Bearer {token}":
            return None
        if shown is None:
            return {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."}
        return {"X-Error-Message": "Invalid credentials in Authorization header"}

    def tree(self, siblings: list[dict]) -> list[dict]:
        """Return the files and folders in the folder that the request names; all below it if it is recursive."""
        url = urlsplit(self.path)
        folder = Path(unquote(re.sub(r".*/tree/\w+/?", "", url.path)))
        files = {Path(file["rfilename"]): file["size"] for file in siblings}
        folders = {above for file in files for above in file.parents[:-1]}
        found = [{"type": "file", "path": str(path), "size": size, "oid": "0" * 40} for path, size in files.items()]
        found += [{"type": "directory", "path": str(path), "oid": "0" * 40} for path in folders]
        is_deep = parse_qs(url.query).get("recursive") == ["true"]
        return [
            entry
            for entry in found
            if (folder in Path(entry["path"]).parents if is_deep else folder == Path(entry["path"]).parent)
        ]

    def lfs(self, name: str) -> dict:
        data = self.server.files[name]
        digest = self.server.digests.get(name) or hashlib.sha256(data).hexdigest()
        return {"sha256": digest, "size": len(data), "pointerSize": 130}

    def log_message(self, *message) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    """A stand-in for the Hub on this machine, for this process and its children, none of which has a Hub token.

    `files` are its files, `private` the Hub tokens of its private repositories, `refusal` the HTTP status without such
    a token, and `digests` wrong SHA-256 digests that it gives for files.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInHub) as server:
        server.files, server.private, server.refusal, server.digests = {}, {}, 401, {}
        address = f"http://127.0.0.1:{server.server_port}"
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        environment = {
            "HF_ENDPOINT": address,
            "HF_HUB_CACHE": tmp_path / "cache",
            "HF_TOKEN_PATH": tmp_path / "no-token",
        }
        for name, value in {**environment, "NO_PROXY": "127.0.0.1"}.items():
            monkeypatch.setenv(name, str(value))
        for name in "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN":
            monkeypatch.delenv(name, raising=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Return whether two modules have the same tensors under the same names."""
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(name == other and torch.equal(tensor, copy) for (name, tensor), (other, copy) in pairs)


@pytest.fixture(params=[64, 16], ids=["long strips", "short strips"])
def strips(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of small pictures attend in one strip, or, as those of large pictures do, in several."""
    monkeypatch.setattr("dalle_lib.model.attention.STRIP", request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-try", action="store_true", help="run a failed test with real peers once more")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why the first try of each test failed that was run once more; pytest itself only names these tests."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.line(text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start real peers, which may miss each other on a busy machine."""
    for item in items:
        if "swarm_folder" in item.fixturenames or item.get_closest_marker("chaos"):
            item.add_marker("peers")
        if config.getoption("second_try") and item.get_closest_marker("peers"):
            item.add_marker(pytest.mark.flaky(reruns=1))
