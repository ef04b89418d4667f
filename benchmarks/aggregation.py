"""What does it cost a reducer to outvote liars?

Merges parts of 524,288 values, the size that peers exchange by default, of 4, 8 and 16 peers whose weights differ, by
each rule on one thread. Prints JSON: milliseconds of each rule (figure), of the plain mean (reference) and their ratio,
medians of 15; and, for comparison, the coordinate median by torch.sort.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from dalle_lib.aggregation import RULES

SIZE = 524_288
PEERS = (4, 8, 16)
ROUNDS = 15


def median_by_sorting(parts: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted median of each value, the lower of two, by torch.sort."""
    values, order = parts.sort(dim=0)
    place = (weights[order].cumsum(0) < weights.sum() / 2).sum(0)
    return values.gather(0, place[None])[0]


def milliseconds(rule: Callable[[Tensor, Tensor], Tensor], peers: int) -> float:
    """Return the milliseconds that merging one part of each peer takes."""
    parts, weights = torch.randn(peers, SIZE), torch.randint(10, 40, (peers,)).float()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        rule(parts, weights)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def main() -> None:
    """Measure, and print the comparison."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rules = RULES | {"coordinate_median by torch.sort": median_by_sorting}
    times = {name: {peers: milliseconds(rule, peers) for peers in PEERS} for name, rule in rules.items()}
    reference = times.pop("mean")
    result = {
        "figure": times,
        "reference": reference,
        "ratio": {name: {peers: row[peers] / reference[peers] for peers in PEERS} for name, row in times.items()},
    }
    print(json.dumps(result | {"machine": f"{platform.machine()}, torch {torch.__version__}"}, indent=1))


if __name__ == "__main__":
    main()
