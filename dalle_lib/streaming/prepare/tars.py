"""WebDataset tars: neighbours with the same name but for its suffix are one pair."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dalle_lib.files import BrokenFile, require_file
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.layouts import MAX_CAPTION_BYTES
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, SUFFIXES, Unusable
from dalle_lib.streaming.prepare.sources import FIRST_UNITS, ROW_BYTES, Files, Pair, Row, Unit

MAX_JSON_BYTES = 2**20
MAX_PARTS, MAX_PARTS_BYTES = 1000, 2**28
"""Names that may begin with that of one pair, and what they may hold together, beyond which a tar is damaged."""
_MAX_BYTES = {".txt": MAX_CAPTION_BYTES, ".json": MAX_JSON_BYTES, **dict.fromkeys(SUFFIXES, MAX_BYTES)}
"""Bytes beyond which members are not read, by their suffixes; no others are."""
_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Kinds of headers that say more about the next member."""
_MAX_SIDE = 2**31 - 1
"""The largest number that the columns of a data set hold."""


class Tars:
    """Tars whose members are pictures (`000.jpg`), captions (`000.txt`) and what else is known (`000.json`)."""

    is_permuted, are_rows = False, False

    def __init__(self, files: Files) -> None:
        """Raises ValueError if none of the first tars begins with a pair of picture and caption."""
        self._files = files
        self.about: dict[str, object] = {"kind": "tars", **files.about}
        self.revision = files.revision
        firsts = (self._first(unit.name) for unit in islice(files.units(), FIRST_UNITS))
        pair = next((pair for pair in firsts if pair is not None), None)
        if pair is None:
            raise ValueError(
                f"expected tars with members such as 000.jpg and 000.txt, but the first {FIRST_UNITS} tars begin with "
                "no pair of those."
            )
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
        """Return the first pair with a picture and a caption among the first few of a tar, which may be damaged."""
        with self._files.open(name, keep=True) as path, suppress(BrokenFile):
            for row in islice(_rows(path, name, 0), 20):
                with suppress(Unusable):
                    if (pair := row.load()).caption is not None:
                        return pair
        return None


def _rows(path: Path, name: str, start: int) -> Iterator[Row]:
    try:
        require_file(path)
        with tarfile.open(path, tarinfo=_Member) as tar:
            for number, parts in enumerate(_pairs(tar)):
                if number >= start:
                    yield _row(parts)
    except Exception as error:  # tarfile raises what it likes for what strangers made
        raise BrokenFile(f"{name} cannot be read as a tar to its end ({in_one_line(error):.200}).") from error


class _Member(tarfile.TarInfo):
    """The header of a member, from strangers."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> tarfile.TarInfo:
        """Return a header. Raises ReadError if it is damaged, which tarfile would take for the end of the tar."""
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a header of a member is damaged: {error}") from error
        # tarfile would read a long name or an extended header whole, and all that follows where the size is negative.
        if member.size < 0 or (member.type in _EXTENSIONS and member.size > MAX_JSON_BYTES):
            raise tarfile.ReadError(f"a header of a member claims {member.size:,} bytes")
        return member


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the files of a tar. Raises ReadError where it leads back, as with a negative size, and would never end."""
    last = -1
    while (member := tar.next()) is not None:
        if member.offset <= last:
            raise tarfile.ReadError("a member claims that the next one is not behind it")
        last = member.offset
        tar.members.clear()  # it would keep them all
        if member.isfile():
            yield member


def _pairs(tar: tarfile.TarFile) -> Iterator[dict[str, bytes]]:
    """Yield what the members of one pair after the other hold, by their suffixes.

    What belongs to a pair, such as 000.mask.png to 000.jpg, is left out, unless it has a caption of its own. Members
    are read as they come: a compressed tar is unpacked from its start again to go back.
    """
    first, size, parts = "", 0, {}
    try:
        for member in _members(tar):
            stem, suffix = _stem(member.name), _suffix(member.name)
            if not f"{stem}.".startswith(f"{first}.") or suffix in parts.get(stem, ()):
                yield from _with_captions(parts)
                first, size, parts = stem, 0, {}
            part = parts.setdefault(stem, {})
            if (most := _MAX_BYTES.get(suffix)) is not None:
                part[suffix] = _content(tar, member, most)
                size += len(part[suffix])
            if len(parts) > MAX_PARTS or size > MAX_PARTS_BYTES:
                raise tarfile.ReadError(f"more than {MAX_PARTS} names or {MAX_PARTS_BYTES:,} bytes belong to one pair")
    except Exception:
        yield from (part for part in _with_captions(parts) if ".txt" in part or ".json" in part)  # they are whole
        raise
    yield from _with_captions(parts)


def _with_captions(parts: dict[str, dict[str, bytes]]) -> Iterator[dict[str, bytes]]:
    for number, part in enumerate(parts.values()):
        if number == 0 or ".txt" in part:
            yield part


def _row(part: dict[str, bytes]) -> Row:
    picture = next((part[suffix] for suffix in part if suffix in SUFFIXES), None)
    caption, about = part.get(".txt"), part.get(".json", b"{}")
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
    if not all(type(side) is int and 0 < side <= _MAX_SIDE for side in (width, height)):
        width = height = None
    nsfw = next((told[name] for name in ("NSFW", "nsfw") if name in told), None)
    if nsfw is not None:
        nsfw = str(nsfw)[:100].encode(errors="replace").decode()  # JSON can hold halves of letters
    is_text = isinstance(caption, (bytes, str))
    return Pair(picture, caption if is_text else None, nsfw, width, height)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    """Return what a member holds, but only one byte more than `most`. Raises EOFError if the tar ends in it."""
    data = tar.extractfile(member).read(most + 1)
    if len(data) < min(member.size, most + 1):
        raise EOFError(f"it ends within {member.name}")
    return data


def _stem(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.rpartition('.')[0] or file}"


def _suffix(name: str) -> str:
    return "." + name.rpartition("/")[2].rpartition(".")[2].lower()
