"""WebDataset tars: members with the same name up to its first dot are one pair."""

import json
import tarfile
import zlib
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.layouts import MAX_CAPTION_BYTES
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, SUFFIXES, Unusable
from dalle_lib.streaming.prepare.sources import ROW_BYTES, Files, Pair, Row, Unit

MAX_JSON_BYTES = 2**20


class Tars:
    """Tars whose members are pictures (`000.jpg`), captions (`000.txt`) and what else is known (`000.json`)."""

    is_permuted, are_rows = False, False

    def __init__(self, files: Files) -> None:
        """Raises ValueError if the first pair of the first tar has no picture, or no caption."""
        self._files = files
        self.about: dict[str, object] = {"kind": "tars", **files.about}
        self.revision = files.revision
        first = next(files.units(), None)
        pair = self._first(first.name) if first else None
        if pair is None:
            raise ValueError("expected tars with members such as 000.jpg and 000.txt, but found no pair of those.")
        self.tells = ("width", "height", "nsfw") if pair.nsfw is not None else ("width", "height")

    def units(self) -> Iterator[Unit]:
        """Yield the tars."""
        yield from self._files.units()

    def rows(self, name: str, start: int) -> Iterator[Row]:
        """Yield the pairs of a tar from number `start` on."""
        with self._files.open(name) as path:
            yield from _rows(path, name, start)

    def close(self) -> None:
        """Do nothing: each file is closed when it has been read."""

    def _first(self, name: str) -> Pair | None:
        """Return the first pair with a picture and a caption among the first few of a tar."""
        with self._files.open(name, keep=True) as path:
            for row in islice(_rows(path, name, 0), 20):
                try:
                    pair = row.load()
                except Unusable:
                    continue
                if pair.caption is not None:
                    return pair
        return None


def _rows(path: Path, name: str, start: int) -> Iterator[Row]:
    try:
        with tarfile.open(path) as tar:
            files = (member for member in tar if member.isfile())
            for number, (_, members) in enumerate(groupby(files, lambda member: _key(member.name))):
                by_suffix = {_suffix(member.name): member for member in members}
                if number >= start:
                    yield _row(tar, by_suffix)
                tar.members.clear()  # it would keep them all
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        raise BrokenFile(f"{name} cannot be read as a tar to its end ({in_one_line(error):.200}).") from error


def _row(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> Row:
    picture = next((_content(tar, member, MAX_BYTES) for suffix, member in members.items() if suffix in SUFFIXES), None)
    text, told = members.get(".txt"), members.get(".json")
    caption = _content(tar, text, MAX_CAPTION_BYTES) if text else None
    about = _content(tar, told, MAX_JSON_BYTES) if told else b"{}"
    return Row(lambda: _pair(picture, caption, about), ROW_BYTES + len(picture or b""))


def _pair(picture: bytes | None, caption: bytes | None, about: bytes) -> Pair:
    if picture is None:
        raise Unusable("no picture")
    try:
        told = json.loads(about)
    except (ValueError, RecursionError) as error:
        raise Unusable("broken JSON") from error
    return pair_of(picture, caption, told if isinstance(told, dict) else {})


def pair_of(picture: bytes, caption: bytes | str | None, told: dict) -> Pair:
    """Return a pair, with what img2dataset's columns tell of it; the caption may be among them."""
    if caption is None:
        caption = told.get("caption")
    width, height = told.get("original_width"), told.get("original_height")
    if not (type(width) is int and type(height) is int):
        width = height = None
    nsfw = next((told[name] for name in ("NSFW", "nsfw") if name in told), None)
    is_text = isinstance(caption, (bytes, str))
    return Pair(picture, caption if is_text else None, None if nsfw is None else str(nsfw)[:100], width, height)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    """Return what a member holds, but only one byte more than `most`. Raises EOFError if the tar ends in it."""
    data = tar.extractfile(member).read(most + 1)
    if len(data) < min(member.size, most + 1):
        raise EOFError(f"it ends within {member.name}")
    return data


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('.')[0]}"


def _suffix(name: str) -> str:
    return "." + name.rpartition("/")[2].rpartition(".")[2].lower()
