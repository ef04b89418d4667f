"""prepare_dataset: from pictures with captions to a data set of codes, here and on the Hub."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dalle_lib.files import require_writable
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.manifest import Manifest
from dalle_lib.streaming.prepare.settings import PACKAGES, PrepareSettings, require_installed

logger = logging.getLogger(__name__)
TRAIN = "train"
"""What is given for a VQ-GAN where one of one's own is to be trained."""
WORK = ".prepare"
"""Folder, in the data set's own, of the journal and of what passes through."""
_TRAINING = {"sklearn": "scikit-learn"}


@dataclass(frozen=True)
class Prepared:
    """A data set that has been prepared."""

    folder: Path
    manifests: Mapping[str, Manifest]
    """The manifest of each split that has rows."""
    counts: Mapping[str, int]
    """Rows of the source that were left out, by why."""
    near_duplicates: int
    """Rows that were kept though their perceptual hash had been there before."""
    source_bytes: int
    """Bytes of the files of the pictures that were kept."""
    psnr_db: float
    """Mean peak signal-to-noise ratio of what codes make of pictures, held-out ones if there are any."""
    vqgan: Path
    """The file of the VQ-GAN that made the codes."""
    vqgan_sha256: str
    resolution: int
    """Pixels on a side of the pictures that the VQ-GAN encodes."""
    captions: tuple[str, ...]
    """Some captions that were kept, to be looked at."""
    rate: float
    """Rows of the source that this call did a second."""
    repository: str | None = None
    """Data set on the Hub."""
    revision: str | None = None
    """The commit there that has all of it, for a run's card."""

    @property
    def rows(self) -> int:
        """Rows of all splits."""
        return sum(manifest.rows for manifest in self.manifests.values())

    @property
    def bytes(self) -> int:
        """Bytes of the files of all splits."""
        return sum(manifest.size for manifest in self.manifests.values())

    @property
    def share_kept(self) -> float:
        """Share of the source's rows that were kept."""
        return self.rows / max(1, self.rows + sum(self.counts.values()))

    @property
    def data_card(self) -> dict[str, Any]:
        """What a run's card says of its data."""
        place = f"hf://datasets/{self.repository}/" if self.repository else ""
        return {
            **{split: f"{place}{split}" for split in self.manifests},
            "revision": self.revision,
            "manifest": self.manifests["train"].sha256 if "train" in self.manifests else None,
            "format": asdict(next(iter(self.manifests.values())).format),
        }


def prepare_dataset(
    source: str | Path,
    out: str | Path,
    *,
    vqgan: str | Path,
    filters: Filters | None = None,
    push_to: str | None = None,
    token: str | None = None,
    **settings: Any,
) -> Prepared:
    """Make a data set of codes of pictures with captions in the folder `out`, and send it to `push_to` on the Hub.

    `source` is a folder of pictures with captions in text files, WebDataset tars, tables in Parquet or CSV, or
    "hf://datasets/owner/name/folder"; `vqgan` the file of a VQ-GAN, or "train" for one that is trained on the pictures;
    `settings` are the fields of PrepareSettings; and `token` is a Hub token, without which huggingface_hub looks for
    one. Where the same call was broken off, by a kill too, it goes on; where the source has new files, it adds theirs.

    Raises ValueError for what cannot be prepared, PermissionError if the Hub refuses, ConnectionError if it or a source
    cannot be reached, and ImportError if a package is missing.
    """
    chosen, filters, out = PrepareSettings(**settings), filters or Filters(), Path(out)
    if not chosen.keep_local and push_to is None:
        raise ValueError("keep_local is off, but nothing is sent anywhere: name a repository as push_to, OWNER/NAME.")
    if push_to is not None and push_to.count("/") != 1:
        raise ValueError(f"expected a repository as push_to, OWNER/NAME, but got {push_to!r:.100}.")
    require_installed(PACKAGES | (_TRAINING if vqgan == TRAIN else {}))
    require_writable(out, "out")
    if vqgan != TRAIN and not Path(vqgan).is_file():
        raise ValueError(f"expected the file of a VQ-GAN or {TRAIN!r}, but there is no file {str(vqgan)!r}.")
    if out.exists() and not (out / WORK).exists() and (there := next(out.iterdir(), None)):
        raise ValueError(f"expected a new folder, or one that was begun by the same call, but {out} has {there.name}.")

    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise ValueError(f"expected out outside of the source, which would grow by what is made of it, but got {out}.")

    from filelock import FileLock, Timeout

    from dalle_lib.streaming.prepare.making import Making

    (out / WORK).mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / WORK / "lock", timeout=0), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="PIL")  # what damaged pictures' metadata are like
            return Making(source, out, vqgan, filters, chosen, push_to, token).run()
    except Timeout as error:
        raise ValueError(f"another program is preparing {out} just now: let it end, or end it.") from error
