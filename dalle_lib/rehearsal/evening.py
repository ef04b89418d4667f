"""An organiser's evening on one machine: a stand-in for the Hub, the people there, and an authority's server."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.here import hub_here
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import Hub, User

LOCALHOST = "127.0.0.1"
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
START_S = 120.0
"""Seconds in which a server must answer, on a busy machine too."""


class Evening:
    """The stand-in in the place of the Hub, with accounts there, and servers of authorities, until `close`.

    `people` maps names to the organisations that they are members of. Nothing leaves this machine. Without `is_here`
    only the authorities take the stand-in for the Hub, and all others the true one.
    """

    def __init__(self, folder: str | Path, people: Mapping[str, Sequence[str]], *, is_here: bool = True) -> None:
        self._folder, self._stack = Path(folder).resolve(), ExitStack()
        (self._folder / "hub").mkdir(parents=True, exist_ok=True)
        self.hub = self._stack.enter_context(hub_here(self._folder) if is_here else Hub(self._folder / "hub"))
        self._oauth = OAuth(self.hub)
        self.tokens = {name: f"hf_{name}_of_this_evening" for name in people}
        """The Hub token of each person; at the stand-in alone it opens anything."""
        for name, token in self.tokens.items():
            self.hub.users[token] = User(name, dict.fromkeys(people[name], "write"))

    def sign_in(self, name: str) -> None:
        """Let a person sit at the browser: who is shown a link and a code from now on, approves it as that person."""
        self._oauth.signed_in = self.hub.users[self.tokens[name]]

    def serve(self, authority: str | Path, address: str) -> None:
        """Start the server of the authority in a folder, at an address of this machine, as `auth-server serve` does.

        Raises RuntimeError, with the end of its log, if it does not answer.
        """
        log = self._folder / "authority.log"
        command = [
            sys.executable,
            "-m",
            "dalle_lib",
            "auth-server",
            "serve",
            "--folder",
            str(Path(authority).resolve()),
        ]
        with open(log, "ab") as written:
            server = subprocess.Popen(
                [*command, "--port", address.rpartition(":")[2]], stdin=subprocess.DEVNULL, stdout=written,
                stderr=written, env=self._environment(), start_new_session=True,
            )  # fmt: skip
        self._stack.callback(_end, server)
        deadline = time.monotonic() + START_S
        while not _answers(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the authority's server does not answer at {address}: {log.read_text()[-1000:]}")
            time.sleep(0.1)

    def _environment(self) -> dict[str, str]:
        """Return the variables of a server, which takes the stand-in for the Hub and has no Hub token."""
        hub = {"HF_ENDPOINT": self.hub.url, "NO_PROXY": f"{LOCALHOST},localhost", "PYTHONUNBUFFERED": "1",
               "HF_TOKEN_PATH": str(self._folder / "no-token")}  # fmt: skip
        return {name: value for name, value in os.environ.items() if name not in HUB_TOKENS} | hub

    def close(self) -> None:
        """End all servers."""
        self._stack.close()


def free_place() -> str:
    """Return HOST:PORT on this machine, where nothing listens."""
    with socket.create_server((LOCALHOST, 0)) as server:
        return f"{LOCALHOST}:{server.getsockname()[1]}"


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _end(server: subprocess.Popen) -> None:
    server.send_signal(signal.SIGTERM)
    server.wait()
