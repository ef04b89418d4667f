"""Parts of the files of a data set, from the Hub or another server, whatever the network does meanwhile."""

import email.utils
import logging
import random
import threading
import time
from contextlib import closing
from http.cookiejar import DefaultCookiePolicy
from urllib.parse import quote

from dalle_lib.names import data_on_hub
from dalle_lib.one_line import in_one_line

logger = logging.getLogger(__name__)

PATIENCE_S = 1800.0
"""Seconds in which a part must have come, however often the network fails; then the stream ends with an error."""
MAX_DELAY_S = 30.0
"""Seconds between two attempts at most, but for a server that says when it wants to be asked again."""
MAX_RETRY_AFTER_S = 600.0
_SHORTEST_WAIT_S = 1.0
"""A server that wants to be asked again at once, and fails again, would keep the processor and the log busy."""
CONNECT_S, SILENCE_S = 10.0, 15.0
"""Seconds in which a server must be reached, and in which something more must come."""
SLOW_AFTER_S, SLOW_BYTES_PER_S = 20.0, 2_000
"""An answer that is slower than this after these seconds is given up, and what is missing is asked for anew."""
_MAX_HOPS = 5
_MAX_DIGITS = 15
"""Digits of the size of a file at most."""
_NO_COOKIES = DefaultCookiePolicy(allowed_domains=[])
"""A server that sets other cookies in each answer would fill the memory, and have all of them sent back each time."""
_EXPIRIES = 3
"""How often in turn a storage may refuse an address that the Hub has just signed."""


class Refused(ValueError):
    """The server will not give the data, and would not if it were asked again: why, and what to do."""


class Gone(LookupError):
    """A file is no longer there."""


class Differs(ValueError):
    """A file is not the one that it should be."""


class Closed(RuntimeError):
    """The reader was closed while it waited."""


class _Again(Exception):
    """An attempt failed, and another may not; after `delay_s` if the server says so."""

    def __init__(self, why: str, delay_s: float | None = None, is_expired: bool = False) -> None:
        super().__init__(why)
        self.delay_s, self.is_expired = delay_s, is_expired


class WebFiles:
    """The files below an address, read in parts (HTTP range requests) and with patience.

    A part that breaks off goes on from where it did. Reading raises Refused where the server will not give the data,
    Gone for a file that is not there, Differs for one of another size, ConnectionError if the network fails for
    PATIENCE_S, and Closed after `close`.
    """

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        self.where, self._headers, self.bytes_read = address.rstrip("/"), headers or {}, 0
        self._closed = threading.Event()

    def place(self, name: str) -> str:
        """Return where a file is, for messages."""
        return f"{self.where}/{name}"

    def close(self) -> None:
        """End what waits for the network, with Closed."""
        self._closed.set()

    def names(self) -> list[str]:
        """Raise Refused: nothing but a manifest tells which files are below an address."""
        raise Refused(f"{self.where} has no manifest.json, which a data set at an address needs. Is the address right?")

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._total(self._patiently(name, bytearray(), 0, 1))

    def read(self, name: str, start: int, length: int, size: int | None = None) -> bytes:
        """Return `length` bytes of a file of `size` bytes, from `start` on."""
        got = bytearray()
        if length:
            answered = self._patiently(name, got, start, length)
            if size is not None and (found := self._total(answered)) != size:
                raise Differs(f"{self.where}: {name} has {found:,} bytes, not {size:,}")
        return bytes(got)

    def whole(self, name: str, most: int) -> bytes | None:
        """Return a small file, of which at most `most` + 1 bytes are read; None if it is not there."""
        try:
            size = self.size(name)
            return self.read(name, 0, min(size, most + 1))
        except Gone:
            return None

    def _patiently(self, name: str, got: bytearray, start: int, length: int) -> dict[str, str]:
        """Fill `got` with `length` bytes, and return the headers of the last answer."""
        from huggingface_hub.errors import OfflineModeIsEnabled

        from dalle_lib.hub_http import httpx

        began, attempt, expiries = time.monotonic(), 0, 0
        while True:
            before = len(got)
            try:
                return self._fill(name, got, start, length, began + PATIENCE_S)
            except _Again as problem:
                failed = problem
            except OfflineModeIsEnabled:  # who asked for it does not want to wait
                raise
            except (httpx.RequestError, OSError) as problem:
                failed = _Again(in_one_line(problem))
            if self._closed.is_set():
                raise Closed(f"{self.where} was closed")
            expiries = expiries + 1 if failed.is_expired else 0
            if expiries > _EXPIRIES:
                raise Refused(f"{self.where}: {name} cannot be read: {failed}. Is this machine's clock right?")
            attempt = 1 if len(got) > before else attempt + 1
            # Peers that lost a server together do not come back together.
            delay_s = min(2.0 ** (attempt - 1), MAX_DELAY_S) * random.uniform(0.5, 1.5)
            if failed.delay_s is not None:
                delay_s = max(failed.delay_s, min(_SHORTEST_WAIT_S, MAX_DELAY_S))
            if time.monotonic() + delay_s - began > PATIENCE_S:
                raise ConnectionError(
                    f"{self.where} did not give {name} for {PATIENCE_S / 60:.0f} minutes: {failed}. Is this machine "
                    "online? What was read is not lost: start again later."
                )
            logger.warning("%s: %s: %s; attempt %d, again in %.1f s", self.where, name, failed, attempt, delay_s)
            if self._closed.wait(delay_s):
                raise Closed(f"{self.where} was closed")

    def _fill(self, name: str, got: bytearray, start: int, length: int, until: float) -> dict[str, str]:
        """Ask once for what `got` lacks. Raises _Again, or an error of httpx, if less comes by the clock's `until`."""
        from dalle_lib.hub_http import downloaded

        first, began, before = start + len(got), time.monotonic(), len(got)
        answer, is_elsewhere = self._answer(name, f"bytes={first}-{start + length - 1}")
        with closing(answer):
            self._require_part(answer, name, first, length - before, is_elsewhere)
            for chunk in answer.iter_raw():
                got += chunk
                self.bytes_read += len(chunk)
                downloaded.add(len(chunk))
                if len(got) > length:
                    raise Differs(f"{self.where}: more of {name} came than was asked for")
                took_s = (now := time.monotonic()) - began
                if self._closed.is_set():
                    raise Closed(f"{self.where} was closed")
                if now > until and len(got) < length:
                    raise _Again(f"only {len(got):,} of {length:,} bytes came")
                if took_s > SLOW_AFTER_S and len(got) - before < SLOW_BYTES_PER_S * took_s and len(got) < length:
                    raise _Again(f"only {len(got) - before:,} bytes came in {took_s:.0f} s")
        if len(got) < length:
            raise _Again(f"the answer ended {length - len(got):,} bytes too early")
        return dict(answer.headers)

    def _answer(self, name: str, part: str):
        """Return the answer to one request for a part of a file, and whether the server led elsewhere for it."""
        from huggingface_hub import get_session

        from dalle_lib.hub_http import httpx

        headers = self._headers | {"Range": part, "Accept-Encoding": "identity"}
        timeout, session = httpx.Timeout(SILENCE_S, connect=CONNECT_S), get_session()
        session.cookies.jar.set_policy(_NO_COOKIES)
        try:
            request = session.build_request("GET", f"{self.where}/{quote(name)}", headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise Refused(f"{self.where} is no address ({in_one_line(error)}). Is it right?") from error
        # httpx would read the body of an answer that leads elsewhere, whatever its length.
        for hops in range(_MAX_HOPS + 1):
            try:
                answer = session.send(request, stream=True, follow_redirects=False)
            except UnicodeError as error:
                raise _Again(f"no host has the name {request.url.host!r:.80}") from error
            if not answer.has_redirect_location:
                return answer, hops > 0
            answer.close()
            if (request := answer.next_request) is None:
                raise _Again("the server leads to what is no address")
        raise Refused(f"{self.where}: {name} leads elsewhere more than {_MAX_HOPS} times. Is the address right?")

    def _require_part(self, answer, name: str, first: int, length: int, is_elsewhere: bool) -> None:
        """Raise an error that says what to do unless an answer brings the part that was asked for."""
        status, told = answer.status_code, answer.headers.get("X-Error-Message") or answer.reason_phrase
        code = answer.headers.get("X-Error-Code", "")
        if status == 206:
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
                raise _Again(f"another part came than was asked for, {answer.headers.get('Content-Range')!r:.60}")
        elif status == 200:
            if first or answer.headers.get("Content-Length") != str(length):
                raise Refused(
                    f"{self.where} does not send parts of files (HTTP range requests), which a stream needs: put the "
                    "data on the Hub, or download them."
                )
        elif status == 416:
            raise Differs(f"{self.where}: {name} ends before byte {first:,}")
        elif status in (404, 410) and code not in ("RepoNotFound", "RevisionNotFound", "GatedRepo"):
            raise Gone(f"{self.where}: {name} is not there")
        elif status == 403 and is_elsewhere:
            raise _Again("the signed address of the storage has expired", is_expired=True)
        elif status in (408, 429) or status >= 500:
            raise _Again(f"the server answers {status} {told!r:.100}", _retry_after(answer.headers.get("Retry-After")))
        else:
            raise Refused(
                f"{self.where} cannot be read: the server answers {status} {told!r:.100}. Is the name right? A private "
                "data set needs a Hub token that can read it."
            )

    def _total(self, headers: dict[str, str]) -> int:
        """Return the size of the whole file that an answer tells."""
        told = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
        if not told.isdecimal() or len(told) > _MAX_DIGITS:
            raise Refused(f"{self.where} does not say how long its files are: put the data on the Hub.")
        return int(told)


def _retry_after(told: str | None) -> float | None:
    """Return the seconds that a header Retry-After asks to wait, at most MAX_RETRY_AFTER_S; None if it asks nothing."""
    if told is None:
        return None
    try:
        seconds = float(told) if told.isdecimal() else email.utils.parsedate_to_datetime(told).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


class HubFiles(WebFiles):
    """The files of a folder of a data set on the Hub, as of a revision."""

    def __init__(self, source: str, revision: str | None, token: str | None) -> None:
        """Raises ValueError for what names no data set on the Hub, which is `hf://datasets/owner/name[/folder]`."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers

        self._repository, self._folder = data_on_hub(source)
        self._revision, self._token = revision or "main", token
        root = f"{constants.ENDPOINT}/datasets/{self._repository}/resolve/{quote(self._revision, safe='')}"
        super().__init__(f"{root}/{self._folder}", build_hf_headers(token=token))
        self.where_told = f"{source} at revision {self._revision}"

    def names(self) -> list[str]:
        """Return the names of the Parquet files, relative to the folder. Raises Refused if they cannot be listed."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        from dalle_lib.hub_http import httpx

        tree = HfApi(token=self._token).list_repo_tree(
            self._repository, self._folder or None, recursive=True, revision=self._revision, repo_type="dataset"
        )
        try:
            found = sorted(entry.path for entry in tree if entry.path.endswith(".parquet"))
        except HfHubHTTPError as error:
            raise Refused(
                f"{self.where_told} cannot be read. Is the name right? A private data set needs a Hub token that can "
                f"read it. {type(error).__name__}: {in_one_line(error)}"
            ) from error
        except httpx.RequestError as error:
            raise ConnectionError(
                f"{self.where_told}: its files cannot be listed: {in_one_line(error)}. Is this machine online? Start "
                "again later."
            ) from error
        return [path.removeprefix(f"{self._folder}/") if self._folder else path for path in found]
