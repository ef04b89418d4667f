"""How well pictures fit a caption, by CLIP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.files import reading
from dalle_lib.hub_http import require_here_or_hub
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.tokenizer_file import bounded

if TYPE_CHECKING:
    from transformers import CLIPConfig

OPENAI_CLIP = "openai/clip-vit-base-patch32"
"""OpenAI's ViT-B/32, as transformers has it on the Hub."""
OPENAI_CLIP_COMMIT = "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268"
"""The commit of that repository which is used, whatever is put there later."""
MAX_SIDE = 1024
"""Pixels on a side beyond which no CLIP looks at a picture; the largest published ones take 448."""
SHIFT = 1 / 64
"""Part of its width by which a picture is moved to see how far its score depends on what nobody sees."""


class CLIPRanker:
    """Scores pictures against captions: the higher the cosine of their directions, the better they fit.

    Source: arXiv:2103.00020 (CLIP).
    """

    def __init__(
        self,
        source: str | Path = OPENAI_CLIP,
        device: str | torch.device = "cpu",
        revision: str | None = None,
    ) -> None:
        """Load any CLIP that transformers reads, from a folder or, as of the commit `revision`, from the Hub.

        OPENAI_CLIP is as of OPENAI_CLIP_COMMIT unless another commit is named.

        Raises BrokenFile if the folder holds none, and OSError if the Hub gives none.
        """
        if Path(source).is_dir():
            with reading(source, "a CLIP, which chooses among pictures"), _without_words_of_loading():
                self._load(source, None)
        else:
            try:
                if source == OPENAI_CLIP:
                    revision = revision or OPENAI_CLIP_COMMIT
                with _without_words_of_loading():
                    self._load(source, revision)
            except OSError as error:
                raise OSError(
                    f"the CLIP {source}, which chooses among pictures, cannot be loaded: expected its folder, or "
                    f"owner/name on the Hub. To draw without one: --no-clip, or clip=False. {in_one_line(error)}"
                ) from error
        self.model = self.model.to(device).eval().requires_grad_(False)

    def _load(self, source: str | Path, revision: str | None) -> None:
        from transformers import AutoTokenizer, CLIPConfig, CLIPModel
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        if not Path(source).is_dir():
            require_here_or_hub(str(source), "config.json", "try again later", revision)
        config = CLIPConfig.from_pretrained(source, revision=revision)
        side = config.vision_config.image_size
        self.processor = CLIPImageProcessorPil.from_pretrained(source, revision=revision)
        sizes = [*dict(self.processor.size or {}).values(), *dict(self.processor.crop_size or {}).values()]
        if not all(isinstance(size, int) and 0 < size <= MAX_SIDE for size in (side, *filter(None, sizes))):
            raise ValueError(f"expected sizes of at most {MAX_SIDE} pixels, but got {side!r:.20} and {sizes!r:.60}")
        if Path(source).is_dir():
            _require_weights_for(config, Path(source))
        self.model, found = CLIPModel.from_pretrained(
            source, dtype=torch.float32, revision=revision, output_loading_info=True
        )
        if lacking := sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"]))):
            raise ValueError(
                f"expected all weights of its config.json, but it lacks {len(lacking):,}, such as {lacking[0]}"
            )
        if (words := Path(source) / "tokenizer.json").exists():
            bounded(words)
        # Unless it is told not to, transformers asks on the terminal whether it may run code that lies beside a CLIP.
        self.tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)

    @torch.no_grad()
    def score(
        self, caption: str, pictures: UInt8[Tensor, "pictures height width 3"], chunk: int = 32
    ) -> Float[Tensor, "pictures"]:
        """Return the cosine similarity of `caption` and each picture, from -1 to 1, on the CPU.

        `chunk` pictures are in the network at a time.
        """
        return self.embed_pictures(pictures, chunk) @ self.embed_captions([caption])[0]

    def noise(self, caption: str, pictures: UInt8[Tensor, "pictures height width 3"]) -> float:
        """Return by how much scores differ that mean the same: their root mean square change as pictures move a little.

        Each picture is moved by SHIFT of its width, left, right, up and down, so this takes four times as long as
        `score`. Measured with the embedded CLIP: 0.015 to 0.03. Of two pictures whose scores differ by less than 0.04,
        one of which shows the caption, it preferred that one in 57 of 100 cases.
        """
        step = max(1, round(SHIFT * pictures.shape[2]))
        padded = F.pad(pictures.permute(0, 3, 1, 2).float(), (step,) * 4, mode="replicate").permute(0, 2, 3, 1)
        padded = padded.to(pictures.dtype)
        height, width = pictures.shape[1:3]
        places = ((0, step), (2 * step, step), (step, 0), (step, 2 * step))
        moved = torch.cat([padded[:, y : y + height, x : x + width] for y, x in places])
        change = self.score(caption, moved) - self.score(caption, pictures).repeat(len(places))
        return float(change.square().mean().sqrt())

    @torch.no_grad()
    def embed_captions(self, captions: list[str]) -> Float[Tensor, "captions features"]:
        """Return each caption's direction, of length 1, in the space that it shares with pictures, on the CPU.

        Captions that are longer than CLIP takes are cut.
        """
        longest = self.model.config.text_config.max_position_embeddings
        ids = self.tokenizer(captions, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        features = self.model.text_model(
            input_ids=ids["input_ids"].to(self.model.device),
            attention_mask=ids["attention_mask"].to(self.model.device),
        )
        return _direction(self.model.text_projection(features.pooler_output))

    @torch.no_grad()
    def embed_pictures(
        self, pictures: UInt8[Tensor, "pictures height width 3"], chunk: int = 32
    ) -> Float[Tensor, "pictures features"]:
        """Return each picture's direction, of length 1, in the space that it shares with captions, on the CPU.

        `chunk` pictures are in the network at a time.
        """
        directions = []
        for part in pictures.split(chunk):
            pixels = self.processor(list(part.cpu().numpy()), return_tensors="pt")["pixel_values"]
            features = self.model.vision_model(pixel_values=pixels.to(self.model.device))
            directions.append(_direction(self.model.visual_projection(features.pooler_output)))
        return torch.cat(directions)


def _require_weights_for(config: "CLIPConfig", folder: Path) -> None:
    """Raise ValueError if a config.json describes more weights than the files beside it can hold, at a byte each."""
    described, text = 0, config.text_config
    for part, rows in (text, text.vocab_size + text.max_position_embeddings), (config.vision_config, 0):
        width, inner, layers = part.hidden_size, part.intermediate_size, part.num_hidden_layers
        if min(width, inner, layers, rows, config.projection_dim) < 0:
            raise ValueError("its config.json describes fewer than no weights")
        described += width * (layers * (4 * width + 2 * inner) + config.projection_dim + rows)
    held = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if described > held:
        raise ValueError(f"its config.json describes {described:,.0f} weights, more than {held:,} bytes of files hold")


@contextmanager
def _without_words_of_loading() -> Iterator[None]:
    """Hide what transformers says while it loads: names from the files, and a bar; that of downloads stays."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    was_shown, downloads_were_shown = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    loudness = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()  # the Hub's too
    if downloads_were_shown:
        enable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(loudness)
        if was_shown:
            logging.enable_progress_bar()


def _direction(features: Tensor) -> Tensor:
    return F.normalize(features, dim=-1).cpu()
