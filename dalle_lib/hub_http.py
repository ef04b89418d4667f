"""The HTTP client of huggingface_hub, whose errors it passes on: httpx2 since its version 2, httpx before."""

import math
import re
import threading
import time
from collections.abc import Iterator
from functools import cache

from dalle_lib.one_line import in_one_line

try:
    from huggingface_hub.utils import httpx
except ImportError:
    import httpx

__all__ = ["bound_answers", "downloaded", "httpx", "require_here_or_hub", "require_hub"]

HUB_TIMEOUT_S = 5.0
"""Seconds in which the Hub must begin to answer to anything."""
GRACE_S, SLOWEST_BYTES_PER_S = 60.0, 1000
"""Seconds after which an answer must have come at such a pace: each byte renews the patience of an HTTP client."""

MAX_ANSWER_BYTES = 2**26
"""Bytes of an answer that does not say how long it is, or is no file: the client keeps some of them in memory."""
_NAMES = ("x-repo-commit", "x-linked-etag", "etag")
"""Headers of which huggingface_hub makes names of folders and files in its cache."""
_NAME = re.compile(r'(W/)?"?[\w-]{0,128}"?')


class Downloaded:
    """How many bytes of files and data this process has fetched; any thread may add to them."""

    def __init__(self) -> None:
        self.bytes, self._lock = 0, threading.Lock()

    def add(self, size: int) -> None:
        """Count bytes that have come."""
        with self._lock:
            self.bytes += size


downloaded = Downloaded()


class _Bounded(httpx.SyncByteStream):
    """What an answer holds, for as long as it neither trickles nor is longer than `max_bytes`."""

    def __init__(self, stream: httpx.SyncByteStream, max_bytes: float) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    def __iter__(self) -> Iterator[bytes]:
        began, came = time.monotonic(), 0
        for part in self._stream:
            yield part
            came, passed_s = came + len(part), time.monotonic() - began
            if passed_s > GRACE_S and came < SLOWEST_BYTES_PER_S * passed_s:
                raise httpx.ReadError(f"less than {SLOWEST_BYTES_PER_S:,} bytes a second come")
            if came > self._max_bytes:
                raise httpx.ReadError(f"more than {self._max_bytes:,} bytes come")

    def close(self) -> None:
        self._stream.close()


@cache
def bound_answers() -> None:
    """Have huggingface_hub give up answers that trickle, for which it would wait for ever, or that have no end.

    Nor may an answer name a file outside of its cache, where huggingface_hub would write what comes.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def factory() -> httpx.Client:
        client = default_client_factory()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks["response"], _bound]}
        return client

    set_client_factory(factory)


def _bound(response: httpx.Response) -> None:
    for name in _NAMES if "x-repo-commit" in response.headers else ():
        if not _NAME.fullmatch(told := response.headers.get(name, "")):
            raise httpx.RemoteProtocolError(f"expected a hash as {name}, but got {told!r:.80}")
    is_file = "content-length" in response.headers and not response.url.path.startswith("/api/")
    response.stream = _Bounded(response.stream, math.inf if is_file else MAX_ANSWER_BYTES)


def require_hub(asked: str, remedy: str) -> None:
    """Raise ConnectionError if the Hub does not answer: that it cannot be asked what is `asked`, why, and the remedy.

    Call this before huggingface_hub, which tries for half a minute or waits without an end before it says so.
    """
    from huggingface_hub import constants, get_session

    bound_answers()
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"the Hub cannot be asked {asked} ({in_one_line(error)}): {remedy}.") from error


def require_here_or_hub(repository: str, file: str, remedy: str, revision: str | None = None) -> None:
    """Raise ConnectionError, with the remedy, if a repository's file is not on this machine and the Hub is silent."""
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(repository, file, revision=revision), str):
        require_hub(f"for {repository}, which is not on this machine", remedy)
