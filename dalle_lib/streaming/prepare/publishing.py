"""Files of a data set go to the Hub while others are being made."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from dalle_lib.hub_http import httpx
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.prepare.journal import SPLITS, Journal

logger = logging.getLogger(__name__)
DELAYS_S = (1, 2, 4, 8, 15, 30, 60, 120, 240)
"""Seconds between tries of one upload; then it is given up."""
MAX_ASKED_S = 3600
"""Seconds that the Hub may ask to wait before the next try: it counts commits by the hour."""
MAX_WAITING = 2
"""Files that wait on this machine, if they are not kept, before the encoder waits, too."""
_ADVICE = {
    401: "Log in with `hf auth login`, with a Hub token that may write.",
    403: "Take a Hub token that may write there, or name a repository of your own as OWNER/NAME.",
    404: "Is the name right, and may your Hub token see the repository? It may have been removed or renamed.",
}
Answer = TypeVar("Answer")


class Publisher:
    """Sends finished files to a data set on the Hub, one commit a file, in a thread of its own."""

    def __init__(self, work: Path, folder: Path, repository: str, token: str | None, *, keep_local: bool) -> None:
        """`work` is the journal's folder, and `folder` the data set's."""
        self._api, self._repository = HfApi(token=token), repository
        self._work, self._folder, self._keep_local = work, folder, keep_local
        self._changed, self._error, self._is_leaving = threading.Condition(), None, False
        self._had_bars = False
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)

    def start(self, journal: Journal, private: bool) -> None:
        """Make the repository if it is new, see what it has already, and begin to send what it lacks.

        Raises PermissionError if the Hub refuses, ConnectionError if it cannot be reached, and ValueError if the
        repository has files of another data set.
        """
        if (known := journal.meta("repository")) not in (None, self._repository):
            raise ValueError(f"this folder's data set goes to {known!r}, not {self._repository!r}: name that again.")
        self._patiently(
            f"making {self._repository}",
            lambda: self._api.create_repo(self._repository, repo_type="dataset", private=private, exist_ok=True),
        )
        journal.set_meta("repository", self._repository)
        there, head = self._patiently(f"looking at {self._repository}", lambda: self._what_is_there(journal))
        ours = {shard.name: shard for shard in journal.shards()}
        journal.mark_sent([name for name, shard in ours.items() if there.get(name) == shard.entry.sha256], head)
        missing = [name for name, shard in ours.items() if shard.revision and name not in there]
        if gone := [name for name in missing if not (self._folder / name).exists()]:
            raise ValueError(
                f"{gone[0]} was sent to {self._repository}, but is not there any more, nor here: prepare the source "
                "anew in another folder."
            )
        journal.mark_sent(missing, None)
        self._remove_sent(journal)
        self._had_bars = not are_progress_bars_disabled()
        disable_progress_bars()  # they would write over the encoder's
        self._thread.start()

    def shard_is_done(self) -> None:
        """Wake the thread, and wait while too many files wait here. Raises what stopped the thread."""
        self._wait_for(None if self._keep_local else MAX_WAITING)

    def finish(self, files: Mapping[str, Path]) -> str:
        """Send what is left, then `files`, by their names there, in one commit, and return that commit's hash."""
        self._wait_for(0)
        with closing(Journal(self._work)) as journal:
            return self._send(journal, files, "Manifests, card and preview")

    def leave(self) -> None:
        """Let the thread end after what it is sending."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        if self._had_bars:
            enable_progress_bars()

    def _wait_for(self, most: int | None) -> None:
        with closing(Journal(self._work)) as journal, self._changed:
            self._changed.notify_all()
            while self._error is None and most is not None and len(journal.shards(only_unsent=True)) > most:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        journal = Journal(self._work)
        try:
            while True:
                with self._changed:
                    while not (unsent := journal.shards(only_unsent=True)) and not self._is_leaving:
                        self._changed.wait()
                    if self._is_leaving:
                        return
                shard = unsent[0]
                revision = self._send(journal, {shard.name: self._folder / shard.name}, f"Add {shard.name}")
                journal.mark_sent([shard.name], revision)
                self._remove_sent(journal)
                with self._changed:
                    self._changed.notify_all()
        except Exception as error:  # whatever it is, the other thread raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            journal.close()

    def _send(self, journal: Journal, files: Mapping[str, Path], message: str) -> str:
        def send() -> str:
            operations = [CommitOperationAdd(name, str(file)) for name, file in files.items()]
            # Whoever commits after this look makes the Hub answer 412, so the next try looks again.
            _, head = self._what_is_there(journal)
            return self._api.create_commit(
                self._repository, operations, commit_message=message, repo_type="dataset", parent_commit=head
            ).oid

        return self._patiently(f"sending {', '.join(files)}", send)

    def _what_is_there(self, journal: Journal) -> tuple[dict[str, str], str]:
        """Return the SHA-256 of each large file of the repository, none of others, and the newest commit.

        Raises ValueError if codes are there that are not the journal's, which must not be written over.
        """
        told = self._api.dataset_info(self._repository, files_metadata=True)
        there = {file.rfilename: file.lfs.sha256 if file.lfs else "" for file in told.siblings}
        ours = {shard.name: shard.entry.sha256 for shard in journal.shards()}
        for name, digest in there.items():
            if name.startswith(SPLITS) and name.endswith(".parquet") and digest != ours.get(name):
                raise ValueError(
                    f"expected no data in {self._repository} but this folder's, but {name} is another's: name another "
                    "repository, or the folder that it was made in."
                )
        return there, told.sha

    def _remove_sent(self, journal: Journal) -> None:
        if not self._keep_local:
            for shard in journal.shards():
                if shard.revision is not None:
                    (self._folder / shard.name).unlink(missing_ok=True)

    def _patiently(self, what: str, do: Callable[[], Answer]) -> Answer:
        """Return what `do` returns, tried again after growing delays while the Hub is away or too busy."""
        for attempt, delay in enumerate((*DELAYS_S, None), 1):
            try:
                return do()
            except (httpx.HTTPError, OSError, RuntimeError) as error:
                status = _status(error)
                if status is not None and status < 500 and status not in (408, 412, 429):
                    advice = _ADVICE.get(status, "Nothing that was encoded is lost.")
                    raise PermissionError(
                        f"{what} failed: the Hub answered {status} ({in_one_line(error):.300}). {advice} Then run the "
                        "same again."
                    ) from error
                if delay is None:
                    raise ConnectionError(
                        f"{what} failed {attempt} times ({in_one_line(error):.300}). Run the same again later: nothing "
                        "that was encoded is lost, and nothing is sent twice."
                    ) from error
                delay = max(delay, _asked_to_wait_s(error))
                logger.warning("%s failed, try %d (%.300s): again in %d s", what, attempt, in_one_line(error), delay)
            with self._changed:
                if self._changed.wait_for(lambda: self._is_leaving, delay):
                    raise ConnectionError(f"{what} was given up, because the program ends.")
        raise AssertionError("the last try returns or raises")


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about."""
    answer = _answer(error)
    return None if answer is None else answer.status_code


def _asked_to_wait_s(error: BaseException) -> int:
    """Return the seconds after which the Hub wants to be asked again, at most MAX_ASKED_S; 0 if it names none."""
    answer = _answer(error)
    told = "" if answer is None else answer.headers.get("Retry-After", "")
    return min(int(told[:9]), MAX_ASKED_S) if told.isdecimal() else 0


def _answer(error: BaseException | None) -> httpx.Response | None:
    """Return the answer of the Hub that an error is about; uploads wrap the error that has it."""
    while error is not None:
        if (answer := getattr(error, "response", None)) is not None:
            return answer
        error = error.__cause__
    return None
