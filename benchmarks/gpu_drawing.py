"""Drawing with the paper's model on a GPU, for `paper_gpu.py`: 128 pictures at once, alone, recorded, the plain way."""

import time
from functools import partial

import numpy as np
import torch
from gpu_part import Part
from gpu_train import record
from plain import Plain
from torch import Tensor
from train_step import timed

from dalle_lib.model import DALLE, cache_bytes, generate_rows
from dalle_lib.model.sampling import Sampler, code_probabilities, draw

SAMPLES, PLAIN_SAMPLES, TOP_K = 128, 16, 256


def sample(part: Part) -> None:
    """Measure drawing in fp16; on a processor in float32."""
    torch.manual_seed(0)
    dtype = torch.float16 if part.device == "cuda" else torch.float32
    model = DALLE(part.config).to(part.device, dtype).eval()
    text = torch.randint(1, part.config.text_vocab, (1, part.config.text_length)).to(part.device)
    samples = 4 if part.is_tiny else SAMPLES
    drawn: list[Tensor] = []
    part.attempt("to warm up", partial(rows_drawn, part, model, text, samples, rows=1))
    part.attempt("recorded", lambda: all_recorded(part, model, text, samples, drawn), needs_s=10)
    part.attempt("many", lambda: all_drawn(part, model, text, samples, drawn), needs_s=10)
    part.attempt("one picture", partial(rows_drawn, part, model, text, 1, rows=4), needs_s=4)
    plain = Plain(model)
    for pictures, codes in (PLAIN_SAMPLES, 128), (1, 32), (samples, 32):
        name = f"plain, {pictures} at once, the first {codes} codes"
        part.attempt(name, partial(plain_drawn, part, plain, text, pictures, codes), needs_s=4)


def rows_drawn(part: Part, model: DALLE, text: Tensor, samples: int, rows: int) -> dict[str, float]:
    """Return the time of the first rows of some pictures."""
    stream = generate_rows(model, text, samples=samples, top_k=TOP_K, seed=0)
    first = timed(lambda: next(stream), part.device)
    rest = timed(lambda: [next(stream) for _ in range(rows - 1)], part.device)
    grid, seconds = part.config.grid, rest / (rows - 1) if rows > 1 else first
    return {"seconds of the first row": first, "codes/s": samples * grid / seconds}


def all_drawn(part: Part, model: DALLE, text: Tensor, samples: int, drawn: list[Tensor]) -> dict:
    """Return time and memory of whole pictures, as many rows as time allows, and whether codes are the recorded ones.

    The memory is compared with what `cache_bytes` says.
    """
    part.free()
    if part.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for codes in generate_rows(model, text, samples=samples, top_k=TOP_K, seed=0):
        codes.cpu()  # waits
        seconds = time.perf_counter() - started
        if part.left() < 18:
            break
    rows = codes.shape[-1] // part.config.grid
    weights = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    of_picture, of_prompt = cache_bytes(part.config, model.head.weight.dtype)
    said = samples * of_picture + of_prompt + weights
    found = {"seconds": seconds, "rows": rows, "of rows": part.config.grid, "pictures": samples, **part.peaks()}
    found |= {"codes/s": samples * rows * part.config.grid / seconds, "forecast": said}
    if peak := found.get("allocated"):
        found |= {"error of the forecast": said / peak - 1}
    if drawn:
        found["share of codes as recorded"] = (codes == drawn[0][:, :, : codes.shape[-1]]).float().mean().item()
    return found


def all_recorded(part: Part, model: DALLE, text: Tensor, samples: int, drawn: list[Tensor]) -> dict:
    """Return time and memory of whole pictures where the step of a code is recorded once and replayed."""
    config = part.config
    sampler = Sampler(model, 1, samples)
    numbers = [np.random.default_rng([0, i]).random(config.image_length) for i in range(samples)]
    uniform = torch.from_numpy(np.stack(numbers)).to(part.device).T.contiguous()
    logits, chance = sampler.start(text, text[:, :0]), uniform[0].clone()

    @torch.no_grad()
    def step() -> Tensor:
        codes = draw(code_probabilities(logits.float(), TOP_K), chance)
        logits.copy_(sampler.step(codes))
        return codes

    replay, codes = record(part, step)
    for cache in sampler.caches:
        for remembered in (cache.text, cache.codes, *(x for s in cache.shifts for x in (s.above, s.left))):
            remembered.zero_()
    logits.copy_(sampler.start(text, text[:, :0]))
    all_codes = torch.zeros(1, samples, config.image_length, dtype=torch.long, device=part.device)

    def whole() -> None:
        for i in range(config.image_length):
            chance.copy_(uniform[i])
            replay()
            all_codes[0, :, i] = codes

    if part.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(whole, part.device)
    drawn.append(all_codes)
    return {"seconds": seconds, "pictures": samples, "codes/s": all_codes.numel() / seconds, **part.peaks()}


def plain_drawn(part: Part, plain: Plain, text: Tensor, pictures: int, codes: int) -> dict[str, float]:
    """Return the time and memory of the first codes by benchmarks/plain.py."""
    codes = min(codes, part.config.image_length)
    prompts = text.expand(pictures, -1)
    plain.draw(prompts, 2, TOP_K)
    if part.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(lambda: plain.draw(prompts, codes, TOP_K), part.device)
    return {"seconds": seconds, "codes/s": pictures * codes / seconds, **part.peaks()}
