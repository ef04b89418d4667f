"""How often one address or user may ask, in bounded memory; and which address a request comes from."""

import ipaddress
import math
from collections import OrderedDict

MAX_KEYS = 50_000
"""Addresses and users that are remembered; the one that asked longest ago is forgotten first."""
UNKNOWN = "unknown"


class Limiter:
    """Lets each key through so many times in a period: all at once, or evenly. Source: GCRA, ITU-T I.371."""

    def __init__(self) -> None:
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, key: str, times: int, period_s: float, now: float) -> int:
        """Return 0 and count the request, if it may pass; or else after how many seconds one may."""
        each = period_s / times
        free_at = min(max(self._free_at.get(key, now), now), now + period_s)  # the clock may have been set back
        if free_at + each > now + period_s + 1e-6:
            self._free_at[key] = free_at
            return max(1, math.ceil(free_at + each - now - period_s))
        self._free_at[key] = free_at + each
        self._free_at.move_to_end(key)
        if len(self._free_at) > MAX_KEYS:
            self._free_at.popitem(last=False)
        return 0


def address_of(peer: str | None, forwarded: str, proxies: int) -> str:
    """Return the address that a request comes from, as its limits count it: of IPv6 the first 64 bits, a household.

    Of `forwarded`, all of X-Forwarded-For, the last `proxies` addresses were written by the organiser's own proxies;
    what stands before them may be invented.
    """
    told = peer or ""
    if proxies:
        hops = [part.strip() for part in forwarded.split(",")]
        told = hops[-proxies] if len(hops) >= proxies else told
    try:
        address = ipaddress.ip_address(told)
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


def first_part(address: str) -> str:
    """Return as much of an address as tells its owner that it is theirs, and others little: 203.0.x.x."""
    if address == UNKNOWN:
        return UNKNOWN
    if "." in address:
        return ".".join([*address.split(".")[:2], "x", "x"])
    return ":".join([*ipaddress.ip_address(address).exploded.split(":")[:2], "x"])
