"""Checkpoints and the run's standing on the Hub: sent in the background, again until they are there."""

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

from dalle_lib.auth.keys import PeerKey
from dalle_lib.files import sha256_of, small_bytes
from dalle_lib.monitor.checkpoints import found_in, kept_by_age
from dalle_lib.monitor.confirming import CHECKER
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import drawings
from dalle_lib.monitor.published import HISTORY
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.commits import commit, head_of
from dalle_lib.organizing.model_page import PAGE_FOLDER, SHOWN
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.peer_keys import signer_of
from dalle_lib.run.files import CHECKPOINTS, MAX_CARD_BYTES, MODEL, OPTIMIZER, download_small, epoch_named
from dalle_lib.run.newest import CONFIRMED, LATEST, STATUS, folder_on_hub, signed_bytes
from dalle_lib.swarm.process.folder import IDENTITY

logger = logging.getLogger(__name__)

STATUS_S = 900.0
"""Seconds between two versions of the status on the Hub, unless a checkpoint is sent with it."""
LOOK_S = 5.0
DELAYS_S = (30.0, 60.0, 120.0, 300.0, 900.0)
"""Seconds until what failed is tried again, for the first failures in a row; the last one for all others."""
SQUASH_S = 86_400.0
"""Seconds after which the history of the repository becomes one commit, as after a start: nobody needs old statuses."""


class Uploader:
    """Sends what a monitor's folder holds to a repository of the Hub, from a thread of its own, until `close`.

    `place` is the folder of the monitor's peer. Whatever fails is tried again after a while, and the run is not held
    up. The repository is made if it is new, `is_private` or for everybody. `monitors` are the ids of the run's, if its
    card names them.
    """

    def __init__(
        self,
        repository: str,
        folder: Path,
        place: Path,
        database: Path,
        token: str | None,
        is_private: bool = False,
        say: Callable[[str], None] = logger.info,
        monitors: Collection[str] = (),
    ) -> None:
        self.monitors = monitors
        self.repository, self.folder, self.place, self.token = repository, folder, place, token
        self._database, self._is_private, self._say = database, is_private, say
        self._sent_status, self._squashed, self.problem = 0.0, 0.0, ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 120.0) -> None:
        """Send what is left in one more attempt, and end."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # they would write over what the monitor tells
        failures = 0
        while True:
            is_last = self._stop.is_set()
            try:
                with closing(MonitorDatabase(self._database)) as database:
                    while self.send(database, is_status_due=is_last):
                        pass
                failures, self.problem = 0, ""
            except Exception as error:  # whatever it is, the run goes on, and it is tried again
                failures += 1
                if self.problem != (problem := in_one_line(error)):
                    self._say(f"Not sent to {self.repository}, and tried again: {problem}")
                self.problem = problem
            if is_last:
                return
            self._stop.wait(DELAYS_S[min(failures, len(DELAYS_S)) - 1] if failures else LOOK_S)

    def send(self, database: MonitorDatabase, is_status_due: bool = False) -> bool:
        """Send the newest checkpoint that is not there yet, or the status if that is due; return whether more is left.

        What names the newest checkpoint is put back, too, if somebody has changed it. Raises the errors of
        `commits.commit`.
        """
        made = {row["epoch"]: row["made"] for row in database.rows("SELECT epoch, made FROM checkpoints")}
        here, now = found_in(self.place), time.time()
        kept = kept_by_age(made)
        here_alone = (
            "UPDATE checkpoints SET revision = NULL WHERE revision IS NOT NULL AND repository IS NOT :repository"
        )
        database.change(here_alone, repository=self.repository)  # another one, as the card had named before
        rows = database.rows("SELECT epoch FROM checkpoints WHERE revision IS NULL ORDER BY epoch DESC")
        unsent = [row["epoch"] for row in rows if row["epoch"] in kept and row["epoch"] in here]
        if not unsent and not (is_status_due or now - self._sent_status > STATUS_S):
            return False
        head = head_of(self.repository, self.token, private=self._is_private)
        names = self._names()
        there = {epoch_named(name.split("/")[1]) for name in names if name.startswith(f"{CHECKPOINTS}/")} - {None}
        files, message = self._told(names), "Status"
        if unsent:
            epoch, message = unsent[0], f"Checkpoint of epoch {unsent[0]}"
            files |= {f"{folder_on_hub(epoch)}/{name}": here[epoch] / name for name in (MODEL, OPTIMIZER)}
        files |= self._pointer({epoch: here[epoch] for epoch in here if epoch in there or epoch in unsent[:1]})
        old = [folder_on_hub(epoch) for epoch in there if epoch in made and epoch not in kept]
        revision = commit(self.repository, files, message, head, self.token, old)
        self._sent_status = now
        if unsent:
            query = "UPDATE checkpoints SET revision = :revision, repository = :repository WHERE epoch = :epoch"
            database.change(query, revision=revision, repository=self.repository, epoch=unsent[0])
            self._say(f"Checkpoint of epoch {unsent[0]:,} is at {self.repository}.")
        self._squash(now)
        return len(unsent) > 1

    def _told(self, there: Collection[str]) -> dict[str, Path | bytes]:
        """Return what tells of the run, by the names there: status, history, pages, and pictures of checkpoints.

        Pictures that are among the names `there` stay as they are, but for those of the newest checkpoint.
        """
        found = [self.folder / name for name in (STATUS, HISTORY, PAGE, CONFIRMED, CHECKER)]
        found += [self.folder / PAGE_FOLDER / name for name in SHOWN]
        shown = drawings(self.folder)
        for epoch, files in shown.items():
            found += [self.folder / name for name in files.values() if name not in there or epoch == max(shown)]
        return {str(file.relative_to(self.folder)): file for file in found if file.exists()}

    def _pointer(self, sent: Mapping[int, Path]) -> dict[str, bytes]:
        """Return LATEST for the newest of these checkpoints, unless it names that, or a newer one of another monitor.

        Who may write there can put back an older one, or one for a checkpoint that nobody has sent.
        """
        if not sent:
            return {}
        key, newest = PeerKey.load_or_create(self.place / IDENTITY), max(sent)
        epoch, signer = self._named()
        is_another = signer != key.peer_id and (signer in self.monitors or not self.monitors)
        if (epoch == newest and signer == key.peer_id) or (epoch >= newest and is_another):
            return {}
        return {LATEST: pointer(self.repository, newest, sent[newest], key)}

    def _named(self) -> tuple[int, str]:
        """Return the epoch that LATEST in the repository names, and who has signed that; -1 and "" if it is broken."""
        try:
            told = json.loads(small_bytes(download_small(self.repository, LATEST, self.token), MAX_CARD_BYTES))
            signer = signer_of(signed_bytes(told, self.repository), told["public_key"], told["signature"])
            return int(told["epoch"]), signer
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            return -1, ""

    def _names(self) -> set[str]:
        """Return the names of the files in the repository."""
        from huggingface_hub import HfApi

        return set(HfApi(token=self.token).list_repo_files(self.repository))

    def _squash(self, now: float) -> None:
        from huggingface_hub import HfApi

        if now - self._squashed > SQUASH_S:
            HfApi(token=self.token).super_squash_history(self.repository, commit_message="The run so far")
            self._squashed = now


def pointer(repository: str, epoch: int, here: Path, key: PeerKey) -> bytes:
    """Return what LATEST in a repository says of the checkpoint in the folder `here`, signed by a monitor's key."""
    files = {}
    for name in MODEL, OPTIMIZER:
        files[name] = {"sha256": sha256_of(here / name), "bytes": (here / name).stat().st_size}
    public_key = base64.b64encode(key.public_key).decode()
    told = {"epoch": epoch, "folder": folder_on_hub(epoch), "files": files, "public_key": public_key}
    signature = key.sign(signed_bytes(told, repository))
    return json.dumps(told | {"signature": signature}, indent=1).encode() + b"\n"
