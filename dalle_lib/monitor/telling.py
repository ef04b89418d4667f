"""What is wrong with a run, told to people elsewhere: figures for Prometheus, messages by a webhook or a command."""

import logging
import os
import shlex
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from dalle_lib.files import small_bytes
from dalle_lib.hub_http import httpx
from dalle_lib.names import is_web_address
from dalle_lib.one_line import printable

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

logger = logging.getLogger(__name__)

WEBHOOK = "webhook"
"""The file in a monitor's folder with the address to which messages are sent. Who knows it can write there, so it is in
no option and no log."""
TIMEOUT_S = 10.0
MAX_MESSAGE = 2000
"""Letters of a message: Discord takes no more."""
BETWEEN_S = 60.0
"""Seconds between two messages; what is told meanwhile is in the next one. Peers may make problems come and go."""
BETWEEN_MAILS_S = 600.0
"""The same for a command, which mostly sends mail."""
COMMAND_S = 60.0
"""Seconds after which a command is ended."""
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ")
"""What a command finds in its environment: no token that the monitor was started with."""
_HARMLESS = str.maketrans({"@": "＠", "<": "‹", ">": "›", "[": "(", "]": ")", "`": "'"})
"""Signs with which a peer's name would call everybody in a channel, or be a link."""


def webhook_in(folder: Path) -> str | None:
    """Return the address in the folder's file, None where there is none. Raises ValueError for what is no address."""
    if not (folder / WEBHOOK).exists():
        return None
    address = small_bytes(folder / WEBHOOK).decode().strip()
    if not is_web_address(address):
        raise ValueError(f"expected an address that begins with https in {folder / WEBHOOK}, but it holds none.")
    return address


class Messages(ABC):
    """Lines sent in the background, those of a while in one message; what fails is logged."""

    def __init__(self, name: str, between_s: float) -> None:
        """`name` is that of the run, with which each message begins."""
        self._name, self._between_s, self._lines, self._lock = name, between_s, [], threading.Lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    def tell(self, line: str) -> None:
        """Send a line, with what else is told until the last message is old enough. Names in it do nothing."""
        with self._lock:
            if sum(map(len, self._lines)) < MAX_MESSAGE:
                self._lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, daemon=True)
                self._thread.start()

    def _send(self) -> None:
        while True:
            with self._lock:
                text, self._lines = printable(" ".join(self._lines)), []
                if not text:
                    self._thread = None
                    return
            self._post(f"{self._name}: {text}".translate(_HARMLESS)[:MAX_MESSAGE])
            time.sleep(self._between_s)

    @abstractmethod
    def _post(self, text: str) -> None:
        """Send a message of one line. What fails is logged."""


class Webhook(Messages):
    """A webhook of Slack, Mattermost or Discord."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(name, BETWEEN_S)
        self._address = address

    def _post(self, text: str) -> None:
        try:
            sent = {"text": text, "content": text, "allowed_mentions": {"parse": []}}
            with httpx.stream("POST", self._address, json=sent, timeout=TIMEOUT_S) as answer:  # read to no end
                answer.raise_for_status()
        except Exception as error:  # a wrong address is no HTTPError; all of their texts name it
            logger.warning("a message was not sent to the webhook: %s", type(error).__name__)


class Command(Messages):
    """A program of the organiser, such as `mail`, that finds each message in its standard input. No shell is asked."""

    def __init__(self, command: str, name: str) -> None:
        """Take a program and its arguments as one types them. Raises ValueError if there is no such program here."""
        super().__init__(name, BETWEEN_MAILS_S)
        try:
            self._words = shlex.split(command)
        except ValueError:  # a quote that does not end
            self._words = []
        if not self._words or which(self._words[0]) is None:
            raise ValueError(
                f"expected a program of this machine as the alarm command, but got {command!r}: install it, or name it "
                "with its folder."
            )

    def _post(self, text: str) -> None:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        try:
            subprocess.run(
                self._words, input=f"{text}\n".encode(), timeout=COMMAND_S, check=True, env=kept,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            how = f"code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
            told = f"longer than {COMMAND_S:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else how
            logger.warning("the alarm command %s has not sent a message: %s", self._words[0], told)


class Gauges:
    """What Prometheus reads of a run: a collector over the last status."""

    def __init__(self, status: Callable[[], dict]) -> None:
        """`status` returns what `published.status_of` made last, or an empty dictionary before the first."""
        self._status = status

    def collect(self) -> Iterator["GaugeMetricFamily"]:
        """Yield the figures of the last status."""
        from prometheus_client.core import GaugeMetricFamily

        status = self._status()
        if not status:
            return
        plain = {
            "run_epoch": ("Epoch of the run.", status["epoch"]),
            "run_epochs": ("Epochs of the whole run.", status["total_epochs"]),
            "run_samples_per_second": ("Samples that all peers together compute in a second.", status["samples_per_s"]),
            "run_loss": ("Loss of the last epoch, median over peers.", status["loss"]),
            "run_looked": ("When the monitor last looked at the swarm, in seconds since 1970.", status["looked"]),
            "run_alarms": ("Problems that are not over.", sum(each["until"] is None for each in status["alarms"])),
            "run_users": ("Users who have taken part so far.", status["totals"]["users"]),
        }
        if status["checkpoints"]:
            newest = status["checkpoints"][0]
            plain["run_checkpoint_epoch"] = "Epoch of the newest checkpoint.", newest["epoch"]
            plain["run_checkpoint_made"] = "When it was made, in seconds since 1970.", newest["made"]
        for name, (told, value) in plain.items():
            if value is not None:
                yield GaugeMetricFamily(name, told, value=value)
        peers = GaugeMetricFamily("run_peers", "Peers by state.", labels=["state"])
        for state, count in status["peers_by_state"].items():
            peers.add_metric([state], count)
        yield peers


def serve(gauges: Gauges, port: int) -> Callable[[], None]:
    """Serve the figures on a port of this machine alone, and return what ends that."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(gauges)
    server, thread = start_http_server(port, "127.0.0.1", registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
