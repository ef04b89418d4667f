"""A folder of pictures, each with its caption in a text file of the same name."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dalle_lib.streaming.layouts import MAX_CAPTION_BYTES
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, SUFFIXES, Unusable
from dalle_lib.streaming.prepare.sources import Pair, Row, Unit

CAPTION = ".txt"


class PictureFolder:
    """Pictures in a folder and the folders in it: `cat.jpg` has its caption in `cat.txt`."""

    is_permuted, are_rows = True, True
    tells, revision = ("width", "height"), None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.about: dict[str, object] = {"kind": "pictures"}

    def units(self) -> Iterator[Unit]:
        """Yield the pictures, of one folder after the other. Raises ValueError if none of them has a caption."""
        pictures = captions = 0
        for place, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            texts = {name for name in names if name.endswith(CAPTION)}
            for name in names:
                if name.startswith(".") or not name.lower().endswith(SUFFIXES):
                    continue
                file, text = Path(place, name), Path(name).stem + CAPTION
                stat, told = file.stat(), None
                if text in texts:
                    told = Path(place, text).stat()
                stamps = [f"{one.st_size} {one.st_mtime_ns}" if one else "none" for one in (stat, told)]
                pictures, captions = pictures + 1, captions + (told is not None)
                yield Unit(file.relative_to(self._folder).as_posix(), stat.st_size, ", ".join(stamps))
        if not captions:
            missing = f"none of its {pictures:,} pictures has one" if pictures else "it has no pictures"
            raise ValueError(
                f"expected pictures in {self._folder}, each with its caption in a text file of the same name (cat.jpg "
                f"and cat.txt), but {missing}."
            )

    def rows(self, name: str, start: int) -> Iterator[Row]:
        """Yield the one row that a picture is."""
        if start == 0:
            yield Row(partial(self._read, name))

    def close(self) -> None:
        """Do nothing: each file is closed when it has been read."""

    def _read(self, name: str) -> Pair:
        file = self._folder / name
        try:
            picture = read_bounded(file, MAX_BYTES)
        except OSError as error:
            raise Unusable("picture file not readable") from error
        try:
            caption = read_bounded(file.with_suffix(CAPTION), MAX_CAPTION_BYTES)
        except FileNotFoundError:
            caption = None
        return Pair(picture, caption)


def has_captions(folder: Path) -> bool:
    """Return whether a folder, or one in it, has a picture with its caption in a text file."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        texts = {Path(name).stem for name in names if name.endswith(CAPTION)}
        if any(Path(name).stem in texts for name in names if name.lower().endswith(SUFFIXES)):
            return True
    return False


def read_bounded(file: Path, most: int) -> bytes:
    """Return what a file holds, but only one byte more than `most`."""
    with open(file, "rb") as handle:
        return handle.read(most + 1)
