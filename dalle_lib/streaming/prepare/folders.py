"""A folder of pictures, each with its caption in a text file of the same name, or in its own name."""

import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from dalle_lib.files import require_file
from dalle_lib.streaming.layouts import MAX_CAPTION_BYTES
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, SUFFIXES, Unusable
from dalle_lib.streaming.prepare.sources import Pair, Row, Unit, size_and_stamp

CAPTIONS = (".txt", ".TXT")


class PictureFolder:
    """Pictures in a folder and the folders in it: `cat.jpg` has its caption in `cat.txt`, or it is "cat"."""

    is_permuted, are_rows = True, True
    tells, revision = ("width", "height"), None

    def __init__(self, folder: Path, *, captions_from_names: bool = False) -> None:
        self._folder, self._from_names = folder, captions_from_names
        self.about: dict[str, object] = {"kind": "pictures"}
        if captions_from_names:
            self.about["captions"] = "names"

    def units(self) -> Iterator[Unit]:
        """Yield the pictures, of one folder after the other. Raises ValueError if none of them has a caption."""
        pictures = captions = 0
        for place, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            texts = {name for name in names if name.endswith(CAPTIONS)}
            for name in names:
                if name.startswith(".") or not name.lower().endswith(SUFFIXES):
                    continue
                file = Path(place, name)
                text = next((file.stem + suffix for suffix in CAPTIONS if file.stem + suffix in texts), None)
                size, stamp = size_and_stamp(file)
                is_read = text is not None and not self._from_names
                told = size_and_stamp(Path(place, text))[1] if is_read else "none"
                pictures, captions = pictures + 1, captions + (text is not None)
                yield Unit(file.relative_to(self._folder).as_posix(), size, f"{stamp}, {told}")
        if not (captions or (self._from_names and pictures)):
            missing = f"none of its {pictures:,} pictures has one" if pictures else "it has no pictures"
            raise ValueError(
                f"expected pictures in {self._folder}, each with its caption in a text file of the same name (cat.jpg "
                f"and cat.txt), but {missing}. With captions_from_names (--captions-from-names), their own "
                "names are taken."
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
        except (OSError, ValueError) as error:
            raise Unusable("picture file not readable") from error
        if self._from_names:
            return Pair(picture, caption_of_name(file.stem))
        text = next((text for suffix in CAPTIONS if (text := file.with_suffix(suffix)).exists()), None)
        try:
            return Pair(picture, read_bounded(text, MAX_CAPTION_BYTES) if text else None)
        except (OSError, ValueError) as error:
            raise Unusable("caption file not readable") from error


def caption_of_name(stem: str) -> str:
    """Return the name of a file, without its suffix, as words: "red-apple_2" is "red apple 2"."""
    return re.sub(r"[\W_]+", " ", stem).strip()


def has_captions(folder: Path) -> bool:
    """Return whether a folder, or one in it, has a picture with its caption in a text file."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        texts = {Path(name).stem for name in names if name.endswith(CAPTIONS)}
        if any(Path(name).stem in texts for name in names if name.lower().endswith(SUFFIXES)):
            return True
    return False


def read_bounded(file: Path, most: int) -> bytes:
    """Return what a file holds, but only one byte more than `most`. Raises ValueError as `require_file` does."""
    require_file(file)
    with open(file, "rb") as handle:
        return handle.read(most + 1)


def count_pictures(place: Path, most: int) -> int:
    """Return how many files of a folder, and of the folders in it, or of a tar, are pictures by their names.

    Counting ends at `most`, and where a tar is cut off: whoever prepares it says so.
    """
    pictures = (name for name in _names_in(place) if name.lower().endswith(SUFFIXES) and not name.startswith("."))
    return sum(1 for _ in islice(pictures, most))


def _names_in(place: Path) -> Iterator[str]:
    if place.is_dir():
        yield from (name for _, _, names in os.walk(place) for name in names)
        return
    with suppress(tarfile.TarError, EOFError, zlib.error), tarfile.open(place) as tar:
        yield from (Path(member.name).name for member in tar)
