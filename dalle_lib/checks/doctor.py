"""Checks of whether this machine can take part in a run that need something to be started, asked or sent."""

import ipaddress
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import pandas as pd

from dalle_lib.amounts import moment
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.clocks import seconds_ahead
from dalle_lib.auth.proof_time import proof_until
from dalle_lib.checks.company import company_now
from dalle_lib.checks.forecast import Link, forecast_checks
from dalle_lib.checks.preflight import Check, preflight_checks, require, table
from dalle_lib.checks.traffic import traffic_checks
from dalle_lib.hub_http import httpx
from dalle_lib.one_line import in_one_line
from dalle_lib.planning import Work
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.kit import Kit
from dalle_lib.swarm.peer.dry_run import Findings, trial
from dalle_lib.swarm.process.addresses import of_others
from dalle_lib.swarm.process.folder import SETTINGS, crew_folder, own_id
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings

MAX_SECONDS_OFF = 3.0
"""Seconds by which a newcomer's clock may differ from those of its first peers; hivemind 1.1.12 refuses more."""
HUB_TIMEOUT_S = 5.0
_SET_CLOCK = "let the network set it: sudo timedatectl set-ntp true; in WSL2 sudo hwclock -s; on macOS in its settings"
_OTHERS_CLOCK = "this clock agrees with the Hub's: tell the run's organiser that the first peer's clock is wrong"
_LET_IN = (
    "nothing to do: a peer that finds so when it starts goes on as with --client-mode, where others are there who "
    "reduce; to reduce too, forward a TCP port of your router to this machine, and join with that port as --port"
)
_TRAINS = "this first peer trains: only a bootstrap peer tries it"
_ONLINE = (
    "is this machine online, and does its firewall allow connections to these ports? If so, ask the run's organiser "
    "for other addresses, and join with them as --initial-peers"
)


def doctor(settings: PeerSettings, folder: str | Path = ".", token: str | None = None) -> pd.DataFrame:
    """Return the table of `preflight` for the settings' run, with more rows: how far a peer with them would come.

    A process is started to find out, and ended. It connects to the run's first peers and sends one of them up to 8 MB;
    the Hub is asked for the time. Gradients are computed for some seconds, on a GPU for up to half a minute, and last
    come forecasts of what taking part would come to. What cannot be tried without hivemind or its p2pd is left out.
    Where the run has members, the peer's access token is checked: `folder` is the peer's, or the one in which
    `dalle-lib join` keeps peers. `token` is a Hub token, for private runs.
    """
    return table(doctor_checks(settings, folder, token))


def doctor_checks(
    settings: PeerSettings, folder: str | Path, token: str | None, *, forecasts: bool = True
) -> Iterator[Check]:
    """Yield the rows of `doctor`, each as soon as it is checked. Without `forecasts` this machine computes nothing."""
    passed = {}
    for check in preflight_checks(settings, folder, token):
        passed[check.what] = check.ok
        yield check
    if not passed["hivemind"]:
        return
    card = RunCard.load(settings.run, token) if passed["run"] else None
    own = Path(folder)
    if card is not None and not (own / SETTINGS).is_file():
        own = crew_folder(own, card, settings.name) / settings.name
    if card is not None and card.members is not None:
        yield _access_token(card, own)
    yield from traffic_checks(settings, card)
    first_peers = of_others([*(card.initial_peers if card else ()), *settings.initial_peers], own_id(own))
    facts = {}
    key = card.key if card is not None and card.members is None else None
    for news in trial(settings if first_peers else replace(settings, host=LOCALHOST), first_peers, key=key, card=card):
        facts |= news
        if "codecs" in news:
            right = "values survive"
            codecs = news["codecs"]
            yield require("codecs", right, codecs or right, codecs is None, "install numpy and torch again")
        if "p2pd" in news:
            yield _p2pd(news["p2pd"], settings)
        if "first_peers" in news and facts["p2pd"] is None:
            yield _first_peers(news["first_peers"], settings, is_read=passed["run"])
        if "kits" in news:
            yield _kit(card, [told and Kit(**told) for told in news["kits"]])
    found = Findings(**facts)
    if found.p2pd is None:
        yield _reachable(found, settings)
        yield _upload(found, settings, card)
    yield clock_row(found.ahead, seconds_ahead_of_hub())
    if forecasts and card is not None and settings.role == "trainer":
        is_reached = None if found.reached is None else found.reached > 0
        link = Link(mbps=found.mbps, reduces=False if settings.client_mode else is_reached)
        yield from forecast_checks(card, settings, company_now(card, found), link)


def _access_token(card: RunCard, folder: Path) -> Check:
    """Return whether the access token in a peer's folder lets it take part now, or will be renewed at its start."""
    from dalle_lib.swarm.peer.membership import IDENTITY, HeldToken, Identity, access_token  # loads hivemind

    what, needed = "access token", "one for this peer"
    if not (folder / IDENTITY).exists():
        advice = "start `dalle-lib join` with the same options: it makes the peer's id, and says how to ask with it"
        return Check(what, needed, f"none, and {folder} has no peer yet that could have one", False, advice)
    try:
        token = access_token(card, folder, Identity.load_or_create(folder / IDENTITY))
    except (ValueError, OSError) as error:
        until = proof_until(folder)
        if card.members.server is not None and until is not None and until > time.time():
            held = HeldToken(folder, own_id(folder) or "", authority_key(card.members.authority), card.name).now()
            if held is not None:
                told = f"{held.user}'s has ended; the next start gets another, until {moment(until)}"
                return Check(what, needed, told, True)
        return Check(what, needed, "none that counts", False, in_one_line(error))
    return Check(what, needed, f"{token.user}'s, until {token.expires:%Y-%m-%d %H:%M} UTC", True)


def _p2pd(problem: str | None, settings: PeerSettings) -> Check:
    """Return whether p2pd starts, the program through which hivemind's peers connect."""
    if "in use" in (problem or "").lower():
        remedy = f"stop the program that uses port {settings.port} (a peer of yours?), or join with another --port"
    else:
        remedy = "install hivemind again; its p2pd must be allowed to run, and to write to /tmp"
    return require("p2pd", "starts", problem or "starts", problem is None, remedy)


def clock_row(ahead_of_peer: float | None, ahead_of_hub: float | None) -> Check:
    """Return whether this clock agrees with others, given by how many seconds it is ahead of theirs, where known."""
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


def _first_peers(problems: dict[str, str | None], settings: PeerSettings, *, is_read: bool = True) -> Check:
    """Return whether a first peer answers; `is_read` says that the run's card could be asked for its first peers."""
    what, needed = "first peers", "one that answers"
    if not problems:
        if settings.begins:
            return Check(what, "not needed", "none: this peer is the first", True)
        if not is_read:
            return Check(what, needed, "not known, as the run cannot be read", True)
        advice = "add --initial-peers with the organiser's address, or --alone if you are the first"
        return Check(what, needed, "none is known", settings.run in EMBEDDED_RUNS, advice)
    silent = [f"not {peer} ({why})" for peer, why in problems.items() if why is not None]
    answering = len(problems) - len(silent)
    here = ", ".join([f"{answering} of {len(problems)} answer", *silent])
    if silent and answering:
        return Check(
            what, needed, here, True, "those that answer are enough; tell the run's organiser about the others"
        )
    if settings.begins and not answering:
        return Check(what, needed, here, True, "this peer would begin the swarm, and look for them again and again")
    return require(what, needed, here, answering > 0, _ONLINE)


def _kit(card: RunCard, kits: Sequence[Kit | None]) -> Check:
    """Return whether this kit can train with those of the first peers that answer."""
    own, needed = Kit.own(card), f"{card.kit or 'any'}, with protocol {card.protocol}"
    if (other := own.kept_out_by(kits)) is not None:
        return Check("kit", needed, f"{own}, but the first peers have {other}", False, own.way_to(other, card.name))
    is_known = any(kit is not None and kit.fingerprint == own.fingerprint for kit in kits)
    known = "as a first peer has it" if is_known else "no first peer tells that it has it"
    return Check("kit", needed, f"{own}, {known}", True)


def _reachable(found: Findings, settings: PeerSettings) -> Check:
    """Return whether others can connect to this machine: by a first peer's trial, or else by its addresses."""
    what, needed = "reachable", "or --client-mode"
    if not found.first_peers or settings.client_mode:
        return Check(what, needed, "not needed", True)
    if found.reached:
        return Check(what, needed, f"a first peer can connect to port {found.reached}", True)
    if found.reached == 0:
        return Check(what, needed, "no: a first peer cannot connect to this machine", True, _LET_IN)
    why = why_unknown(found.greeting) or "it is connected through a relay, which hides where it is"
    hosts = [address.split("/")[2] for address in found.addresses if re.match("/ip[46]/", address)]
    if any(ipaddress.ip_address(host).is_global for host in hosts):
        return Check(what, needed, f"not tried, but it has a public address ({why})", True)
    here = f"probably not: it has only private addresses, as behind a router or in a notebook ({why})"
    return Check(what, needed, here, True, _LET_IN)


def why_unknown(problem: str | None) -> str | None:
    """Return why a first peer did not help to find something out; None if it did."""
    return _TRAINS if "protocols not supported" in (problem or "") else problem


def _upload(found: Findings, settings: PeerSettings, card: RunCard | None) -> Check:
    """Return whether a peer can send its share of a round before the others leave it out."""
    if not found.first_peers:
        return Check("upload", "any", "not needed", True)
    if found.mbps is None or card is None:
        return Check("upload", "any", f"not measured ({why_unknown(found.upload)})", True)
    limit, bytes_per_s = card.averaging.timeout_s / 2, 1e6 / 8 * found.mbps
    parameters = Work.of(card).answer_bytes  # they travel in 8 bits, as averages do
    finds_so = settings.client_mode is None and found.reached == 0
    averages = 0 if settings.client_mode or finds_so else parameters  # a client sends none
    sizes = parameters + averages, parameters
    seconds, as_client = (size / bytes_per_s if bytes_per_s else math.inf for size in sizes)
    sent = f"{parameters / 1e6:.3g} MB of parameters"
    sent += f" and {averages / 1e6:.3g} MB of averages" if averages else ""
    here = f"{found.mbps:.3g} Mbit/s to a first peer: {seconds:.3g} s of each round, for {sent}"
    needed = f"at most {limit:g} s"
    if as_client <= limit < seconds:
        return Check("upload", needed, here, True, "join with --client-mode, which sends no averages")
    return require(
        "upload", needed, here, seconds <= limit, "use a faster connection: this run leaves out peers that take longer"
    )
