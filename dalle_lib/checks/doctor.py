"""Checks of whether this machine can take part in a run that need something to be started, asked or sent."""

import ipaddress
import math
import re
import time
from dataclasses import asdict, replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import pandas as pd

from dalle_lib.auth.clocks import seconds_ahead
from dalle_lib.checks.preflight import Check, preflight, require, table
from dalle_lib.hub_http import httpx
from dalle_lib.memory import estimate
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.swarm.peer.dry_run import Findings, probe
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings

MAX_SECONDS_OFF = 3.0
"""Seconds by which a newcomer's clock may differ from those of its first peers; hivemind 1.1.12 refuses more."""
HUB_TIMEOUT_S = 5.0
_SET_CLOCK = "let the network set it: sudo timedatectl set-ntp true; in WSL2 sudo hwclock -s; on macOS in its settings"
_OTHERS_CLOCK = "this clock agrees with the Hub's: tell the run's organiser that the first peer's clock is wrong"
_LET_IN = (
    "join with --client-mode, which needs no connections from outside; or forward a TCP port of your router to this "
    "machine, and join with that port as --port"
)
_ONLINE = (
    "is this machine online, and does its firewall allow connections to these ports? If so, ask the run's organiser "
    "for other addresses, and join with them as --initial-peers"
)


def doctor(settings: PeerSettings, folder: str | Path = ".", token: str | None = None) -> pd.DataFrame:
    """Return the table of `preflight` for the settings' run, with more rows: how far a peer with them would come.

    A process is started to find out, and ended. It connects to the run's first peers and sends one of them up to 8 MB;
    the Hub is asked for the time. What cannot be tried without hivemind or its p2pd is left out. `token` is a Hub
    token, for private runs.
    """
    checks = preflight(settings.run, folder, token)
    if not checks.loc["hivemind", "ok"]:
        return checks
    card = RunCard.load(settings.run, token) if checks.loc["run", "ok"] else None
    first_peers = [*(card.initial_peers if card else ()), *settings.initial_peers]
    found = probe(settings if first_peers else replace(settings, host=LOCALHOST), first_peers)
    codecs, clock = found.codecs or "values survive", _clock(found.ahead, seconds_ahead_of_hub())
    more = [
        require("codecs", "values survive", codecs, found.codecs is None, "install numpy and torch again"),
        _p2pd(found, settings),
        clock,
    ]
    if found.p2pd is None:
        more += [_first_peers(found, settings), _reachable(found, settings), _upload(found, settings, card)]
    return pd.concat([checks, table(more)])


def _p2pd(found: Findings, settings: PeerSettings) -> Check:
    """Return whether p2pd starts, the program through which hivemind's peers connect."""
    if "in use" in (found.p2pd or "").lower():
        remedy = f"stop the program that uses port {settings.port} (a peer of yours?), or join with another --port"
    else:
        remedy = "install hivemind again; its p2pd must be allowed to run, and to write to /tmp"
    return require("p2pd", "starts", found.p2pd or "starts", found.p2pd is None, remedy)


def _clock(ahead_of_peer: float | None, ahead_of_hub: float | None) -> Check:
    by = {"a first peer's": ahead_of_peer, "the Hub's": ahead_of_hub}
    needed = f"within {MAX_SECONDS_OFF:g} s"
    known = {whose: ahead for whose, ahead in by.items() if ahead is not None}
    if not known:
        here = "not checked: neither a first peer nor the Hub could be asked"
        return Check(
            "clock", needed, here, True, "compare it with another clock: a run refuses peers whose clock is off"
        )
    here = ", ".join(f"{ahead:+.1f} s from {whose}" for whose, ahead in known.items())
    ok = abs(next(iter(known.values()))) <= MAX_SECONDS_OFF
    is_ours_right = abs(known.get("the Hub's", float("inf"))) <= MAX_SECONDS_OFF
    return require("clock", needed, here, ok, _OTHERS_CLOCK if is_ours_right else _SET_CLOCK)


def seconds_ahead_of_hub() -> float | None:
    """Return by how many seconds this clock is at least ahead of the Hub's, or None if the Hub does not answer.

    A clock that is behind gives a negative number. The Hub tells whole seconds.
    """
    from huggingface_hub import constants, get_session

    asked = time.time()
    try:
        headers = get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S).headers
        told = parsedate_to_datetime(headers["Date"]).timestamp() + float(headers.get("Age", 0))
    except (httpx.HTTPError, OSError, KeyError, ValueError):  # no network, or a proxy that answers for the Hub
        return None
    return seconds_ahead(asked, told, time.time(), told_in=1.0)


def _first_peers(found: Findings, settings: PeerSettings) -> Check:
    what, needed = "first peers", "one that answers"
    if not found.first_peers:
        advice = "" if settings.run in EMBEDDED_RUNS else f"the card of {settings.run} has none: add --initial-peers"
        return Check(what, needed, "none: all peers are on this machine", True, advice)
    silent = [f"not {peer} ({why})" for peer, why in found.first_peers.items() if why is not None]
    answering = len(found.first_peers) - len(silent)
    here = ", ".join([f"{answering} of {len(found.first_peers)} answer", *silent])
    if silent and answering:
        return Check(
            what, needed, here, True, "those that answer are enough; tell the run's organiser about the others"
        )
    return require(what, needed, here, answering > 0, _ONLINE)


def _reachable(found: Findings, settings: PeerSettings) -> Check:
    """Return whether others can connect to this machine: by a first peer's trial, or else by its addresses."""
    what, needed = "reachable", "or --client-mode"
    if not found.first_peers or settings.client_mode:
        return Check(what, needed, "not needed", True)
    if found.reached:
        return Check(what, needed, f"a first peer can connect to port {found.reached}", True)
    if found.reached == 0:
        return Check(what, needed, "no: a first peer cannot connect to this machine", True, _LET_IN)
    why = found.greeting or "it is connected through a relay, which hides where it is"
    hosts = [address.split("/")[2] for address in found.addresses if re.match("/ip[46]/", address)]
    if any(ipaddress.ip_address(host).is_global for host in hosts):
        return Check(what, needed, f"not tried, but it has a public address ({why})", True)
    here = f"probably not: it has only private addresses, as behind a router or in a notebook ({why})"
    return Check(what, needed, here, True, _LET_IN)


def _upload(found: Findings, settings: PeerSettings, card: RunCard | None) -> Check:
    """Return whether a peer can send its share of a round before the run gives the round up."""
    if not found.first_peers:
        return Check("upload", "any", "not needed", True)
    if found.mbps is None or card is None:
        return Check("upload", "any", f"not measured ({found.upload})", True)
    limit = card.averaging.timeout_s
    model = estimate({"model_type": "dalle", **asdict(card.model)})
    both_ways = model.seconds_to_send(1e6 * found.mbps) if found.mbps else math.inf
    as_client = both_ways / 2  # a client sends gradients, but no averages
    seconds = as_client if settings.client_mode else both_ways
    here = f"{found.mbps:.3g} Mbit/s to a first peer: {seconds:.3g} s of each round"
    needed = f"at most {limit:g} s"
    if as_client <= limit < seconds:
        return Check("upload", needed, here, True, "join with --client-mode, which sends half as much")
    return require(
        "upload", needed, here, seconds <= limit, "use a faster connection: this run gives up rounds that take longer"
    )
