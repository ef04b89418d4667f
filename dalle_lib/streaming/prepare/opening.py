"""Which kind of source a path or an address names."""

from pathlib import Path

from dalle_lib.names import HUB
from dalle_lib.streaming.prepare.folders import PictureFolder, has_captions
from dalle_lib.streaming.prepare.hub_files import FetchedFiles
from dalle_lib.streaming.prepare.settings import Kind, PrepareSettings
from dalle_lib.streaming.prepare.sources import Files, LocalFiles, Source, files_with
from dalle_lib.streaming.prepare.tables import Tables
from dalle_lib.streaming.prepare.tars import Tars

ICONS = Path(__file__).parents[2] / "assets" / "icons.tar"
"""The kit's own pictures with captions: 213 icons of Tango."""
TARS, TABLES = (".tar", ".tar.gz", ".tgz"), (".parquet", ".csv", ".tsv")


def place_of(source: str | Path) -> Path:
    """Return the path that a source on this machine names; where nothing is called so, "icons" are the kit's own."""
    return ICONS if str(source) == ICONS.stem and not Path(source).exists() else Path(source)


def source_of(
    source: str | Path, settings: PrepareSettings, folder: Path, token: str | None, revision: str | None
) -> Source:
    """Return the source that a path or an hf:// address names; files of the Hub pass through `folder`.

    Raises ValueError if there is no such source, or nothing of its kind in it.
    """

    def tars_or_tables(files: Files, kind: Kind) -> Source:
        return Tars(files) if kind == "tars" else Tables(files, settings)

    is_folder = not str(source).startswith(HUB) and not Path(source).is_file() and settings.kind in (None, "pictures")
    if settings.captions_from_names and not is_folder:
        raise ValueError("captions_from_names is for a folder of pictures: tars and tables have captions of their own.")
    if str(source).startswith(HUB):
        files = FetchedFiles(str(source), revision, folder, token)
        kind = settings.kind or ("tars" if files.ending_with(TARS) else "tables")
        if kind == "pictures":
            raise ValueError("expected tars or tables on the Hub, but kind is pictures: name a folder of this machine.")
        files.keep(TARS if kind == "tars" else TABLES)
        return tars_or_tables(files, kind)
    path = place_of(source)
    if not path.exists():
        raise ValueError(
            f"no source {str(source)!r}: expected a folder of pictures, WebDataset tars, tables in Parquet or CSV, or "
            f"{HUB}owner/name."
        )
    kind = settings.kind or ("pictures" if settings.captions_from_names else _kind_of(path))
    if kind == "pictures":
        return PictureFolder(path, captions_from_names=settings.captions_from_names)
    suffixes = TARS if kind == "tars" else TABLES
    if not (path.name.lower().endswith(suffixes) if path.is_file() else next(files_with(path, suffixes), None)):
        raise ValueError(f"expected files that end with {' or '.join(suffixes)}, but there are none in {path}.")
    return tars_or_tables(LocalFiles(path, suffixes), kind)


def _kind_of(path: Path) -> Kind:
    """Return what is at a path. A folder of pictures with captions may hold a table or a tar of them, too."""
    kinds: dict[Kind, tuple[str, ...]] = {"tars": TARS, "tables": TABLES}
    if path.is_dir() and has_captions(path):
        return "pictures"
    for kind, suffixes in kinds.items():
        if path.name.lower().endswith(suffixes) if path.is_file() else next(files_with(path, suffixes), None):
            return kind
    if path.is_file():
        raise ValueError(f"expected a folder, a tar, or a table in Parquet or CSV, but got {path}.")
    return "pictures"
