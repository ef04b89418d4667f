"""The paper's own model, as its authors published it: where its files are, and how they are read and written."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dalle_lib.checkpoint import load_tensors, require_stored
from dalle_lib.files import reading
from dalle_lib.hub_http import httpx
from dalle_lib.inference.fetching import Download, fetch, hub_file, is_remote, local_file, size_of
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.reference import PREFIX
from dalle_lib.rerank import OPENAI_CLIP
from dalle_lib.streaming import CaptionTokenizer
from dalle_lib.torch_zip import require_plain
from dalle_lib.vqgan import VQGAN, convert_vqgan, load_vqgan

logger = logging.getLogger(__name__)

PAPER = "paper-2021"
"""The name that stands for the paper's published model where a run could be named."""


@dataclass(frozen=True, kw_only=True)
class PaperFiles:
    """Where the parts of the paper's model are: repositories on the Hub, or local folders and files."""

    model: str = "training-transformers-together/dalle-demo-v1"
    """The transformer's checkpoint."""
    vqgan: tuple[str, ...] = (
        "https://heibox.uni-heidelberg.de/d/2e5662443a6b4307b470/files/?p=%2Fckpts%2Flast.ckpt&dl=1",
        "https://heibox.uni-heidelberg.de/f/34a747d5765840b5a99d/?dl=1",
    )
    """Sources of the VQ-GAN, tried in this order. By default, its authors' own server under two addresses."""
    tokenizer: str = "google-t5/t5-small"
    clip: str = OPENAI_CLIP
    config: ModelConfig = field(default_factory=ModelConfig.paper)
    """Sizes that the checkpoint must have."""

    def downloads(self) -> list[Download]:
        """Return what reading the parts would fetch, without fetching it; nothing for parts that are local.

        Raises ConnectionError if the Hub cannot be asked, and ValueError if a repository lacks its part.
        """
        parts = {"model": self.model, "tokenizer": self.tokenizer, "clip": self.clip}
        found = [hub_file(part, source) for part, source in parts.items() if not Path(source).exists()]
        if all(map(is_remote, self.vqgan)) and not _converted().exists():
            found.append(Download("vqgan", self.vqgan[0], size_of(self.vqgan[0]), None))
        return found

    def read_model(self) -> DALLE:
        """Return the transformer, in float32; only tensors are read from its file.

        Raises ValueError if it is no checkpoint in the published layout, and ConnectionError if it cannot be fetched.
        """
        return load_published(local_file(self.model, "model"), self.config)

    def read_tokenizer(self) -> CaptionTokenizer:
        """Return the tokenizer. Raises ValueError if there is none, and ConnectionError if it cannot be fetched."""
        return CaptionTokenizer(local_file(self.tokenizer, "tokenizer"), self.config.text_length)

    def read_vqgan(self) -> VQGAN:
        """Return the VQ-GAN from the first source that has it; its checkpoint is converted once, and the result kept.

        Raises ValueError if a local file is not the VQ-GAN, and ConnectionError, which names each source and what was
        wrong with it, if no source has it.
        """
        failures = []
        for source in self.vqgan:
            try:
                return _vqgan_from(source)
            except (httpx.HTTPError, OSError, ValueError) as error:  # ValueError: servers send pages in place of files
                if not is_remote(source):
                    raise
                failures.append(f"{source}: {type(error).__name__}: {error}")
        raise ConnectionError("the VQ-GAN could not be fetched from any of its sources:\n" + "\n".join(failures))


def load_published(file: str | Path, config: ModelConfig) -> DALLE:
    """Return the model of a checkpoint in the published layout, in float32.

    Only tensors are read from the file. Raises ValueError if it is not such a checkpoint.
    """
    if str(file).endswith(".safetensors"):
        tensors = load_tensors(file)[0]
    else:
        with reading(file, "a checkpoint of torch"):
            require_plain(file)
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(tensors, dict):
            tensors = tensors.get("state_dict", tensors)
        if not isinstance(tensors, dict) or not all(isinstance(x, torch.Tensor) for x in tensors.values()):
            raise ValueError(f"{file} is no checkpoint: expected a dictionary of tensors, by itself or as state_dict.")
        require_stored(file, tensors)
    return DALLE.from_reference(tensors, config).float()


def save_published(file: str | Path, model: DALLE) -> None:
    """Write the model to `file`, a .pt, as the paper's trainer did, so that the paper's own code reads it."""
    torch.save({PREFIX + name: tensor for name, tensor in model.to_reference().items()}, file)


def _vqgan_from(source: str) -> VQGAN:
    if source.endswith(".safetensors"):
        return load_vqgan(source)
    if not is_remote(source):
        converted = Path(source).with_suffix(".safetensors")
        if not converted.exists():
            convert_vqgan(source, converted)
    elif not (converted := _converted()).exists():
        checkpoint = fetch(source, converted.with_suffix(".ckpt"))
        try:
            logger.info("VQ-GAN fetched and converted: SHA-256 %s", convert_vqgan(checkpoint, converted))
        finally:
            checkpoint.unlink()
    return load_vqgan(converted)


def _converted() -> Path:
    """Return where the converted VQ-GAN is kept: in the Hub's own cache folder."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "dalle_lib" / "vqgan_gumbel_f8_8192.safetensors"
