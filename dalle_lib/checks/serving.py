"""Checks of a run's authority: what its address answers to the outside, and how long its keys last."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from dalle_lib.auth.authority import Authority
from dalle_lib.auth.server.settings import Folder
from dalle_lib.checks.preflight import Check, require
from dalle_lib.hub_http import httpx
from dalle_lib.names import LOOPBACK
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard

ANSWER_S = 10.0
MAX_SILENCE_S = 30.0
"""Seconds after which the proxy must have ended a connection whose headers never end; deploy/Caddyfile allows 10."""
MIN_DAYS = 7
"""Days that a certificate or a key must still last."""
_PROXY = "start a TLS proxy there, with deploy/Caddyfile, and open TCP port {port} in the firewall"
_CERTIFICATE = (
    "caddy gets a certificate and renews it by itself, where the name leads to this machine and ports 80 and 443 are "
    "open to everybody: its log says why it did not"
)


def authority_checks(card: RunCard, folder: Path | None) -> Iterator[Check]:
    """Yield whether the authority that a card names works, asked as volunteers ask it, from this machine.

    `folder` is the server's, whose signing key is looked at; without it, the key is not.
    """
    if card.members is None:
        yield Check("authority", "not needed", "none: everybody may take part in this run", True)
        return
    if (server := card.members.server) is None:
        yield Check("authority", "not needed", "no server: `dalle-lib run token` makes access tokens", True)
        return
    yield from _address(server)
    yield from _answers(card, server)
    if folder is not None:
        yield _signing_key(card, folder)
        yield _settings(server, folder)


def _address(server: str) -> Iterator[Check]:
    """Yield what the proxy before the server does with TLS, and with a connection that says nothing."""
    url = urlsplit(server)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    what, needed = "certificate", f"valid for {host}, {MIN_DAYS} days more"
    if url.scheme != "https":
        yield require(what, "https", f"{server} has no TLS", host in LOOPBACK, "name an https address in the card")
        return
    try:
        with (
            socket.create_connection((host, port), timeout=ANSWER_S) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host) as connection,
        ):
            days = (ssl.cert_time_to_seconds(connection.getpeercert()["notAfter"]) - time.time()) / 86400
            here = f"valid for {host}, {days:.1f} days more"
            yield require(what, needed, here, days >= MIN_DAYS, _CERTIFICATE)
            yield _patience(connection, host)
    except ssl.SSLCertVerificationError as error:
        yield Check(what, needed, error.verify_message, False, _CERTIFICATE)
    except (OSError, ValueError) as error:  # ValueError: a name that can be no host's
        yield Check(what, needed, f"{host} port {port}: {in_one_line(error)}", False, _PROXY.format(port=port))


def _patience(connection: ssl.SSLSocket, host: str) -> Check:
    """Return whether a connection ends whose headers never do, of which the server itself can hold 1000."""
    what, needed = "time limits", f"headers within {MAX_SILENCE_S:g} s"
    began, end = time.monotonic(), "cut"
    connection.settimeout(MAX_SILENCE_S)
    try:
        connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n".encode())
        connection.recv(1)
    except TimeoutError:
        remedy = "set time limits for headers and bodies in the proxy, as deploy/Caddyfile does"
        return Check(what, needed, f"a connection without an end is held for {MAX_SILENCE_S:g} s", False, remedy)
    except OSError:
        end = "reset"
    return Check(what, needed, f"headers without an end are {end} after {time.monotonic() - began:.0f} s", True)


def _answers(card: RunCard, server: str) -> Iterator[Check]:
    """Yield whether the server is behind its proxy, serves this run, and keeps its metrics to itself."""
    start = "start `dalle-lib auth-server serve` behind the proxy; its log and the proxy's say what is wrong"
    try:
        with httpx.Client(base_url=server, timeout=ANSWER_S, follow_redirects=False) as http:
            health, about = http.get("/healthz"), http.get(f"/runs/{card.name}")
            metrics = http.get("/metrics")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        yield Check("authority", "answers /healthz", in_one_line(error), False, start)
        return
    yield require("authority", "answers /healthz", f"status {health.status_code}", health.status_code == 200, start)
    told = _fields(about) if about.status_code == 200 else {}
    if not told:
        add = f"dalle-lib auth-server add {card.name} --root root.pem, if it does not serve this run"
        yield Check("run it serves", card.name, f"status {about.status_code}", False, add)
    else:
        own = card.members.model_dump(include={"authority", "organization", "invitation", "client_id"})
        other = [name for name, value in (own | {"state": card.state}).items() if told.get(name) != value]
        here = (
            f"{card.name}, with another {' and '.join(other)} than the card" if other else f"{card.name}, as its card"
        )
        advice = "the server looks at a card on the Hub once a minute; at a copy in its folder only when that changes"
        yield Check("run it serves", card.name, here, "authority" not in other, advice if other else "")
    hide = "pass on only the paths that deploy/Caddyfile names"
    is_hidden = metrics.status_code != 200 or urlsplit(server).hostname in LOOPBACK
    yield require("metrics", "not for everybody", f"status {metrics.status_code}", is_hidden, hide)


def _fields(answer: "httpx.Response") -> dict:
    """Return the JSON object in an answer; an empty one if it holds something else."""
    try:
        told = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}


def _signing_key(card: RunCard, folder: Path) -> Check:
    """Return how long the key in the folder of the server still signs."""
    what, needed, file = "signing key", f"{MIN_DAYS} days more", Folder(folder).key(card.name)
    rotate = f"dalle-lib auth-server rotate --root root.pem --folder {folder}, where the root key is"
    try:
        key = Authority.load(file)
    except (ValueError, OSError) as error:
        return Check(what, needed, in_one_line(error), False, rotate)
    if key.delegation is None:
        return Check(what, needed, "the root key itself lies in its place", False, f"take it offline, and {rotate}")
    days = (key.delegation.expires - datetime.now(UTC)).total_seconds() / 86400
    return require(what, needed, f"{days:.0f} days more", days >= MIN_DAYS, rotate)


def _settings(server: str, folder: Path) -> Check:
    """Return whether the server's settings can be read, and count the proxy before it."""
    what, place = "proxies", Folder(folder)
    try:
        proxies = place.settings().proxies
    except (ValueError, OSError) as error:
        return Check(
            what, "said in server.json", in_one_line(error), False, f"name the folder that has it, not {folder}"
        )
    needed = "1" if server.startswith("https") else "any"
    remedy = f'write "proxies": 1 into {place.settings_file}, or all volunteers share the limits of one address'
    return require(what, needed, str(proxies), proxies > 0 or needed == "any", remedy)
