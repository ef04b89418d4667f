"""How well pictures fit a caption, by CLIP."""

from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dalle_lib.one_line import in_one_line

OPENAI_CLIP = "openai/clip-vit-base-patch32"
"""OpenAI's ViT-B/32, as transformers has it on the Hub."""


class CLIPRanker:
    """Scores pictures against captions: the higher the cosine of their directions, the better they fit.

    Source: arXiv:2103.00020 (CLIP).
    """

    def __init__(self, source: str | Path = OPENAI_CLIP, device: str | torch.device = "cpu") -> None:
        """Load any CLIP that transformers reads, from a folder or the Hub. Raises OSError if there is none."""
        from transformers import AutoTokenizer, CLIPModel
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        try:
            model = CLIPModel.from_pretrained(source, dtype=torch.float32)
            self.tokenizer = AutoTokenizer.from_pretrained(source)
            self.processor = CLIPImageProcessorPil.from_pretrained(source)
        except OSError as error:
            raise OSError(
                f"the CLIP {source}, which chooses among pictures, cannot be loaded: expected its folder, or "
                f"owner/name on the Hub. {in_one_line(error)}"
            ) from error
        self.model = model.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def score(
        self, caption: str, pictures: UInt8[Tensor, "pictures height width 3"], chunk: int = 32
    ) -> Float[Tensor, "pictures"]:
        """Return the cosine similarity of `caption` and each picture, from -1 to 1, on the CPU.

        `chunk` pictures are in the network at a time.
        """
        return self.embed_pictures(pictures, chunk) @ self.embed_captions([caption])[0]

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


def _direction(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=-1).cpu()
