"""The sizes that define a model, and which blocks share weights."""

from dataclasses import dataclass

BODY = ("row", "column", "row", "row")
"""Kinds of attention of blocks 0 to 3; later blocks repeat these kinds and weights, but the last is "convolution"."""

MAX_SIZES = {"depth": 4096, "grid": 1024, "text_length": 2**16, "image_vocab": 2**16}
"""Sizes beyond which nothing is tried; codes are stored in 16 bits."""
MAX_SIZE = 2**20
"""The same for all other sizes."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a model; nothing else about its function varies. Raises ValueError for sizes that no model can have."""

    dim: int
    """Width of the two residual streams."""
    depth: int
    """Number of blocks; each is one attention and one feed-forward layer."""
    heads: int
    """Attention heads."""
    dim_head: int
    """Width of one head; heads x dim_head need not equal dim."""
    text_length: int
    """Number of text tokens in each caption, padding included."""
    text_vocab: int
    """Size of the tokenizer's vocabulary."""
    image_vocab: int
    """Size of the VQ-GAN's codebook."""
    grid: int
    """Number of rows, and of columns, in the square of codes that makes a picture."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            size, most = getattr(self, name), MAX_SIZES.get(name, MAX_SIZE)
            if type(size) is not int or size < 1:
                raise ValueError(f"ModelConfig.{name} must be a positive whole number, but is {size!r}.")
            if size > most:
                raise ValueError(f"ModelConfig.{name} must be at most {most:,}, but is {size:.3g}.")
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
        """Number of codes in a picture."""
        return self.grid**2

    @property
    def text_part(self) -> int:
        """Number of positions that attend to text only: the start token and the caption."""
        return self.text_length + 1

    @property
    def length(self) -> int:
        """Number of positions that predict something: the last code does not, as nothing follows it."""
        return self.text_length + self.image_length

    @property
    def text_rows(self) -> int:
        """Number of rows for text in the embedding table: its vocabulary, then a padding token for each position."""
        return self.text_vocab + self.text_length

    @property
    def rows(self) -> int:
        """Number of rows in the embedding table: first those for text, then those for codes."""
        return self.text_rows + self.image_vocab

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of attention of each block."""
        return (*(BODY[i % len(BODY)] for i in range(self.depth - 1)), "convolution")

    @property
    def weight_sets(self) -> tuple[int, ...]:
        """Which attention and which feed-forward layer each block uses; the last block has its own."""
        return (*(i % len(BODY) for i in range(self.depth - 1)), min(len(BODY), self.depth - 1))

    @classmethod
    def paper(cls) -> "ModelConfig":
        """The model of arXiv:2207.03481: 64 layers made of five sets of weights."""
        return cls(
            dim=1024, depth=64, heads=16, dim_head=64, text_length=256, text_vocab=32100, image_vocab=8192, grid=32
        )

    @classmethod
    def emoji(cls) -> "ModelConfig":
        """The model of `emoji-mini`, small enough to train on a CPU in minutes; that of `emoji` has a grid of 16."""
        return cls(dim=192, depth=5, heads=6, dim_head=32, text_length=16, text_vocab=1024, image_vocab=2048, grid=8)
