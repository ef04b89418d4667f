"""Files of a data set on the Hub, as of one commit, one after the other on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dalle_lib.hub_http import httpx
from dalle_lib.names import HUB, data_on_hub
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.prepare.sources import Unit


class FetchedFiles:
    """Files of a data set on the Hub."""

    root = None

    def __init__(self, source: str, revision: str | None, folder: Path, token: str | None) -> None:
        """`source` is hf://datasets/owner/name, or a folder of it; fetched files pass `folder` on this machine.

        Raises ValueError if the Hub has no such data set for us, and ConnectionError if it cannot be asked.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        self._repository, inside = data_on_hub(source)
        self._folder, self._token = folder, token
        try:
            told = HfApi(token=token).dataset_info(self._repository, revision=revision, files_metadata=True)
        except (HfHubHTTPError, HFValidationError) as error:
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else 404
            why = f"the Hub does not give the data set {self._repository} at {revision or 'its newest commit'}"
            if status in (401, 403, 404):
                advice = "Is the name right? A private one needs a Hub token that can read it."
                raise ValueError(f"{why}. {advice} {in_one_line(error):.300}") from error
            raise ConnectionError(f"{why}: {in_one_line(error):.300}. Try again later.") from error
        except (httpx.HTTPError, OSError) as error:
            raise ConnectionError(f"the Hub cannot be asked for {self._repository}: {in_one_line(error)}") from error
        self.revision: str = told.sha
        self._all = [
            Unit(file.rfilename, file.size or 0, (file.lfs.sha256 if file.lfs else file.blob_id) or "")
            for file in told.siblings
            if not inside or f"{file.rfilename}/".startswith(f"{inside}/")
        ]
        self._source = source
        self.about: dict[str, object] = {"hub": source.removeprefix(HUB)}

    def ending_with(self, suffixes: tuple[str, ...]) -> list[Unit]:
        """Return the files with these endings, sorted by name."""
        found = [unit for unit in self._all if unit.name.lower().endswith(suffixes)]
        return sorted(found, key=lambda unit: unit.name)

    def keep(self, suffixes: tuple[str, ...]) -> None:
        """Leave out all files but those with these endings. Raises ValueError if there are none."""
        self._all = self.ending_with(suffixes)
        if not self._all:
            raise ValueError(f"expected files that end with {' or '.join(suffixes)} in {self._source}: none does.")

    def units(self) -> Iterator[Unit]:
        """Yield the files."""
        yield from self._all

    @contextmanager
    def open(self, name: str, keep: bool = False) -> Iterator[Path]:
        """Fetch a file unless it is here; without `keep`, remove it once the block has read it to its end."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            path = hf_hub_download(
                self._repository,
                name,
                repo_type="dataset",
                revision=self.revision,
                local_dir=self._folder,
                token=self._token,
            )
        except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError) as error:
            raise ConnectionError(
                f"the Hub does not give {name} of {self._repository}: {in_one_line(error):.300}. Run the same again "
                "later: the work goes on where it was."
            ) from error
        yield Path(path)
        if not keep:
            Path(path).unlink(missing_ok=True)
