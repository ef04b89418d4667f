"""Drawing codes from the model, one at a time."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dalle_lib.model.dalle import DALLE
from dalle_lib.model.transformer import History


def keep_likely(logits: Float[Tensor, "batch vocab"], top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Return `logits` with -inf for all but the `top_k` best (0: all), and of those the first that reach `top_p`.

    The code whose probability crosses `top_p` is kept, ties with the k-th best are kept, and `top_p` = 0 keeps the
    best alone. Source: nucleus sampling, arXiv:1904.09751.
    """
    if top_k > 0:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
        before[:, 0] = 0
        drop = before > top_p
        logits = logits.masked_fill(drop.scatter(1, order, drop), -torch.inf)
    return logits


def code_probabilities(
    logits: Float[Tensor, "batch vocab"], top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0
) -> Float[Tensor, "batch vocab"]:
    """Return the probabilities to draw from: filtered first, then softened by `temperature`."""
    return (keep_likely(logits, top_k, top_p) / temperature).softmax(-1)


@torch.no_grad()
def generate(
    model: DALLE,
    text: Int[Tensor, "batch text"],
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    guidance: float = 1.0,
    seed: int | None = None,
    length: int | None = None,
    progress: Callable[[Tensor], None] | None = None,
) -> Int[Tensor, "batch codes"]:
    """Return the codes of one picture for each caption.

    `top_p` = 0 is greedy. `guidance` = 1 draws from the model as it is; larger values push away from what it would
    draw without a caption. `seed` makes the result repeatable on one device. `progress` gets the codes drawn so far,
    [batch, codes], after each one. `length` stops after so many codes.

    Raises ValueError for a setting out of its range.
    Source: classifier-free guidance, arXiv:2207.12598.
    """
    if top_k < 0 or not 0 <= top_p <= 1 or temperature <= 0 or guidance < 0:
        raise ValueError(
            f"expected top_k >= 0, 0 <= top_p <= 1, temperature > 0 and guidance >= 0, but got top_k={top_k}, "
            f"top_p={top_p}, temperature={temperature}, guidance={guidance}. For greedy drawing set top_p=0."
        )
    generator = torch.Generator(text.device)
    generator.seed() if seed is None else generator.manual_seed(seed)
    guided = guidance != 1
    x = model.embed_text(torch.cat([text, torch.zeros_like(text)]) if guided else text)
    histories = [History() for _ in model.transformer.blocks]
    drawn: list[Tensor] = []
    while len(drawn) < (length or model.config.image_length):
        logits = model.next_code_logits(x, histories)
        if guided:
            conditional, null = logits.chunk(2)
            logits = null + (conditional - null) * guidance
        probabilities = code_probabilities(logits, top_k, top_p, temperature)
        drawn.append(torch.multinomial(probabilities, 1, generator=generator))
        x = model.embed_codes(drawn[-1].repeat(2, 1) if guided else drawn[-1])
        if progress is not None:
            progress(torch.cat(drawn, dim=1))
    return torch.cat(drawn, dim=1)
