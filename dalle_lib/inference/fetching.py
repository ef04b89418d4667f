"""Files of a model that are elsewhere: how large they are, whether they are here already, and fetching them."""

import logging
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from dalle_lib.files import replace_file, sha256_of
from dalle_lib.hub_http import httpx
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL, hub_files
from dalle_lib.run.newest import Checkpoint

logger = logging.getLogger(__name__)

WEIGHTS = (".safetensors", ".pt", ".bin", ".pth")
"""Endings of a checkpoint's name, the safest first."""
UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Asks for a file byte by byte, so that its size is that of what arrives."""


@dataclass(frozen=True)
class Download:
    """One file that loading a model fetches."""

    part: str
    """What it is for: model, tokenizer, vqgan or clip."""
    source: str
    """Its URL, or owner/name/file on the Hub."""
    bytes: int | None
    """Its size; None if its server does not say."""
    sha256: str | None
    """Its hash as the Hub names it; a download with another one is refused. None for small files and other servers."""
    is_here: bool = False
    """Whether the Hub's cache on this machine holds it already."""


def downloads_of(card: RunCard, newest: Checkpoint | None = None, *, clip: bool = True) -> list[Download]:
    """Return what loading a run's model fetches from the Hub, with its CLIP if `clip`; nothing beside a local card.

    `newest` is a checkpoint in the place of the card's own.

    Raises ConnectionError if the Hub cannot be asked, and ValueError if a repository lacks a file.
    """
    found = [] if card.clip_is_beside or not clip else [hub_file("clip", card.clip)]
    if newest is not None:
        found.append(hub_file("model", newest.repository, newest.name(MODEL), card.token))
    if card.repository is not None:
        own = card.checkpoint if newest is None else None
        files = {"model": own, "tokenizer": card.tokenizer, "vqgan": card.vqgan}
        found += [
            hub_file(part, card.repository, file.name, card.token) for part, file in files.items() if file is not None
        ]
        if card.clip_is_beside and clip:
            found.append(hub_file("clip", card.repository, f"{card.clip}/model.safetensors", card.token))
    return found


def sizes_of(files: list[Download]) -> tuple[int, int]:
    """Return the bytes that are not here yet, and the bytes of all files."""
    return sum(file.bytes or 0 for file in files if not file.is_here), sum(file.bytes or 0 for file in files)


def hub_file(part: str, repository: str, name: str | None = None, token: str | None = None) -> Download:
    """Return what the Hub knows of a repository's file; without `name`, of the one that holds the part.

    `token` is a Hub token for a private repository. Raises ConnectionError if the Hub cannot be asked, and
    ValueError if the repository has no such file.
    """
    files = hub_files(repository, token)
    name = name if name in files else _choose(list(files), part, repository)
    return Download(part, f"{repository}/{name}", files[name].bytes, files[name].sha256, files[name].is_here)


def local_file(source: str, part: str) -> Path:
    """Return the path of a part's file: `source` itself, the right file of a folder, or fetched from the Hub.

    Raises ValueError if there is no such file or it arrives damaged, and ConnectionError if the Hub cannot be asked.
    """
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir():
        return path / _choose([str(file.relative_to(path)) for file in path.iterdir()], part, source)
    from huggingface_hub import hf_hub_download

    download = hub_file(part, source)
    name = download.source.removeprefix(f"{source}/")
    path = Path(hf_hub_download(source, name))
    if download.sha256 is not None and (found := sha256_of(path)) != download.sha256:
        raise ValueError(
            f"{path} came damaged: expected SHA-256 {download.sha256}, found {found}. Delete it, try again."
        )
    return path


def is_remote(source: str) -> bool:
    """Return whether `source` is a URL."""
    return source.startswith(("https://", "http://"))


def size_of(url: str) -> int | None:
    """Return the bytes of the file behind a URL, or None if its server does not say."""
    try:
        length = httpx.head(url, follow_redirects=True, timeout=10).headers.get("content-length")
    except httpx.HTTPError as error:
        logger.info("%s: %s", url, error)
        return None
    return int(length) if length else None


def fetch(url: str, file: Path) -> Path:
    """Download `url` to `file` with a progress bar, whole or not at all, and return `file`.

    Raises httpx.HTTPError if the server refuses, and ConnectionError if the file breaks off.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file) as unfinished:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=30, headers=UNCOMPRESSED) as response,
            open(unfinished, "wb") as handle,
        ):
            response.raise_for_status()
            expected = int(response.headers.get("content-length", 0)) or None
            with tqdm(total=expected, unit="B", unit_scale=True, desc=file.name) as bar:
                for part in response.iter_bytes():
                    bar.update(handle.write(part))
        if expected is not None and (found := unfinished.stat().st_size) != expected:
            raise ConnectionError(f"{url} broke off: expected {expected} bytes, got {found}. Try again.")
    return file


def _choose(names: list[str], part: str, source: str) -> str:
    """Return which of a repository's or folder's files holds the part."""
    if part == "tokenizer" and "tokenizer.json" in names:
        return "tokenizer.json"
    for ending in WEIGHTS if part != "tokenizer" else ():
        if found := sorted(name for name in names if name.endswith(ending)):
            return found[0]
    wanted = "tokenizer.json" if part == "tokenizer" else f"a file that ends in one of {', '.join(WEIGHTS)}"
    raise ValueError(f"{source} holds no {part}: expected {wanted}, but found {', '.join(sorted(names)) or 'nothing'}.")
