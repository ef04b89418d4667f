"""How many codes are drawn a second, and how much is remembered, compared with a plain cache of all positions?

Draws whole pictures of one prompt, one alone and many side by side, as `generate` does, and as benchmarks/plain.py does
in batches of 16. Prints JSON: codes a second of many pictures (figure), those of the plain way (reference) and their
ratio; the same for a single picture; the bytes remembered for each picture; and on a GPU the peak of its memory while
many are drawn, weights included. On one thread of a processor, seconds are processor time, which leaves out other
programs.
"""

import json
from dataclasses import asdict, dataclass

import torch
import tyro
from memory import describe_machine
from plain import PRESETS, Cache, Plain
from train_step import Setting, matmul_rates, timed

from dalle_lib.model import DALLE, cache_bytes, generate

PLAIN_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Benchmark(Setting):
    """What to time."""

    samples: int = 128
    top_k: int = 256


def main(benchmark: Benchmark) -> None:
    """Draw, and print the comparison."""
    torch.set_num_threads(benchmark.threads)
    torch.manual_seed(0)
    config, device = PRESETS[benchmark.preset], benchmark.device
    model = DALLE(config).to(device, benchmark.dtype).eval()
    text = torch.randint(1, config.text_vocab, (1, config.text_length), device=device)
    length, top_k = config.image_length, benchmark.top_k

    def rate(samples: int) -> float:
        return samples * length / timed(lambda: generate(model, text, samples=samples, top_k=top_k, seed=0), device)

    speed, _ = matmul_rates(benchmark)
    single = rate(1)  # first, so that a GPU is warm
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    many = rate(benchmark.samples)
    taken = {"peak bytes": torch.cuda.max_memory_allocated()} if device == "cuda" else {}
    plain = Plain(model)

    def plain_rate(samples: int) -> float:
        prompts = text.expand(samples, -1)
        return samples * length / timed(lambda: plain.draw(prompts, length, top_k), device)

    result = {"figure": many, "reference": plain_rate(PLAIN_BATCH)}
    result["ratio"] = result["figure"] / result["reference"]
    alone = {"figure": single, "reference": plain_rate(1)}
    result["one picture"] = alone | {"ratio": alone["figure"] / alone["reference"]}
    cache = Cache(plain, 1)
    each, of_text = cache_bytes(config, benchmark.dtype)
    remembered = {"figure": each, "reference": sum(x.nbytes for x in (cache.keys, cache.values, cache.shifted))}
    result["bytes remembered for each picture"] = remembered | {
        "ratio": remembered["figure"] / remembered["reference"],
        "of the text, shared": of_text,
    }
    result |= taken | {"GFLOP/s of a matrix product": speed / 1e9, "settings": asdict(benchmark)}
    print(json.dumps(result | {"machine": describe_machine(device)}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
