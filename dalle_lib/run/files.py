"""Where a run's card and files are: an embedded run's in the package, any other's in a folder or on the Hub."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dalle_lib.names import did_you_mean
from dalle_lib.one_line import in_one_line
from dalle_lib.platforms import hub_token

EMBEDDED = Path(__file__).parents[1] / "assets"
"""Folder of the embedded runs."""
EMBEDDED_RUNS = ("emoji", "emoji-mini")
"""`emoji` is a finished model of hundreds of emoji, `emoji-mini` an early one of a few, which trains in minutes."""
CARD = "run.json"
"""Name of a card in its folder or repository."""
MAX_CARD_BYTES = 2**20
"""Largest card that is read; one takes some kilobytes."""
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
"""The files of a state: the model, and what its optimizer needs to go on with it."""
BEFORE = "optimizer.before.safetensors"
"""What a trainer's OPTIMIZER was before it last saved: it goes on from there where that file cannot be read."""
CHECKPOINTS = "checkpoints"
"""Folder of the states that a monitor has taken from peers: in its peer's folder, and in a repository on the Hub."""
SLACK_BYTES = 2**24
"""By how much a download by Xet may be longer than was said: it checks what comes, and counts roughly."""
CHOICES = f"expected an embedded run ({', '.join(EMBEDDED_RUNS)}), a folder with {CARD}, or owner/name on the Hub"


def card_here(run: str | Path) -> Path | None:
    """Return where a run's card is on this machine, or None for "owner/name", which is asked for on the Hub.

    What exists on this machine is never looked for on the Hub. Raises ValueError for a folder without a card, and for
    what can be neither: nothing is there by this name, and it is no name on the Hub.
    """
    if run in EMBEDDED_RUNS:
        return EMBEDDED / f"{run}.json"
    path = Path(run)
    if path.is_dir():
        if not (path / CARD).is_file():
            raise ValueError(f"the folder {path} has no {CARD}: {CHOICES}.")
        return path / CARD
    if path.exists():
        return path
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(run)):
        return None
    raise ValueError(f"no run {str(run)!r}: {did_you_mean(str(run), EMBEDDED_RUNS)}{CHOICES}.")


def hub_token_for(run: str) -> str | None:
    """Return the Hub token with which a run's card may be read: none for an embedded run, which needs none."""
    return None if run in EMBEDDED_RUNS else hub_token()


def checkpoint_name(epoch: int) -> str:
    """Return the name of a checkpoint's folder; sorted, these names are in the order of their epochs."""
    return f"epoch-{epoch:07}"


def epoch_named(name: str) -> int | None:
    """Return the epoch of which `checkpoint_name` makes a name; None for any other."""
    match = re.fullmatch(r"epoch-([0-9]{7,10})", name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Home:
    """Where a card was loaded from, and so where the files beside it are; nowhere for a card made by hand."""

    folder: Path | None = None
    """Folder on this machine; for a card on the Hub, that of its copy in the Hub's cache."""
    repository: str | None = None
    """owner/name on the Hub, if the card is from there."""
    token: str | None = field(default=None, repr=False)
    """Hub token for a private repository."""

    @classmethod
    def of(cls, run: str | Path, token: str | None = None) -> tuple["Home", Path]:
        """Return the home of a run, and its card there, downloaded if it is on the Hub.

        `run` is an embedded run, a folder, a card's file or "owner/name". Raises ValueError if there is no such run,
        and ConnectionError if the Hub cannot be asked for it.
        """
        from dalle_lib.hub_http import require_here_or_hub

        path, repository = card_here(run), None
        if path is None:
            repository = str(run)
            require_here_or_hub(repository, CARD, "is this machine online? A run of your own is named by its folder")
            path = download_small(repository, CARD, token)
        return cls(path.parent, repository, token), path

    def file(self, name: str) -> Path:
        """Return the path of a file beside the card, downloaded if it is on the Hub."""
        return self._local(name) if self.repository is None else download(self.repository, name, self.token)

    def subfolder(self, name: str) -> Path:
        """Return the path of a folder beside the card, downloaded if it is on the Hub.

        Raises ConnectionError if the Hub does not give it.
        """
        if self.repository is None:
            return self._local(name)
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        from dalle_lib.hub_http import httpx

        try:
            return Path(snapshot_download(self.repository, allow_patterns=f"{name}/*", token=self.token)) / name
        except (httpx.HTTPError, LocalEntryNotFoundError) as error:
            raise ConnectionError(
                f"the Hub does not give {name} of {self.repository!r}: {in_one_line(error)}"
            ) from error

    def without_link(self, name: str, place: str) -> Path:
        """Return the place of a folder beside the card. Raises ValueError if it leads elsewhere by a link."""
        if self.repository is None and Path(place).resolve() != self.folder.resolve() / name:
            raise ValueError(f"{place} leads elsewhere by a link: copy there what is to be in the run's copy.")
        return Path(place)

    def hub_files(self) -> dict[str, "HubFile"]:
        """Return the files beside a card that is on the Hub, by name; none for a card from this machine.

        Raises ConnectionError if the Hub cannot be asked.
        """
        return {} if self.repository is None else hub_files(self.repository, self.token)

    def has(self, name: str) -> bool:
        """Return whether a file is beside the card. Raises ConnectionError if the Hub cannot be asked."""
        return self._local(name).is_file() if self.repository is None else has_file(self.repository, name, self.token)

    def _local(self, name: str) -> Path:
        if self.folder is None:
            raise ValueError(
                f"{name} cannot be found, because its run card was not loaded from anywhere: load a saved card, or "
                f"name the folder with RunCard.in_folder."
            )
        return self.folder / name


@dataclass(frozen=True)
class HubFile:
    """What is known of one file of a repository on the Hub."""

    bytes: int | None
    """Its size; None if the Hub does not say."""
    sha256: str | None
    """Its hash as the Hub names it; None for small files, of which it names none."""
    is_here: bool
    """Whether the Hub's cache on this machine holds it already."""


def hub_files(repository: str, token: str | None = None) -> dict[str, HubFile]:
    """Return the files of a model repository on the Hub by name, without fetching them.

    `token` is a Hub token for a private repository. Raises ConnectionError if the Hub cannot be asked.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    from dalle_lib.hub_http import bound_answers, httpx

    bound_answers()
    try:
        siblings = HfApi(token=token).model_info(repository, files_metadata=True).siblings
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"{repository} on the Hub cannot be reached: {type(error).__name__}: {error}") from error
    return {
        file.rfilename: HubFile(
            bytes=file.size,
            sha256=file.lfs.sha256 if file.lfs else None,
            is_here=isinstance(try_to_load_from_cache(repository, file.rfilename), str),
        )
        for file in siblings
    }


def download(
    repository: str,
    name: str,
    token: str | None,
    expected: str | None = None,
    tell: Callable[[int], None] | None = None,
) -> Path:
    """Return the path of a file of a model repository on the Hub, fetched unless the cache here holds it.

    `expected` says what was looked for, if that was no run. `tell` is told how many bytes have come now and then, in
    place of a bar in the terminal, and may give the download up by an error; the next one goes on with it. Raises
    ValueError if the Hub says that it has none for us, and ConnectionError if it says anything else, or nothing, or
    sends without an end.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from dalle_lib.hub_http import bound_answers, httpx

    bound_answers()
    try:
        return Path(hf_hub_download(repository, name, token=token, tqdm_class=_bar(tell)))
    except (HFValidationError, httpx.HTTPError, LocalEntryNotFoundError, RuntimeError) as error:  # the last is Xet's
        # LocalEntryNotFoundError advises to check the connection even where the Hub said 403: its cause is the answer.
        cause = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error
        is_hidden = isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403, 404)
        why = f"{type(cause).__name__}: {in_one_line(cause)}"
        if is_hidden or isinstance(cause, HFValidationError):
            advice = "Is the name right? A private one needs a Hub token that can read it."
            raise ValueError(f"{expected or f'no run {repository!r}: {CHOICES}.'} {advice} {why}") from error
        raise ConnectionError(f"the Hub does not give {name} of {repository!r}. Try again later. {why}") from error


def download_small(
    repository: str,
    name: str,
    token: str | None,
    expected: str | None = None,
    tell: Callable[[int], None] | None = None,
    max_bytes: int = MAX_CARD_BYTES,
) -> Path:
    """Return the path of a file of at most `max_bytes`, as `download` does. Raises ValueError for a larger one, too."""
    _require_small(repository, name, token, max_bytes)
    return download(repository, name, token, expected, tell)


def _bar(tell: Callable[[int], None] | None) -> type:
    """Return a progress bar for the Hub's client, which ends what sends more than it said that it would.

    If `tell` is given, the bar shows nothing, and tells how many bytes have come.
    """
    from huggingface_hub.utils import tqdm

    from dalle_lib.hub_http import downloaded

    class Bar(tqdm):
        came = 0

        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options | ({"disable": True} if tell else {}))
            self.before = options.get("initial") or 0
            self.slack = SLACK_BYTES if "xet" in (options.get("name") or "") else 0

        def update(self, n: float | None = 1) -> bool | None:
            self.came += int(n or 0)
            downloaded.add(int(n or 0))
            if self.total and self.before + self.came > self.total + self.slack:
                raise ConnectionError(f"expected {self.total:,} bytes from the Hub, but more come: try again later.")
            if tell is not None:
                tell(self.came)
            return super().update(n)

    return Bar


def has_file(repository: str, name: str, token: str | None, commit: str | None = None) -> bool:
    """Return whether a file of a model repository, as of `commit` or the newest, is in the cache here or on the Hub.

    Raises ConnectionError if the Hub cannot be asked.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    from dalle_lib.hub_http import httpx

    if isinstance(try_to_load_from_cache(repository, name, revision=commit), str):
        return True
    try:
        return HfApi(token=token).file_exists(repository, name, revision=commit)
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):
            return False
        raise ConnectionError(f"the Hub does not say whether {repository} is there: {in_one_line(error)}") from error
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"{repository} on the Hub cannot be reached: {in_one_line(error)}") from error


def _require_small(repository: str, name: str, token: str | None, max_bytes: int) -> None:
    """Raise ValueError if a repository on the Hub has no such file, or a larger one.

    The Hub's client would fetch a file of any size. Where the Hub does not answer, `download` says so, or takes the
    copy that is here.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    from dalle_lib.hub_http import bound_answers, httpx

    bound_answers()
    try:
        size = get_hf_file_metadata(hf_hub_url(repository, name), token=token).size
    except EntryNotFoundError as error:
        missing = "so it is no run: name another" if name == CARD else "which was expected there"
        raise ValueError(f"{repository} on the Hub has no {name}, {missing}.") from error
    except (httpx.HTTPError, OSError, HFValidationError):
        return
    if size is None or size > max_bytes:
        told = "an unknown number of" if size is None else f"{size:,}"
        raise ValueError(f"expected a {name} of at most {max_bytes:,} bytes, but {repository} has {told} bytes.")
