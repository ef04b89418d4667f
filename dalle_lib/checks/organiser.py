"""Checks of whether a machine can be a run's first peer and authority, before anybody is invited."""

import ipaddress
import re
import resource
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dalle_lib.checks.doctor import clock_row, seconds_ahead_of_hub, why_unknown
from dalle_lib.checks.preflight import Check, gigabytes, require
from dalle_lib.checks.serving import authority_checks
from dalle_lib.machine import free_disk, free_memory
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.keys import AUTHORITY, FIRST_PEER, PEERS
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer
from dalle_lib.swarm.peer.dry_run import Findings, trial
from dalle_lib.swarm.process.addresses import of_others, peer_in, those_that_answer
from dalle_lib.swarm.process.folder import crew_folder, own_id
from dalle_lib.swarm.process.settings import PeerSettings

NEEDED_MEMORY = 1.5e9
"""Free bytes of RAM. A first peer took 0.6 to 0.9 GB, the authority 0.09 and caddy 0.04 (emoji-mini, 2026-11-25); a
flood of messages may take as much again (docs/threats.md)."""
NEEDED_DISK = 2e9
"""Free bytes of disk: logs of the first peer and of the servers, the data base, the run's card."""
NEEDED_FILES = 4096
"""Open files: a connection each, 1000 of the authority and as many as volunteers of the first peer, and some more."""
CARRIER = ipaddress.ip_network("100.64.0.0/10")
"""Addresses that a provider shares among its customers (RFC 6598): nobody outside can connect to them."""


def organiser_checks(settings: PeerSettings, keys: Path | None, token: str | None = None) -> Iterator[Check]:
    """Yield whether this machine can be the first peer and the authority of a run, each row when it is known.

    `keys` is the folder in which `dalle-lib run new` laid the keys, with the server's folder and the first peer's;
    without it, the keys and the first peer's own id are not known. `token` is a Hub token, for private runs. Asked are
    the authority's address, the run's other first peers, and the Hub for the card and the time.
    """
    settings = replace(settings, role="bootstrap", name=FIRST_PEER)
    card, problem = None, ""
    try:
        card = RunCard.load(settings.run, token)
    except (ValueError, ConnectionError) as error:
        problem = in_one_line(error)
    here = card.name if card else f"{settings.run} cannot be read"
    yield Check("run", "can be read", here, card is not None, problem)
    yield from _machine(keys or Path())
    peer = None if card is None or keys is None else crew_folder(keys / PEERS, card, FIRST_PEER) / FIRST_PEER
    own = own_id(peer) if peer else None
    named = () if card is None else card.initial_peers
    its = [address for address in named if peer_in(address) == own]
    yield from _addresses(its, of_others(named, own), own, settings)
    answering, silent = those_that_answer(its)
    ahead = None
    if answering or (peer and Peer(peer).is_running):
        yield _answering(len(answering), len(its), silent)
    else:
        found = _tried(settings, of_others([*named, *settings.initial_peers], own))
        ahead = found.ahead
        yield from _from_outside(found, settings)
    yield clock_row(ahead, seconds_ahead_of_hub())
    if card is not None:
        yield from authority_checks(card, keys and keys / AUTHORITY)


def _machine(folder: Path) -> Iterator[Check]:
    """Yield whether there is enough memory, disk and open files."""
    more, memory, disk = "rent a machine with more, or end other programs", free_memory(), free_disk(folder)
    yield require("free memory", gigabytes(NEEDED_MEMORY), gigabytes(memory), memory >= NEEDED_MEMORY, more)
    yield require(
        "free disk", gigabytes(NEEDED_DISK), gigabytes(disk), disk >= NEEDED_DISK, f"free some space in {folder}"
    )
    soft, hard = (limit if limit >= 0 else 2**20 for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    here = f"{soft:,}, which may be raised to {hard:,}"
    raising = "the units and compose.yaml in deploy/ raise it for what they start; in a terminal: ulimit -n 65536"
    remedy = "" if soft >= NEEDED_FILES else raising
    yield Check("open files", f"{NEEDED_FILES:,}", here, hard >= NEEDED_FILES, remedy)


def _addresses(
    own: Sequence[str], others: Sequence[str], peer_id: str | None, settings: PeerSettings
) -> Iterator[Check]:
    """Yield whether others can use what the card says of where this first peer is; `others` are the other addresses."""
    what, needed = "address", "a public one, in the card"
    if peer_id is None:
        advice = "name the folder of the run's keys as --keys: the first peer's id is known from it"
        yield Check(what, needed, "not known: nothing tells the first peer's id", True, advice)
        return
    if not own:
        place = f"/ip4/ADDRESS/tcp/{settings.port or 'PORT'}/p2p/{peer_id}"
        add = shlex.join(["dalle-lib", "run", "edit", settings.run, "--initial-peers", place, *others])
        yield Check(what, needed, f"the card names none of peer {peer_id}", False, add)
    for address in own:
        yield _address(address, settings)


def _address(address: str, settings: PeerSettings) -> Check:
    """Return whether one address of the first peer in the card leads to its port from the internet."""
    what, needed = "address", "a public one, in the card"
    _, kind, host, _, port, *_ = address.split("/")
    if kind == "dnsaddr":
        return Check(what, needed, f"{host}, which p2pd alone looks up", True)
    if settings.port and port != str(settings.port):
        here = f"{address} is not at port {settings.port}"
        return Check(what, needed, here, False, f"start the first peer with --port {port}")
    try:
        hidden = hidden_by(host)
    except OSError as error:
        return Check(what, needed, f"{host}: {in_one_line(error)}", False, "let its DNS lead to this machine")
    remedy = "volunteers cannot reach it: write the machine's public address into the card, or rent one that has one"
    return require(what, needed, f"{host} is {' and '.join(hidden)}" if hidden else host, not hidden, remedy)


def hidden_by(host: str) -> list[str]:
    """Return what hides a host's addresses from the internet; nothing if one is public. Raises OSError for no host."""
    told = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    kinds = {kind_of(ipaddress.ip_address(one.partition("%")[0])) for one in told}
    return [] if None in kinds else sorted(kinds)


def kind_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    """Return why nobody outside can connect to an address; None if it is public."""
    if address.version == 4 and address in CARRIER:
        return "shared by a provider's customers (CGNAT)"
    if address.is_loopback:
        return "this machine's own"
    return None if address.is_global else "of a private network"


def _tried(settings: PeerSettings, others: Sequence[str]) -> Findings:
    """Return what a trial finds that listens as the first peer would, with the other first peers of the run."""
    found = {}
    for facts in trial(settings, others):
        found |= facts
    return Findings(**found)


def _answering(answering: int, count: int, silent: str) -> Check:
    """Return at how many of its addresses in the card the first peer, which has been started, answers from here."""
    where = "its address" if count == answering == 1 else f"{answering} of its {count} addresses"
    here = f"the first peer answers at {where}" + (f", not {silent}" if silent else "")
    remedy = "not every network lets a machine call its own public address: try it from another one"
    return Check("port", "open to others", here, True, "" if answering else remedy)


def _from_outside(found: Findings, settings: PeerSettings) -> Iterator[Check]:
    """Yield whether p2pd starts, whether others can connect to its port, and how fast this machine sends."""
    in_use = "in use" in (found.p2pd or "").lower()
    remedy = (
        f"stop what uses port {settings.port}" if in_use else "install hivemind again: its p2pd must be allowed to run"
    )
    yield require("p2pd", "starts", found.p2pd or "starts", found.p2pd is None, remedy)
    if found.p2pd is not None:
        return
    what, needed, port = "port", "open to others", settings.port or "PORT"
    opening = f"allow TCP port {port} from everywhere in this machine's firewall and in the provider's"
    if found.reached:
        yield Check(what, needed, f"a first peer can connect to port {found.reached}", True)
    elif found.reached == 0:
        yield Check(what, needed, "a first peer cannot connect to this machine", False, opening)
    else:
        hosts = [ipaddress.ip_address(host) for host in re.findall(r"/ip[46]/([^/]+)/", " ".join(found.addresses))]
        kinds = [kind_of(host) for host in hosts if not host.is_loopback]
        seen = "it has a public address" if None in kinds else f"its addresses are {' and '.join(sorted(set(kinds)))}"
        here = f"not tried ({why_unknown(found.greeting)}); {seen if kinds else 'it has no address but its own'}"
        advice = f"{opening}, and try from another machine: nc -vz ADDRESS {port}; or name as --initial-peers any "
        yield Check(what, needed, here, True, f"{advice}bootstrap peer elsewhere, which then connects to this one")
    known = None if found.mbps is None else f"{found.mbps:.3g} Mbit/s to a first peer"
    yield Check("upload", "any", known or f"not measured ({why_unknown(found.upload)})", True)
