"""Addresses: whether they can be first peers', whether anybody accepts connections there, and whether this peer can."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

ANSWER_S = 5.0
"""Seconds in which a first peer must accept a connection."""
CONNECT_S = 60.0
"""Seconds in which a starting peer must reach a first peer."""
_EXAMPLE = "/ip4/93.184.216.34/tcp/31337/p2p/12D3KooW..."
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SHAPE = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/(?P<transport>tcp|udp)/(?P<port>\d+)(?P<rest>/.*)?/p2p/(?P<id>[^/]+)"
)
_DNSADDR = re.compile(r"/dnsaddr/[^/]+(/.*)?/p2p/(?P<id>[^/]+)")


def require_addresses(addresses: Iterable[str]) -> None:
    """Raise ValueError for the first address that can be none, as libp2p writes them, and say what is wrong with it."""
    for address in addresses:
        if (problem := _problem(address)) is not None:
            raise ValueError(
                f"{address!r} is not the address of a first peer: {problem}. Expected one such as {_EXAMPLE}: copy "
                "the whole address that the run's organiser gives."
            )


def why_nobody_answers(addresses: Iterable[str]) -> str | None:
    """Return why no connection to any of these well-formed addresses was accepted, or None if one was.

    Only TCP is tried, for `ANSWER_S` seconds: anything else (UDP, a relay, dnsaddr) counts as answering, because p2pd
    alone can try it. No addresses answer too.
    """
    found = [_SHAPE.fullmatch(address) for address in addresses]
    if not all(shape and shape["transport"] == "tcp" and "p2p" not in (shape["rest"] or "") for shape in found):
        return None
    places = sorted({(shape["host"], int(shape["port"])) for shape in found})
    with ThreadPoolExecutor(max(len(places), 1)) as pool:
        refusals = list(pool.map(_refusal, places))
    if not refusals or None in refusals:
        return None
    return ", ".join(f"{host} port {port}: {why}" for (host, port), why in zip(places, refusals, strict=True))


def require_port(host: str, port: int) -> None:
    """Raise ConnectionError if this machine cannot listen on `host` and `port`, and say what to do."""
    try:
        # Two p2pd would share a port, and each would get some of the other's connections: try the port without one.
        socket.create_server((host, port)).close()
    except OSError as error:
        why = (error.strerror or str(error)).split(" (while")[0]
        raise ConnectionError(
            f"this peer cannot listen on {host}, port {port}: {why}. Stop the program that uses the port, or choose "
            "another --port or --host."
        ) from error


def _problem(address: str) -> str | None:
    shape = _SHAPE.fullmatch(address) or _DNSADDR.fullmatch(address)
    if shape is None:
        return "it lacks the peer's id, /p2p/..., at its end" if "/p2p/" not in address else "it has another form"
    if not _is_peer_id(shape["id"]):
        return f"{shape['id']!r} is no peer's id, a part of it may be missing"
    where = shape.groupdict()
    if where.get("kind") in ("ip4", "ip6"):
        try:
            ipaddress.IPv4Address(where["host"]) if where["kind"] == "ip4" else ipaddress.IPv6Address(where["host"])
        except ValueError as error:
            return str(error)
    return f"there is no port {where['port']}" if not 0 < int(where.get("port", 1)) < 2**16 else None


def _is_peer_id(text: str) -> bool:
    """Return whether `text` is a libp2p id: in base58, a SHA-256 multihash (Qm...) or a whole short key (12D3...)."""
    if any(letter not in _BASE58 for letter in text):
        return False
    number = 0
    for letter in text:
        number = 58 * number + _BASE58.index(letter)
    zeros = len(text) - len(text.lstrip(_BASE58[0]))
    data = bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
    return data[:1] in (b"\x12", b"\x00") and len(data) > 2 and data[1] == len(data) - 2


def _refusal(place: tuple[str, int]) -> str | None:
    try:
        with socket.create_connection(place, timeout=ANSWER_S):
            return None
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
