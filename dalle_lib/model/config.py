"""The sizes that define a model."""

from dataclasses import dataclass

BODY = ("row", "column", "row", "row")
"""Kinds of attention of blocks 0, 1, 2, 3, repeated with the same weights; the last block is "convolution"."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a model; everything else about its function is fixed."""

    dim: int
    """Width of the two residual streams."""
    depth: int
    """Number of blocks; each is one attention and one feed-forward layer."""
    heads: int
    """Attention heads."""
    dim_head: int
    """Width of one head; heads x dim_head need not equal dim."""
    text_length: int
    """Text tokens of each caption, padding included."""
    text_vocab: int
    """Size of the tokenizer's vocabulary."""
    image_vocab: int
    """Size of the VQ-GAN's codebook."""
    grid: int
    """Side of the square of codes that makes a picture."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not isinstance(size := getattr(self, name), int) or size < 1:
                raise ValueError(f"ModelConfig.{name} must be a positive whole number, but is {size!r}.")
        if self.dim % 4:
            raise ValueError(f"ModelConfig.dim must be divisible by 4 (token shift moves quarters), but is {self.dim}.")
        if self.dim_head % 2 or self.dim_head < 12:
            raise ValueError(
                f"ModelConfig.dim_head must be even and at least 12 (rotary angles need two frequencies a group), "
                f"but is {self.dim_head}."
            )
        if self.depth < 2 or self.grid < 2:
            raise ValueError(f"ModelConfig needs depth >= 2 and grid >= 2, but has {self.depth} and {self.grid}.")

    @property
    def image_length(self) -> int:
        """Codes of a picture."""
        return self.grid**2

    @property
    def text_part(self) -> int:
        """Positions that attend to text only: the start token and the text."""
        return self.text_length + 1

    @property
    def length(self) -> int:
        """Longest sequence that the transformer sees; the last code is only ever predicted."""
        return self.text_length + self.image_length

    @property
    def text_rows(self) -> int:
        """Rows of the embedding table for text: the vocabulary, then one padding token for each position."""
        return self.text_vocab + self.text_length

    @property
    def rows(self) -> int:
        """Rows of the embedding table, text first, then codes."""
        return self.text_rows + self.image_vocab

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of attention of each block."""
        return (*(BODY[i % len(BODY)] for i in range(self.depth - 1)), "convolution")

    @property
    def weight_sets(self) -> tuple[int, ...]:
        """The number of the attention's and the feed-forward layer's weights in each block; the last has its own."""
        return (*(i % len(BODY) for i in range(self.depth - 1)), min(len(BODY), self.depth - 1))

    @classmethod
    def paper(cls) -> "ModelConfig":
        """The model of arXiv:2207.03481: 64 layers made of five sets of weights."""
        return cls(
            dim=1024, depth=64, heads=16, dim_head=64, text_length=256, text_vocab=32100, image_vocab=8192, grid=32
        )

    @classmethod
    def emoji(cls) -> "ModelConfig":
        """The embedded run's model: small enough to train on two CPU cores in minutes."""
        return cls(dim=192, depth=5, heads=6, dim_head=32, text_length=16, text_vocab=1024, image_vocab=2048, grid=8)
