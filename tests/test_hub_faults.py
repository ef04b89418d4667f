"""A Hub whose answers have no end, or come a byte at a time, is given up, and no disk is filled."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import close_session, constants, get_session

from dalle_lib import hub_http
from dalle_lib.run.files import download

PART = b"x" * 2**20


@contextmanager
def hub_that(sends, size, patch, folder, etag="b", commit="a" * 40, xet=None):
    """Serve one file of `size` bytes, whose body `sends` writes; downloads ask there, and keep it in `folder`.

    If `xet` is given, the file is at that address of Xet's.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, length):
            is_asked = "/resolve/" in self.path  # the client asks for other things, too
            self.send_response(200 if is_asked else 404)
            for name, value in ("ETag", f'"{etag}"'), ("X-Repo-Commit", commit), length:
                self.send_header(name, value)
            if xet is not None:
                refresh = f"http://127.0.0.1:{server.server_port}/resolve/token"
                told = {"Hash": "0a" * 32, "Refresh-Route": refresh, "Cas-Url": xet, "Access-Token": "t"}
                for name, value in (told | {"Token-Expiration": str(int(time.time()) + 3600)}).items():
                    self.send_header(f"X-Xet-{name}", value)
            self.end_headers()

        def do_HEAD(self):
            self.answer(("Content-Length", str(size)))

        def do_GET(self):
            self.answer(("Connection", "close"))
            try:
                if "/resolve/" in self.path:
                    sends(self.wfile)
            except OSError:
                self.close_connection = True

        def log_message(self, *_args):
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    known = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(folder)}
    for name, value in known.items():
        patch.setattr(constants, name, value)
    try:
        yield
    finally:
        close_session()
        server.shutdown()
        server.server_close()


def test_a_file_without_an_end_fills_no_disk(tmp_path, monkeypatch):
    def endless(body):
        while True:
            body.write(PART)

    with (
        hub_that(endless, 1000, monkeypatch, tmp_path),
        pytest.raises(ConnectionError, match="expected 1,000 bytes from the Hub, but more come"),
    ):
        download("ada/run", "latest.json", None)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 2000


def test_a_file_that_trickles_is_given_up(tmp_path, monkeypatch):
    def trickle(body):
        while True:
            body.write(b"x")
            time.sleep(0.01)

    monkeypatch.setattr(hub_http, "GRACE_S", 0.2)
    with (
        hub_that(trickle, 10**6, monkeypatch, tmp_path),
        pytest.raises(ConnectionError, match="less than 1,000 bytes a second come"),
    ):
        download("ada/run", "latest.json", None)


def test_an_answer_that_is_no_file_is_bounded(tmp_path, monkeypatch):
    def endless(body):
        while True:
            body.write(PART)

    monkeypatch.setattr(hub_http, "MAX_ANSWER_BYTES", 2**22)
    with hub_that(endless, 1000, monkeypatch, tmp_path):
        hub_http.bound_answers()
        address = f"{constants.ENDPOINT}/api/models/resolve/x"
        with pytest.raises(hub_http.httpx.ReadError, match="more than 4,194,304 bytes come"):
            get_session().get(address, timeout=20)


@pytest.mark.parametrize("named", [{"etag": "../../../escaped"}, {"commit": "../../../escaped"}])
def test_a_hub_cannot_have_a_file_written_outside_of_the_cache(named, monkeypatch, tmp_path):
    with (
        hub_that(lambda file: file.write(b"{}"), 2, monkeypatch, tmp_path / "cache", **named),
        pytest.raises(ConnectionError, match=r"expected a hash as (etag|x-repo-commit), but got .*escaped"),
    ):
        download("crew/kept", "latest.json", None)
    assert not list(tmp_path.rglob("*escaped*"))


def test_xet_that_fails_is_told_as_a_hub_that_does_not_give_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with (
        hub_that(lambda file: file.write(b"{}"), 2000, monkeypatch, tmp_path, xet="no-address:"),
        pytest.raises(ConnectionError, match=r"the Hub does not give model.safetensors of 'ada/run'.*RuntimeError"),
    ):
        download("ada/run", "model.safetensors", None)
