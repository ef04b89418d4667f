"""The model: captions and codes in, losses and next-code logits out."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig
from dalle_lib.model.reference import from_reference_names
from dalle_lib.model.transformer import History, Transformer

IMAGE_WEIGHT = 7
"""How many times a code's mean loss counts as much as a text token's."""


@dataclass(frozen=True)
class DALLEOutput:
    """Losses in nats per token, and the logits they come from."""

    loss: Tensor
    text_loss: Tensor
    image_loss: Tensor
    text_logits: Float[Tensor, "batch text text_rows"]
    image_logits: Float[Tensor, "batch codes image_vocab"]

    @property
    def logits(self) -> Float[Tensor, "batch seq rows"]:
        """Logits over all rows of the vocabulary; the lowest number of the dtype where a position cannot predict."""
        lowest = torch.finfo(self.text_logits.dtype).min
        text = F.pad(self.text_logits, (0, self.image_logits.shape[-1]), value=lowest)
        image = F.pad(self.image_logits, (self.text_logits.shape[-1], 0), value=lowest)
        return torch.cat([text, image], dim=1)


class DALLE(nn.Module):
    """Decoder-only transformer over a caption's tokens followed by a picture's codes.

    One table embeds text and codes and, with a bias, predicts them. Source: arXiv:2207.03481.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.rows)

    def forward(
        self,
        text: Int[Tensor, "batch text"],
        codes: Int[Tensor, "batch codes"],
        input_codes: Int[Tensor, "batch codes"] | None = None,
    ) -> DALLEOutput:
        """Return the losses of predicting `text` and `codes`; `input_codes`, if given, are shown in place of `codes`.

        Raises ValueError for shapes or ids that the configuration does not have.
        """
        self._check(text, "text", self.config.text_length, self.config.text_vocab)
        self._check(codes, "codes", self.config.image_length, self.config.image_vocab)
        labels = self.pad_uniquely(text)
        shown = codes if input_codes is None else input_codes
        x = torch.cat([self.embed_text(text), self.embed_codes(shown[:, :-1])], dim=1)
        hidden = self.norm(self.transformer(x))
        text_logits = self.text_logits(hidden[:, : self.config.text_length])
        image_logits = self.image_logits(hidden[:, self.config.text_length :])
        text_loss = F.cross_entropy(text_logits.flatten(0, 1), labels.flatten())
        image_loss = F.cross_entropy(image_logits.flatten(0, 1), codes.flatten())
        loss = (text_loss + IMAGE_WEIGHT * image_loss) / (1 + IMAGE_WEIGHT)
        return DALLEOutput(loss, text_loss, image_loss, text_logits, image_logits)

    def pad_uniquely(self, text: Int[Tensor, "batch text"]) -> Int[Tensor, "batch text"]:
        """Return `text` with each id 0 replaced by the padding token of its position."""
        padding = self.config.text_vocab + torch.arange(text.shape[1], device=text.device)
        return torch.where(text == 0, padding, text)

    def embed_text(self, text: Int[Tensor, "batch text"]) -> Float[Tensor, "batch text_part dim"]:
        """Return the embedded text part: the start token, then the caption."""
        return F.embedding(F.pad(self.pad_uniquely(text), (1, 0)), self.head.weight)

    def embed_codes(self, codes: Int[Tensor, "batch codes"]) -> Float[Tensor, "batch codes dim"]:
        """Return the embedded codes."""
        return F.embedding(codes + self.config.text_rows, self.head.weight)

    def text_logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the text rows of the vocabulary; text positions predict nothing else."""
        rows = self.config.text_rows
        return F.linear(hidden, self.head.weight[:rows], self.head.bias[:rows])

    def image_logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the codebook; the last text position and all codes predict nothing else."""
        rows = self.config.text_rows
        return F.linear(hidden, self.head.weight[rows:], self.head.bias[rows:])

    def next_code_logits(self, x: Float[Tensor, "batch seq dim"], histories: list[History]) -> Tensor:
        """Return the logits of the code after the last position of `x`, which continues `histories`."""
        return self.image_logits(self.norm(self.transformer(x, histories)[:, -1]))

    @classmethod
    def from_reference(cls, state_dict: Mapping[str, Tensor], config: ModelConfig) -> "DALLE":
        """Return the model with weights in the published layout (no `model.` prefix), in their dtype.

        Raises ValueError if a tensor is missing, unknown, of another shape, or differs between its copies.
        """
        model = cls(config)
        tensors = from_reference_names(state_dict, model.state_dict(), config)
        model.to(next(iter(tensors.values())).dtype)
        model.load_state_dict(tensors)
        return model

    def _check(self, ids: Tensor, name: str, length: int, vocab: int) -> None:
        if ids.ndim != 2 or ids.shape[1] != length:
            raise ValueError(f"{name} must have shape [batch, {length}], but has {list(ids.shape)}.")
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
            raise ValueError(
                f"{name} must hold ids from 0 to {vocab - 1}, but has {int(ids.min())} to {int(ids.max())}: "
                f"was it made with another tokenizer or VQ-GAN?"
            )
