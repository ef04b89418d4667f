"""Addresses: whether they can be first peers', which of them answer, and whether this peer can listen."""

import ipaddress
import queue
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable

ANSWER_S = 10.0
"""Seconds in which a first peer must answer."""
OTHERS_S = 1.0
"""Seconds that the others still have when a first peer has answered."""
CONNECT_S = 60.0
"""Seconds in which a starting peer must reach a first peer."""
MAX_SHOWN = 5
"""Places of which it is told why nobody answers there."""
_ANY_ID = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
_EXAMPLE = "/ip4/93.184.216.34/tcp/31337/p2p/12D3KooW..."
_GREETING = b"\x13/multistream/1.0.0\n"
"""What both ends of a connection of libp2p say first. Source: github.com/multiformats/multistream-select"""
_MAX_ADDRESS, _MAX_ID, _MAX_REPEATED = 500, 64, 100
"""Letters of an address, of a peer's id in it, and of an address that can be none and is told."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SHAPE = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/(?P<transport>tcp|udp)/(?P<port>[0-9]{1,5})"
    r"(?P<over>(/(tls|ws|wss|quic|quic-v1))*)(/p2p/(?P<relay>[^/]+)/p2p-circuit)?/p2p/(?P<id>[^/]+)"
)
_DNSADDR = re.compile(r"/(?P<kind>dnsaddr)/(?P<host>[^/]+)/p2p/(?P<id>[^/]+)")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
Place = tuple[str, int, bool]
"""A host, a port, and whether libp2p speaks there without anything between, so that its first words are known."""


def require_addresses(addresses: Iterable[str]) -> None:
    """Raise ValueError for the first address that can be none, as libp2p writes them, and say what is wrong with it."""
    for address in addresses:
        if (problem := _problem(address)) is not None:
            repeated = address if len(address) <= _MAX_REPEATED else f"{address[:_MAX_REPEATED]}..."
            raise ValueError(
                f"{repeated!r} is not the address of a first peer: {problem}. Expected one such as {_EXAMPLE}: copy "
                "the whole address that the run's organiser gives."
            )


def is_address(address: str) -> bool:
    """Return whether this can be the address of a peer, as `require_addresses` has them."""
    return _problem(address) is None


def require_announced(addresses: Iterable[str]) -> None:
    """Raise ValueError for the first address that a peer cannot announce: it names a machine and a port, and no peer.

    The peer's id is added when it is announced.
    """
    for address in addresses:
        problem = "it ends with a peer's id" if "/p2p/" in address else _problem(f"{address}/p2p/{_ANY_ID}")
        if problem is None and not _SHAPE.fullmatch(f"{address}/p2p/{_ANY_ID}"):
            problem = "it names no port"
        if problem is not None:
            repeated = address if len(address) <= _MAX_REPEATED else f"{address[:_MAX_REPEATED]}..."
            raise ValueError(
                f"{repeated!r} cannot be announced: {problem}. Expected a machine and a port by which others reach "
                "this peer, such as /ip4/93.184.216.34/tcp/31337 or /dns4/home.example/tcp/31337."
            )


def peer_in(address: str) -> str:
    """Return the id of the peer that a well-formed address is of."""
    return address.rpartition("/p2p/")[2]


def of_others(addresses: Iterable[str], own_id: str | None) -> list[str]:
    """Return those of these well-formed addresses that are not this peer's own, without repetitions."""
    return [address for address in dict.fromkeys(addresses) if peer_in(address) != own_id]


def those_that_answer(addresses: Collection[str]) -> tuple[list[str], str]:
    """Return at which of these well-formed addresses a peer answers, and why none does at the others, in a line.

    All are tried at once, for up to `ANSWER_S` seconds: a peer accepts a connection by TCP and speaks first there, as
    libp2p does. When one has answered, the others have `OTHERS_S` more. p2pd alone can try anything else (UDP, a relay,
    dnsaddr), so these addresses are left to it where no other answers.
    """
    places = {address: place for address in addresses if (place := _place(address)) is not None}
    refusals: dict[Place, str | None] = dict.fromkeys(places.values(), f"no answer within {ANSWER_S:g} s")
    heard = queue.SimpleQueue()
    for place in refusals:
        threading.Thread(target=lambda place=place: heard.put((place, _refusal(place))), daemon=True).start()
    until = time.monotonic() + ANSWER_S
    for _ in refusals:
        try:
            place, refusal = heard.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            break
        refusals[place] = refusal
        if refusal is None:
            until = min(until, time.monotonic() + OTHERS_S)
    answering = [address for address, place in places.items() if refusals[place] is None]
    told = [f"{host} port {port}: {why}" for (host, port, _), why in sorted(refusals.items()) if why is not None]
    if len(told) > MAX_SHOWN:
        told[MAX_SHOWN:] = [f"and {len(told) - MAX_SHOWN} more"]
    return answering or [address for address in addresses if address not in places], ", ".join(told)


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
    if len(address) > _MAX_ADDRESS:
        return f"it has {len(address):,} letters"
    if not (address.isascii() and address.isprintable()):
        return "it has letters or signs that no address has"
    shape = _SHAPE.fullmatch(address) or _DNSADDR.fullmatch(address)
    if shape is None:
        return "it lacks the peer's id, /p2p/..., at its end" if "/p2p/" not in address else "it has another form"
    where = shape.groupdict()
    for peer in filter(None, (where.get("relay"), where["id"])):
        if not _is_peer_id(peer):
            return f"{peer!r} is no peer's id, a part of it may be missing"
    if (problem := _problem_of_host(where["kind"], where["host"])) is not None:
        return problem
    return f"there is no port {where['port']}" if not 0 < int(where.get("port", 1)) < 2**16 else None


def _problem_of_host(kind: str, host: str) -> str | None:
    if kind not in ("ip4", "ip6"):
        is_name = len(host) <= 253 and all(map(_LABEL.fullmatch, host.removesuffix(".").split(".")))
        return None if is_name else f"{host!r} is no machine's name"
    try:
        ipaddress.IPv4Address(host) if kind == "ip4" else ipaddress.IPv6Address(host)
    except ValueError as error:
        return str(error)
    return f"{host!r} holds for one machine alone, because of its %" if "%" in host else None


def _is_peer_id(text: str) -> bool:
    """Return whether `text` is a libp2p id: in base58, a SHA-256 multihash (Qm...) or a whole short key (12D3...)."""
    if len(text) > _MAX_ID or any(letter not in _BASE58 for letter in text):
        return False
    number = 0
    for letter in text:
        number = 58 * number + _BASE58.index(letter)
    zeros = len(text) - len(text.lstrip(_BASE58[0]))
    data = bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
    return data[:1] in (b"\x12", b"\x00") and len(data) > 2 and data[1] == len(data) - 2


def _place(address: str) -> Place | None:
    """Return where a well-formed address leads by TCP; None for one that p2pd alone can try."""
    shape = _SHAPE.fullmatch(address)
    if shape is None or shape["transport"] != "tcp" or shape["relay"]:
        return None
    return shape["host"], int(shape["port"]), not shape["over"]


def _refusal(place: Place) -> str | None:
    """Return why no peer answers there, or None if one does."""
    host, port, is_plain = place
    until, heard = time.monotonic() + ANSWER_S, b""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            while is_plain and len(heard) < len(_GREETING):
                connection.settimeout(max(until - time.monotonic(), 0.001))
                if not (part := connection.recv(len(_GREETING) - len(heard))):
                    break
                heard += part
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None if heard == _GREETING or not is_plain else "no peer is there, but something else"
