"""Pictures to begin with: those that ship with the kit, and the first ones of any source."""

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.prepare.opening import ICONS, source_of
from dalle_lib.streaming.prepare.reading import Ready, judge
from dalle_lib.streaming.prepare.settings import PrepareSettings
from dalle_lib.streaming.prepare.sources import Source

_SHOWN = 128
"""Pixels on a side of pictures that are looked at."""


def example_pictures(folder: str | Path, *, with_flaws: bool = False) -> Path:
    """Unpack the kit's own pictures, 213 icons with captions in text files, into a folder, and return it.

    `with_flaws` adds four that cannot be used or should not be: one cut off in the middle, one without a caption, one
    much wider than high, and one that is there already under another name.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ICONS) as tar:  # one by one: Python 3.11.2, Debian's, knows no `filter` of `extractall`
        for member in filter(tarfile.TarInfo.isfile, tar):
            (folder / Path(member.name).name).write_bytes(tar.extractfile(member).read())
    if with_flaws:
        _add_flaws(folder)
    return folder


def _add_flaws(folder: Path) -> None:
    """Add what every collection of pictures has some of."""
    from PIL import Image

    icon = (folder / "weather-storm.webp").read_bytes()
    with Image.open(folder / "weather-storm.webp") as picture:
        picture.resize((384, 96)).save(folder / "wide.webp")
    (folder / "cut-off.webp").write_bytes(icon[: len(icon) // 2])
    for name in "no-caption", "again":
        (folder / f"{name}.webp").write_bytes(icon)
    captions = {"wide": "a wide storm", "cut-off": "half a storm", "no-caption": "", "again": "the same storm again"}
    for name, caption in captions.items():
        (folder / f"{name}.txt").write_text(caption, encoding="utf-8")


def first_pictures(
    source: str | Path, count: int = 24, token: str | None = None, *, captions_from_names: bool = False
) -> list[tuple[str, np.ndarray]]:
    """Return captions and pictures, uint8 [128, 128, 3], of the first usable pairs of what `prepare_dataset` takes.

    Raises ValueError if there is no such source, and ConnectionError if it cannot be reached.
    """
    settings = PrepareSettings(captions_from_names=captions_from_names)
    with (
        tempfile.TemporaryDirectory() as passing,
        closing(source_of(source, settings, Path(passing), token, None)) as opened,
    ):
        return list(islice(_usable(opened), count))


def _usable(source: Source) -> Iterator[tuple[str, np.ndarray]]:
    for unit in source.units():
        for row in source.rows(unit.name, 0):
            if isinstance(made := judge(row, Filters(), _SHOWN, tells_nsfw=False), Ready):
                yield made.caption, made.pixels
