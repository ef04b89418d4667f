"""Pictures that a table names by URL."""

import time
from threading import Lock

from dalle_lib.hub_http import httpx
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, Unusable

TIMEOUT_S = 10.0
"""Seconds in which a server must answer, and go on answering."""
MAX_S = 60.0
"""Seconds that one picture may take."""
UNREACHED = "URL not reached"


class Fetcher:
    """Fetches pictures, in any number of threads."""

    def __init__(self) -> None:
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
                self._client = httpx.Client(follow_redirects=True, timeout=TIMEOUT_S)
        parts, size, until = [], 0, time.monotonic() + MAX_S
        try:
            with self._client.stream("GET", url) as answer:
                if answer.status_code != 200:
                    raise Unusable(f"URL answered {answer.status_code}")
                for part in answer.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > MAX_BYTES:
                        break
                    if time.monotonic() > until:
                        raise Unusable(f"URL slower than {MAX_S:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unusable(UNREACHED) from error
        return b"".join(parts)
