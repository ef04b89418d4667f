"""What may be shown to a model: captions and codes whose shapes and ids its configuration has."""

from torch import Tensor, int64

from dalle_lib.model.config import ModelConfig


def check_inputs(config: ModelConfig, text: Tensor, *pictures: Tensor) -> None:
    """Raise ValueError unless a model of this configuration can be shown `text` and each tensor of codes.

    Expected shapes: `text` [batch, text_length], with a batch of at least 1; codes [batch, rows x grid], with 0 to
    `grid` whole rows of codes.
    Both hold ids as int64, below the size of their vocabulary.
    """
    if text.ndim != 2 or text.shape[1] != config.text_length:
        raise ValueError(f"text must have shape [batch, {config.text_length}], but has {list(text.shape)}.")
    if not len(text):
        raise ValueError("expected at least one caption, but got a batch of 0.")
    for codes in pictures:
        is_whole = codes.ndim == 2 and codes.shape[1] % config.grid == 0 and codes.shape[1] <= config.image_length
        if not is_whole or len(codes) != len(text):
            raise ValueError(
                f"codes must have shape [{len(text)}, rows x {config.grid}], with {config.grid} rows at most and one "
                f"picture for each caption, but has {list(codes.shape)}."
            )
        _check_ids("codes", codes, config.image_vocab)
    _check_ids("text", text, config.text_vocab)


def _check_ids(name: str, ids: Tensor, vocab: int) -> None:
    if ids.dtype != int64:
        raise ValueError(f"{name} must hold ids as torch.int64, but has {ids.dtype}: convert it with .long().")
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
        raise ValueError(
            f"{name} must hold ids from 0 to {vocab - 1}, but has {int(ids.min())} to {int(ids.max())}: "
            f"was it made with another tokenizer or VQ-GAN?"
        )
