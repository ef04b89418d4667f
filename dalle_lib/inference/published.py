"""The paper's own model, as its authors published it: where its files are, what they weigh, and how to read them."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm.auto import tqdm

from dalle_lib.checkpoint import load_tensors
from dalle_lib.files import sha256_of
from dalle_lib.hub_http import httpx
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.reference import PREFIX
from dalle_lib.rerank import OPENAI_CLIP
from dalle_lib.streaming import CaptionTokenizer
from dalle_lib.vqgan import VQGAN, convert_vqgan, load_vqgan

logger = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".pt", ".bin", ".pth")
"""How a checkpoint's name can end, the safest first."""
_AS_IT_IS = {"Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Download:
    """One file that loading would fetch."""

    part: str
    source: str
    bytes: int | None
    """None if its server does not say."""
    sha256: str | None
    """What the Hub says it is; a download that differs is refused."""
    is_here: bool = False
    """Whether the Hub's cache on this machine holds it already."""


@dataclass(frozen=True, kw_only=True)
class PaperFiles:
    """Where the parts are: repositories on the Hub or local folders and files."""

    model: str = "training-transformers-together/dalle-demo-v1"
    vqgan: tuple[str, ...] = (
        "https://heibox.uni-heidelberg.de/d/2e5662443a6b4307b470/files/?p=%2Fckpts%2Flast.ckpt&dl=1",
        "https://heibox.uni-heidelberg.de/f/34a747d5765840b5a99d/?dl=1",
    )
    """Tried in this order: the VQ-GAN's authors' own server under two addresses."""
    tokenizer: str = "google-t5/t5-small"
    clip: str = OPENAI_CLIP
    config: ModelConfig = field(default_factory=ModelConfig.paper)

    def downloads(self) -> list[Download]:
        """Return what loading would fetch, without fetching it; nothing for parts that are local."""
        parts = {"model": self.model, "tokenizer": self.tokenizer, "clip": self.clip}
        found = [hub_file(part, source) for part, source in parts.items() if not Path(source).exists()]
        if all(map(_is_remote, self.vqgan)) and not _converted().exists():
            found.append(Download("vqgan", self.vqgan[0], _length(self.vqgan[0]), None))
        return found

    def load_model(self) -> DALLE:
        """Return the transformer, in float32; only tensors are read from its file.

        Raises ValueError if it is no checkpoint in the published layout, ConnectionError if it cannot be fetched.
        """
        return load_published(_file(self.model, "model"), self.config)

    def load_tokenizer(self) -> CaptionTokenizer:
        """Return the tokenizer. Raises ValueError or ConnectionError as `load_model` does."""
        return CaptionTokenizer(_file(self.tokenizer, "tokenizer"), self.config.text_length)

    def load_vqgan(self) -> VQGAN:
        """Return the VQ-GAN from the first source that can be had; a checkpoint is converted once, and kept so.

        Raises ConnectionError, which names each source and what was wrong with it.
        """
        failures = []
        for source in self.vqgan:
            try:
                return _vqgan_from(source)
            except (httpx.HTTPError, OSError, ValueError) as error:  # ValueError: servers send pages in place of files
                if not _is_remote(source):
                    raise
                failures.append(f"{source}: {type(error).__name__}: {error}")
        raise ConnectionError("the VQ-GAN could not be fetched from any of its sources:\n" + "\n".join(failures))


def load_published(file: str | Path, config: ModelConfig) -> DALLE:
    """Return the model of a checkpoint in the published layout, in float32.

    Only tensors are read from it. Raises ValueError if it is not such a checkpoint.
    """
    if str(file).endswith(".safetensors"):
        tensors = load_tensors(file)[0]
    else:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(tensors, dict):
            tensors = tensors.get("state_dict", tensors)
        if not isinstance(tensors, dict) or not all(isinstance(x, torch.Tensor) for x in tensors.values()):
            raise ValueError(f"{file} is no checkpoint: expected a dictionary of tensors, by itself or as state_dict.")
    return DALLE.from_reference(tensors, config).float()


def save_published(file: str | Path, model: DALLE) -> None:
    """Write the model to `file`, a .pt, as the paper's trainer did, so that the paper's own code reads it."""
    torch.save({PREFIX + name: tensor for name, tensor in model.to_reference().items()}, file)


def hub_file(part: str, repository: str, name: str | None = None) -> Download:
    """Return what is known of a file on the Hub; without a name, of the one that holds the part.

    Raises ConnectionError if the Hub cannot be asked, ValueError if the repository has no such file.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        siblings = HfApi().model_info(repository, files_metadata=True).siblings
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"{repository} on the Hub cannot be reached: {type(error).__name__}: {error}") from error
    files = {file.rfilename: file for file in siblings}
    file = files[name if name in files else _choose(list(files), part, repository)]
    is_here = isinstance(try_to_load_from_cache(repository, file.rfilename), str)
    return Download(part, f"{repository}/{file.rfilename}", file.size, file.lfs and file.lfs.sha256, is_here)


def _vqgan_from(source: str) -> VQGAN:
    if source.endswith(".safetensors"):
        return load_vqgan(source)
    if not _is_remote(source):
        converted = Path(source).with_suffix(".safetensors")
        if not converted.exists():
            convert_vqgan(source, converted)
    elif not (converted := _converted()).exists():
        checkpoint = _fetch(source, converted.with_suffix(".ckpt"))
        try:
            logger.info("VQ-GAN fetched and converted: SHA-256 %s", convert_vqgan(checkpoint, converted))
        finally:
            checkpoint.unlink()
    return load_vqgan(converted)


def _file(source: str, part: str) -> Path:
    """Return the local path of a part: a file, the right file of a folder, or fetched from the Hub."""
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


def _choose(names: list[str], part: str, source: str) -> str:
    """Return the name of the file to use."""
    if part == "tokenizer" and "tokenizer.json" in names:
        return "tokenizer.json"
    for ending in _WEIGHTS if part != "tokenizer" else ():
        if found := sorted(name for name in names if name.endswith(ending)):
            return found[0]
    wanted = "tokenizer.json" if part == "tokenizer" else f"a file that ends in one of {', '.join(_WEIGHTS)}"
    raise ValueError(f"{source} holds no {part}: expected {wanted}, but found {', '.join(sorted(names)) or 'nothing'}.")


def _converted() -> Path:
    """Where the converted VQ-GAN is kept: in the Hub's own cache folder."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "dalle_lib" / "vqgan_gumbel_f8_8192.safetensors"


def _is_remote(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def _length(url: str) -> int | None:
    try:
        length = httpx.head(url, follow_redirects=True, timeout=10).headers.get("content-length")
    except httpx.HTTPError as error:
        logger.info("%s: %s", url, error)
        return None
    return int(length) if length else None


def _fetch(url: str, file: Path) -> Path:
    """Download `url` to `file`, whole or not at all, and return it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".unfinished")
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=30, headers=_AS_IT_IS) as response,
            open(unfinished, "wb") as handle,
        ):
            response.raise_for_status()
            expected = int(response.headers.get("content-length", 0)) or None
            with tqdm(total=expected, unit="B", unit_scale=True, desc=file.name) as bar:
                for part in response.iter_bytes():
                    bar.update(handle.write(part))
        if expected is not None and (found := unfinished.stat().st_size) != expected:
            raise ConnectionError(f"{url} broke off: expected {expected} bytes, got {found}. Try again.")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return file
