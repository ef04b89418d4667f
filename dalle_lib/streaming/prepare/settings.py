"""How a data set is prepared. Imports nothing heavy, because the command line takes its options from here."""

import importlib.util
import math
from dataclasses import dataclass
from typing import Literal

from dalle_lib.streaming.layouts import LayoutName

Kind = Literal["pictures", "tars", "tables"]
"""What a source is: a folder of pictures, WebDataset tars, or tables in Parquet or CSV."""
Fit = Literal["crop", "pad"]
"""How a picture becomes a square: its middle is taken, or the whole of it, between white borders."""
PACKAGES = {"PIL": "pillow", "imagehash": "ImageHash", "taming": "taming-transformers-rom1504", "einops": "einops"}
"""Modules that preparing needs beside what the kit always has, and the packages that bring them."""


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """How pictures with captions become a data set of codes. Raises ValueError for what cannot be."""

    held_out: float = 0.01
    """Share of the pictures that is never trained on. Pictures with the same perceptual hash are on the same side."""
    drop_duplicates: bool = False
    """Leave out each picture with the perceptual hash of an earlier one; otherwise such pictures are only counted."""
    format: LayoutName = "own"
    """The columns of the files: the kit's own, those of the paper's data set, or those with each value compressed."""
    rows_per_group: int = 1000
    """Rows of a row group, which a reader fetches and holds as one."""
    groups_per_shard: int = 100
    """Row groups of a file. Choose fewer where there would be less than a file for each peer."""
    fit: Fit = "crop"
    """Make a picture square by taking its middle, or with "pad" by white borders around the whole of it."""
    kind: Kind | None = None
    """What the source is; None looks: pictures with text files of the same names, then tars, then Parquet or CSV."""
    captions_from_names: bool = False
    """For a folder of pictures: make captions of their names, red-apple.png is "red apple"; text files are not read."""
    image_column: str | None = None
    """The column of a table that holds pictures, or their paths or URLs; None takes one of the usual names."""
    caption_column: str | None = None
    """The column of a table that holds captions; None takes one of the usual names."""
    picture_folder: str | None = None
    """The folder in which a table's paths are looked for, and out of which none may lead; None takes the table's."""
    local_urls: bool = False
    """Fetch pictures of this machine and its own network, too. Turn it on for a table that you made yourself only:
    another's could have pictures published that only you can see."""
    skip_unreached: bool = False
    """Count URLs as left out, however many in a row cannot be reached. Turn it on where the work stops though this
    machine is online."""
    revision: str | None = None
    """Commit or branch of a source on the Hub; None takes the newest, and stays with it when the work goes on."""
    preview: int = 100
    """Rows of the split `preview`, which the Hub shows with their pictures; 0 publishes no picture at all."""
    license: str = "unknown"
    """License of the captions and pictures, as the Hub names it, for the data set's card."""
    batch_size: int = 32
    """Pictures that the VQ-GAN encodes at once. Lower it if memory runs out."""
    workers: int = 4
    """Threads that read, fetch and decode pictures. Raise it, to 64 say, for a source of URLs."""
    device: str | None = None
    """cpu or cuda; None takes a GPU if there is one."""
    keep_local: bool = True
    """Keep each file on this machine after it has been uploaded; otherwise at most two wait here."""
    private: bool = False
    """Make the repository on the Hub a private one, if it is new."""
    train_pictures: int = 2000
    """For a VQ-GAN of one's own: the pictures, from the start of the source, that it is trained on at most."""
    train_steps: int = 600
    """For a VQ-GAN of one's own: batches that its decoder is trained on."""
    train_resolution: int = 64
    """For a VQ-GAN of one's own: pixels on a side of its pictures."""
    train_factor: int = 4
    """For a VQ-GAN of one's own: pixels on a side of what a code stands for. With 8, a picture has a quarter as many
    codes as with 4, which keep less of it."""
    train_codebook: int = 2048
    """For a VQ-GAN of one's own: the number of its codes."""

    def __post_init__(self) -> None:
        self._require("held_out", 0 <= self.held_out < 1, "be a share from 0 to below 1")
        sizes = ("rows_per_group", "groups_per_shard", "batch_size", "workers")
        for name in (*sizes, "train_pictures", "train_resolution", "train_factor", "train_codebook"):
            size = getattr(self, name)
            self._require(name, type(size) is int and 1 <= size <= 10**6, "be a whole number from 1 to a million")
        for name, most in ("preview", 1000), ("train_steps", 10**7):
            size = getattr(self, name)
            self._require(name, type(size) is int and 0 <= size <= most, f"be a whole number from 0 to {most:,}")
        is_line = self.license.isprintable() and 0 < len(self.license) <= 100
        self._require("license", is_line, "be a name such as cc-by-4.0 or unknown")

    def _require(self, name: str, is_right: bool, what: str) -> None:
        value = getattr(self, name)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not (is_right and is_finite):
            raise ValueError(f"{name} must {what}, but is {value!r:.60}.")

    @property
    def rows_per_shard(self) -> int:
        """Rows of a file, but for the last."""
        return self.rows_per_group * self.groups_per_shard

    @property
    def lasting(self) -> dict[str, object]:
        """What must stay the same when the work on a data set goes on, or later rows are added to it."""
        names = ("held_out", "drop_duplicates", "format", "rows_per_group", "groups_per_shard", "fit")
        return {name: getattr(self, name) for name in (*names, "image_column", "caption_column", "preview")}


def require_installed(packages: dict[str, str] = PACKAGES) -> None:
    """Raise ImportError, which names the command that helps, if a package that preparing needs is missing."""
    if missing := [name for module, name in packages.items() if importlib.util.find_spec(module) is None]:
        raise ImportError(
            f'preparing a data set needs {", ".join(missing)}, which is not installed: pip install "dalle-lib[prepare]"'
        )
