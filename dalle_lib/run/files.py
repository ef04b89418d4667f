"""Where a run's card and files are: an embedded run's in the package, any other's in a folder or on the Hub."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "assets"
"""Folder of the embedded runs."""
EMBEDDED_RUNS = ("emoji", "emoji-mini")
"""`emoji` is a finished model of hundreds of emoji, `emoji-mini` an early one of a few, which trains in minutes."""
CARD = "run.json"
"""Name of a card in its folder or repository."""


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

        `run` is an embedded run, a folder, a card's file or "owner/name". Raises ValueError if there is no such run.
        """
        path, repository = EMBEDDED / f"{run}.json" if run in EMBEDDED_RUNS else Path(run), None
        if path.is_dir() and (path / CARD).is_file():
            path = path / CARD
        elif not path.is_file():
            repository = str(run)
            path = download(repository, CARD, token)
        return cls(path.parent, repository, token), path

    def file(self, name: str) -> Path:
        """Return the path of a file beside the card, downloaded if it is on the Hub."""
        return self._local(name) if self.repository is None else download(self.repository, name, self.token)

    def subfolder(self, name: str) -> Path:
        """Return the path of a folder beside the card, downloaded if it is on the Hub."""
        if self.repository is None:
            return self._local(name)
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(self.repository, allow_patterns=f"{name}/*", token=self.token)) / name

    def missing_bytes(self, is_needed: Callable[[str], bool]) -> dict[str, int]:
        """Return the size of each file on the Hub whose name `is_needed` accepts and that is not in the cache here.

        Raises ConnectionError if the Hub cannot be asked.
        """
        if self.repository is None:
            return {}
        from huggingface_hub import HfApi, try_to_load_from_cache

        from dalle_lib.hub_http import httpx

        try:
            info = HfApi(token=self.token).model_info(self.repository, files_metadata=True)
        except (httpx.HTTPError, OSError) as error:
            raise ConnectionError(f"{self.repository} on the Hub cannot be reached: {error}") from error
        return {
            file.rfilename: file.size or 0
            for file in info.siblings
            if is_needed(file.rfilename)
            and not isinstance(try_to_load_from_cache(self.repository, file.rfilename), str)
        }

    def _local(self, name: str) -> Path:
        if self.folder is None:
            raise ValueError(
                f"{name} cannot be found, because its run card was not loaded from anywhere: load a saved card, or "
                f"name the folder with RunCard.in_folder."
            )
        return self.folder / name


def download(repository: str, name: str, token: str | None) -> Path:
    """Return the path of a file of a model repository on the Hub, fetched unless the cache here holds it.

    Raises ValueError if the Hub does not give it, with the Hub's reason.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repository, name, token=token))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        # LocalEntryNotFoundError advises to check the connection even where the Hub said 403: its cause is the answer.
        cause = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error
        is_hidden = isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403, 404)
        advice = "Is the name right? A private one needs a Hub token that can read it. " if is_hidden else ""
        raise ValueError(
            f"no run {repository!r}: expected an embedded run ({', '.join(EMBEDDED_RUNS)}), a folder with {CARD}, or a "
            f"model repository on the Hub. {advice}{type(cause).__name__}: {cause}"
        ) from error
