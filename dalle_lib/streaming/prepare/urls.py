"""Pictures that a table names by URL."""

import socket
from contextlib import suppress
from ipaddress import ip_address
from threading import Lock, Timer
from urllib.request import getproxies

from dalle_lib.hub_http import httpx
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, Unusable

TIMEOUT_S = 10.0
"""Seconds in which a server must answer, and go on answering."""
MAX_S = 60.0
"""Seconds that one picture may take."""
UNREACHED = "URL not reached"
_SLOW = "URL slower than {:g} s"


class Fetcher:
    """Fetches pictures, in any number of threads."""

    def __init__(self, *, local_urls: bool = False) -> None:
        """With `local_urls`, those of this machine and its own network are fetched, too."""
        # A proxy has an address of that network, and decides itself where it goes.
        self._is_open = local_urls or bool({"http", "https", "all"} & getproxies().keys())
        self._client: httpx.Client | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.close()

    def fetch(self, url: str) -> bytes:
        """Return what a URL answers, but not much more than MAX_BYTES. Raises Unusable."""
        with self._lock:
            if self._client is None:
                # Each request has a connection of its own, of which `_Watch` learns.
                limits = httpx.Limits(max_keepalive_connections=0)
                # A compressed answer of some kilobytes can unpack to gigabytes.
                headers = {"Accept-Encoding": "identity"}
                self._client = httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, limits=limits, headers=headers)
        parts, size, watch = [], 0, _Watch(self._is_open)
        timer = Timer(MAX_S, watch.end)
        timer.daemon = True
        timer.start()
        try:
            with self._client.stream("GET", url, extensions={"trace": watch.see}) as answer:
                if answer.status_code != 200:
                    raise Unusable(f"URL answered {answer.status_code}")
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise Unusable("URL answered something compressed")
                for part in answer.iter_raw():
                    parts.append(part)
                    size += len(part)
                    if size > MAX_BYTES:
                        break
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unusable(_SLOW.format(MAX_S) if watch.is_over else UNREACHED) from error
        finally:
            timer.cancel()
        if watch.is_over:  # an answer without a length ends where its connection does
            raise Unusable(_SLOW.format(MAX_S))
        return b"".join(parts)


class _Watch:
    """Sees the connections that one fetch makes, refuses those to a private network, and ends the last in time."""

    def __init__(self, is_open: bool) -> None:
        self._is_open, self._stream, self._lock = is_open, None, Lock()
        self.is_over = False

    def see(self, event: str, info: dict) -> None:
        """Take note of what happens (httpx's `trace`). Raises Unusable before anything is asked of a private network.

        A URL's host, or that of a redirect, may be a name of 127.0.0.1, or of the address where a rented machine
        finds its keys, 169.254.169.254.
        """
        if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
            return
        stream = info["return_value"]
        address = ip_address(stream.get_extra_info("server_addr")[0].partition("%")[0])
        if not self._is_open and not (getattr(address, "ipv4_mapped", None) or address).is_global:
            stream.close()
            raise Unusable("URL of a private network")
        with self._lock:
            self._stream = stream
        if self.is_over:
            self.end()

    def end(self) -> None:
        """End the connection, on which a server may send a byte every few seconds."""
        self.is_over = True
        with self._lock:
            if self._stream is not None:
                with suppress(OSError):  # it has ended by itself
                    self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
