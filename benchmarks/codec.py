"""Is the kit's 8-bit codec quicker than hivemind's own, and what does each lose? What do 4 bits cost beside it?

Encodes and decodes a tensor in parts of 524,288 values, the size that peers exchange by default, with both codecs in
turns on one thread. Prints JSON: the kit's milliseconds of processor time to encode and decode a part (figure),
hivemind's (reference) and their ratio, medians of 25 tensors; the kit's with 4 bits a value; and the norm of the error
over the norm of the values, median of 8 parts, for a normal distribution and for Student's t with 3 degrees of freedom,
whose tails are as heavy as those found in gradients. Processor time leaves out what other programs take. Needs numpy
below 2.4, where hivemind's codec still works.
"""

import json
import platform
import statistics
import time
import warnings

import torch
from hivemind.compression import Uniform8BitQuantization
from hivemind.compression.base import CompressionBase, CompressionInfo

from dalle_lib.swarm.averaging.codec import FourBits, Uniform8Bit

SIZE = 524_288
PARTS = 8
ROUNDS = 25


def seconds(codec: CompressionBase, parts: torch.Tensor) -> float:
    """Return the mean processor time, in milliseconds, to encode and decode a part."""
    started = time.thread_time()
    for values in parts:
        codec.extract(codec.compress(values, CompressionInfo.from_tensor(values)))
    return (time.thread_time() - started) / len(parts)


def lost(codec: CompressionBase, parts: torch.Tensor) -> float:
    """Return the norm of a message's error over the norm of its part, as the median of the parts."""
    decoded = [codec.extract(codec.compress(values, CompressionInfo.from_tensor(values))) for values in parts]
    return statistics.median(float((d - v).norm() / v.norm()) for d, v in zip(decoded, parts, strict=True))


def main() -> None:
    """Measure, and print the comparison."""
    warnings.simplefilter("ignore")  # hivemind's codec uses parts of torch that are deprecated
    torch.manual_seed(0)
    torch.set_num_threads(1)
    normal, heavy = torch.randn(PARTS, SIZE), torch.distributions.StudentT(3.0).sample((PARTS, SIZE))
    ours, stock, four = Uniform8Bit(), Uniform8BitQuantization(), FourBits()
    times = [(seconds(ours, normal), seconds(stock, normal), seconds(four, normal)) for _ in range(ROUNDS)]
    figure, reference, in_4_bits = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    result = {"figure": figure, "reference": reference, "ratio": reference / figure, "4 bits": in_4_bits}
    result["lost, normal"] = {"ours": lost(ours, normal), "hivemind": lost(stock, normal), "4 bits": lost(four, normal)}
    of_heavy = {"ours": lost(ours, heavy), "hivemind": lost(stock, heavy), "4 bits": lost(four, heavy)}
    result["lost, Student's t, 3 degrees"] = of_heavy
    print(json.dumps(result | {"machine": f"{platform.machine()}, torch {torch.__version__}"}, indent=1))


if __name__ == "__main__":
    main()
