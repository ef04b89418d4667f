"""The model: captions and codes in, losses and next-code logits out."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig
from dalle_lib.model.linear import linear
from dalle_lib.model.reference import from_reference_names, to_reference_names
from dalle_lib.model.transformer import Transformer

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


class DALLE(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="dalle-lib",
    repo_url="https://github.com/dalle-lib/dalle-lib",
    paper_url="https://arxiv.org/abs/2207.03481",
    pipeline_tag="text-to-image",
):
    """Decoder-only transformer over a caption's tokens followed by a picture's codes.

    One table embeds text and codes and, with a bias, predicts them. `save_pretrained`, `from_pretrained` and
    `push_to_hub` are the Hub's own, each weight stored once. Source: arXiv:2207.03481.
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
        input_codes: Int[Tensor, "batch shown"] | None = None,
    ) -> DALLEOutput:
        """Return the losses of predicting `text` and `codes`; `input_codes`, if given, are shown in place of `codes`.

        Raises ValueError for shapes or ids that the configuration does not have.
        """
        pictures = [codes] if input_codes is None else [codes, input_codes]
        self.check(text, *pictures)
        for ids in pictures:
            if ids.shape[1] != self.config.image_length:
                wanted = f"codes must have shape [batch, {self.config.image_length}], those shown too"
                raise ValueError(f"{wanted}, but has {list(ids.shape)}.")
        shown = pictures[-1]
        labels = self.pad_uniquely(text)
        # The last code predicts nothing: it is there to fill its row.
        hidden = self.norm(self.transformer(self.embed(text, shown))[:, :-1])
        at_text, at_codes = hidden.split([self.config.text_length, self.config.image_length], dim=1)
        text_head, code_head = self.heads()
        text_logits, image_logits = linear(at_text, *text_head), linear(at_codes, *code_head)
        text_loss = F.cross_entropy(text_logits.flatten(0, 1), labels.flatten())
        image_loss = F.cross_entropy(image_logits.flatten(0, 1), codes.flatten())
        loss = (text_loss + IMAGE_WEIGHT * image_loss) / (1 + IMAGE_WEIGHT)
        return DALLEOutput(loss, text_loss, image_loss, text_logits, image_logits)

    def pad_uniquely(self, text: Int[Tensor, "batch text"]) -> Int[Tensor, "batch text"]:
        """Return `text` with each id 0 replaced by the padding token of its position."""
        padding = self.config.text_vocab + torch.arange(text.shape[1], device=text.device)
        return torch.where(text == 0, padding, text)

    def embed(
        self, text: Int[Tensor, "batch text"], codes: Int[Tensor, "batch codes"]
    ) -> Float[Tensor, "batch seq dim"]:
        """Return the embeddings of the start token, the caption and the codes."""
        ids = torch.cat([F.pad(self.pad_uniquely(text), (1, 0)), codes + self.config.text_rows], dim=1)
        return F.embedding(ids, self.head.weight)

    def embed_codes(self, codes: Int[Tensor, "batch codes"]) -> Float[Tensor, "batch codes dim"]:
        """Return the embeddings of codes alone."""
        return F.embedding(codes + self.config.text_rows, self.head.weight)

    def heads(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return weight and bias of the head for positions that a token follows, and of that for those a code follows.

        The former predict tokens only, the latter codes only: together a third of the whole product.
        """
        rows = [self.config.text_rows, self.config.image_vocab]
        both = (x.split(rows) for x in (self.head.weight, self.head.bias))
        return tuple(zip(*both, strict=True))

    @classmethod
    def from_reference(cls, published: Mapping[str, Tensor], config: ModelConfig) -> "DALLE":
        """Return the model with weights in the published layout, in their dtype; see `model.reference`.

        Raises ValueError if a tensor is missing, unknown, of another shape, or differs between its copies, and for
        other rotary angles.
        """
        model = cls(config)
        tensors = from_reference_names(published, model.state_dict(), config)
        model.to(next(iter(tensors.values())).dtype)
        model.load_state_dict(tensors)
        return model

    def to_reference(self) -> dict[str, Tensor]:
        """Return the weights in the published layout, on the CPU, named as for training; copies share their memory."""
        return to_reference_names({name: tensor.cpu() for name, tensor in self.state_dict().items()}, self.config)

    @classmethod
    def _from_pretrained(cls, *, strict: bool = True, **options) -> "DALLE":
        # The Hub's default is to leave weights that a file lacks as random as they are.
        return super()._from_pretrained(strict=strict, **options)

    def check(self, text: Tensor, *pictures: Tensor) -> None:
        """Raise ValueError unless `text`, and whole rows of codes of as many pictures, can be shown to this model."""
        c = self.config
        if text.ndim != 2 or text.shape[1] != c.text_length:
            raise ValueError(f"text must have shape [batch, {c.text_length}], but has {list(text.shape)}.")
        for codes in pictures:
            if codes.ndim != 2 or len(codes) != len(text) or codes.shape[1] % c.grid or codes.shape[1] > c.image_length:
                raise ValueError(
                    f"codes must have shape [{len(text)}, rows x {c.grid}], {c.grid} rows at most, for as many "
                    f"captions, but has {list(codes.shape)}."
                )
        for name, ids, vocab in ("text", text, c.text_vocab), *(("codes", x, c.image_vocab) for x in pictures):
            if ids.dtype != torch.int64:
                raise ValueError(f"{name} must hold ids as torch.int64, but has {ids.dtype}: turn them by .long().")
            if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
                raise ValueError(
                    f"{name} must hold ids from 0 to {vocab - 1}, but has {int(ids.min())} to {int(ids.max())}: "
                    f"was it made with another tokenizer or VQ-GAN?"
                )
