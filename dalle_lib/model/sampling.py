"""Drawing codes from the model: one code after the other, in many pictures side by side."""

import math
import secrets
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model.attention import whole_rows
from dalle_lib.model.cache import BlockCache, SlotTable
from dalle_lib.model.dalle import DALLE
from dalle_lib.model.inputs import check_inputs
from dalle_lib.model.linear import linear


def keep_likely(logits: Float[Tensor, "batch vocab"], top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Return `logits` with -inf for codes that are not to be drawn.

    First the `top_k` likeliest are kept (0 keeps all), with ties of the last. Of these, the likeliest are kept until
    their probabilities sum to `top_p`, the one that reaches it included: 0 keeps the likeliest alone, 1 keeps all.
    Source: nucleus sampling, arXiv:1904.09751.
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
    """Return the probabilities to draw from: softmax(kept logits / `temperature`), see `keep_likely`."""
    behind = logits - logits.amax(-1, keepdim=True)  # at most 0, so that a very low temperature makes no infinity
    return (keep_likely(behind, top_k, top_p) / temperature).softmax(-1)


class Sampler:
    """Gives the logits of one code after the other, for `samples` pictures of each of some prompts.

    `start` reads the prompts and the first rows, if there are any; `step` then takes the code that was drawn for each
    picture. Pictures of a prompt are neighbours. What is remembered, in `dtype`, is described in `model.cache`.
    """

    def __init__(self, model: DALLE, prompts: int, samples: int, dtype: torch.dtype | None = None) -> None:
        config, weight = model.config, model.head.weight
        self.model, self.samples = model, samples
        like = weight.new_empty(0, dtype=dtype)
        self.caches = [BlockCache(kind, config, prompts, samples, like) for kind in config.kinds]
        self.tables = {kind: SlotTable(kind, config.grid, weight.device) for kind in set(config.kinds)}
        self.turns = model.transformer.rotary(weight.dtype)
        self.cell = torch.zeros(1, dtype=torch.long, device=weight.device)

    @torch.no_grad()
    def start(
        self, text: Int[Tensor, "prompts text"], codes: Int[Tensor, "prompts given"]
    ) -> Float[Tensor, "pictures image_vocab"]:
        """Return the logits of the code that follows the given rows, for each picture.

        Equal sequences are computed once.
        """
        config = self.model.config
        distinct, which = torch.cat([text, codes], dim=1).unique(dim=0, return_inverse=True)
        x = self.model.embed(*distinct.split([config.text_length, codes.shape[1]], dim=1))
        blocks = zip(self.caches, whole_rows(config, x), strict=True)
        mixing = [cache.mix_given(rows, which, self.tables[cache.kind]) for cache, rows in blocks]
        hidden = self.model.transformer.forward_with(x, mixing, self.turns[: x.shape[1]])
        self.cell.fill_(codes.shape[1])
        return self._logits(hidden)[which].repeat_interleave(self.samples, 0)

    @torch.no_grad()
    def step(self, codes: Int[Tensor, "pictures"]) -> Float[Tensor, "pictures image_vocab"]:
        """Return the logits of the code that follows `codes`, the next code of each picture.

        Its shapes and its instructions are the same for every code, so that a recorded step can be replayed.
        """
        slots = {kind: table.at(self.cell) for kind, table in self.tables.items()}
        mixing = [cache.mix_next(slots[cache.kind]) for cache in self.caches]
        turns = self.turns.index_select(0, self.model.config.text_part + self.cell)
        hidden = self.model.transformer.forward_with(self.model.embed_codes(codes[:, None]), mixing, turns)
        self.cell += 1
        return self._logits(hidden)

    def _logits(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch image_vocab"]:
        """Return the logits of the code after the last position."""
        _, code_head = self.model.heads()
        return linear(self.model.norm(hidden[:, -1]), *code_head)


def draw(probabilities: Float[Tensor, "pictures vocab"], uniform: Float[Tensor, "pictures"]) -> Int[Tensor, "pictures"]:
    """Return for each picture the first code up to which the probabilities sum to more than `uniform`.

    `uniform` is in [0, 1) and in float64: then its product with the sum of all is below that sum, rounded or not. Where
    probabilities are no numbers, the last code is returned.
    """
    reached = probabilities.cumsum(-1, dtype=torch.float64)
    goal = uniform[:, None] * reached[:, -1:]
    return torch.searchsorted(reached, goal, right=True).squeeze(1).clamp(max=probabilities.shape[1] - 1)


def generate(
    model: DALLE,
    text: Int[Tensor, "prompts text"],
    *,
    samples: int = 1,
    progress: Callable[[Tensor], None] | None = None,
    **settings,
) -> Int[Tensor, "prompts samples codes"]:
    """Return the codes of `samples` pictures of each prompt.

    `progress` is called after each row with the codes drawn so far, [prompts, samples, codes so far]. The other
    settings and the errors are those of `generate_rows`.
    """
    for codes in generate_rows(model, text, samples=samples, **settings):
        if progress is not None:
            progress(codes)
    return codes


def generate_rows(
    model: DALLE,
    text: Int[Tensor, "prompts text"],
    *,
    samples: int = 1,
    first_sample: int = 0,
    first_codes: Int[Tensor, "prompts given"] | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    guidance: float = 1.0,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[Int[Tensor, "prompts samples codes"]]:
    """Return an iterator that gives the codes of `samples` pictures of each prompt so far, after each row of codes.

    - `top_k`, `top_p`: each code is drawn among the `top_k` likeliest (0: all), and of those among the likeliest that
      together have the probability `top_p` (0: the likeliest alone). Lower them if pictures fall apart.
    - `temperature`: logits are divided by it. Raise it for more variety.
    - `guidance`: logits are null + (conditional - null) x guidance, where null are those without a caption. 1 draws
      from the model as it is, at half the work. Raise it if pictures ignore their captions.
    - `first_codes`: the first rows of the pictures, the same for all pictures of a prompt.
    - `seed`, `first_sample`: picture i of a prompt depends on (`seed`, i) alone, and not on how many are drawn beside
      it, so `first_sample` = i draws it again. (Where two codes are equally likely, rounding may decide.) Without a
      seed, each call draws other pictures.
    - `dtype`: of the remembered keys and values; the model's unless given. Half precision halves the memory that
      `cache_bytes` gives.

    Raises ValueError for a setting out of its range, before any work, and FloatingPointError after a row in which the
    model's logits were not finite.
    Sources: classifier-free guidance, arXiv:2207.12598, section 3; what each block remembers: `model.cache`.
    """
    if first_codes is None:
        first_codes = text.new_zeros(len(text), 0)
    check_filters(top_k, top_p, temperature, guidance)
    if samples < 1 or first_sample < 0 or (seed is not None and seed < 0):
        raise ValueError(
            f"expected samples >= 1, first_sample >= 0 and seed >= 0, but got {samples}, {first_sample} and {seed}."
        )
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"expected a floating-point dtype, such as torch.float16, but got {dtype}.")
    check_inputs(model.config, text, first_codes)
    if first_codes.shape[1] == model.config.image_length:
        raise ValueError("first_codes holds whole pictures: nothing is left to draw.")
    seed = secrets.randbits(63) if seed is None else seed
    numbers = range(first_sample, first_sample + samples)
    chances = [np.random.default_rng([seed, i]).random(model.config.image_length) for i in numbers]
    uniform = torch.from_numpy(np.stack(chances)).to(text.device).T.repeat(1, len(text))  # [codes, prompts x samples]
    filters = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    return _rows(model, text, first_codes, samples, uniform, guidance, dtype, filters)


def check_filters(top_k: int, top_p: float, temperature: float, guidance: float) -> None:
    """Raise ValueError, which names the setting, if one of `generate_rows` that chooses codes is out of its range."""
    for is_right, expected, got in (
        (top_k >= 0, "top_k >= 0", f"top_k={top_k}"),
        (0 <= top_p <= 1, "0 <= top_p <= 1", f"top_p={top_p}"),
        (0 < temperature < math.inf, "a finite temperature > 0 (top_p=0 draws greedily)", f"temperature={temperature}"),
        (0 <= guidance < math.inf, "a finite guidance >= 0", f"guidance={guidance}"),
    ):
        if not is_right:
            raise ValueError(f"expected {expected}, but got {got}.")


def _rows(
    model: DALLE,
    text: Tensor,
    first_codes: Tensor,
    samples: int,
    uniform: Float[Tensor, "codes pictures"],
    guidance: float,
    dtype: torch.dtype | None,
    filters: dict[str, float],
) -> Iterator[Tensor]:
    config, prompts, given = model.config, len(text), first_codes.shape[1]
    if is_guided := guidance != 1:  # each prompt a second time, without its caption
        text, first_codes = torch.cat([text, torch.zeros_like(text)]), first_codes.repeat(2, 1)
    sampler = Sampler(model, len(text), samples, dtype)
    logits = sampler.start(text, first_codes)
    codes = first_codes[:prompts].repeat_interleave(samples, 0)
    codes = F.pad(codes, (0, config.image_length - given))  # [prompts x samples, codes]
    is_finite = torch.ones((), dtype=torch.bool, device=codes.device)
    for i in range(given, config.image_length):
        if is_guided:
            conditional, null = logits.chunk(2)
            logits = null + (conditional - null) * guidance
        is_finite &= logits.isfinite().all()
        codes[:, i] = draw(
            code_probabilities(logits.to(torch.promote_types(logits.dtype, torch.float32)), **filters), uniform[i]
        )
        if (i + 1) % config.grid == 0:
            if not is_finite:  # asked once a row: each time, a GPU has to wait
                raise FloatingPointError(
                    f"the model's logits in row {i // config.grid} are not finite: its weights are broken (were they "
                    f"saved by a run that diverged?), or {logits.dtype} or guidance={guidance} is too much for them."
                )
            yield codes[:, : i + 1].unflatten(0, (prompts, samples)).clone()
        if i + 1 < config.image_length:
            logits = sampler.step(codes[:, i].repeat(2 if is_guided else 1))
