"""What a peer that others can reach prints for its friends: where it listens, and the line with which they join."""

import ipaddress
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalle_lib.run import RunCard
    from dalle_lib.swarm import PeerSettings


def invitation(settings: "PeerSettings", card: "RunCard", addresses: Sequence[str]) -> str:
    """Return where a peer listens, what to send to friends, and what they need besides.

    `addresses` are those of its "connected" event. Addresses of this machine alone are left out where there are others.
    """
    hosts = {address: _host(address) for address in addresses}
    known_outside = {address: host for address, host in hosts.items() if host is None or not host.is_loopback}
    shown = sorted(known_outside or hosts, key=lambda address: not _is_public(hosts[address]))
    # A card with addresses of its own leads newcomers to the run; another one needs this peer's.
    needed = [] if card.initial_peers else ["--initial-peers", *shown]
    run = Path(settings.run).name if Path(settings.run).is_dir() else settings.run
    team = ["--team", settings.team] if settings.team else []
    line = ["dalle-lib", "join", "--run", run, "--name", "your-name", *team, *needed]
    if not known_outside:  # or the friends would listen for the whole network
        line += ["--host", "127.0.0.1"]
    lines = ["Address: " + "\n         ".join(shown), f"Friends: {shlex.join(line)}"]
    if run != settings.run or settings.run.endswith(".json"):
        lines.append(f"         They need a copy of {settings.run}, and name it as --run.")
    if not known_outside:
        lines.append("         This line joins from this machine alone, because of --host 127.0.0.1.")
    elif not any(map(_is_public, hosts.values())):
        ports = sorted(set(re.findall(r"/tcp/(\d+)", " ".join(shown))))
        lines.append(
            f"         For other networks than yours, forward TCP port {' or '.join(ports)} of your router to this "
            "machine, and put your public address into the line."
        )
    if not settings.port:
        lines.append("         With a --port of your choice, the address stays the same at the next start.")
    return "\n".join(lines)


def _host(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address in a peer's address; None for a name."""
    found = re.match("/ip[46]/([^/]+)/", address)
    return ipaddress.ip_address(found[1]) if found else None


def _is_public(host: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    return host is None or host.is_global
