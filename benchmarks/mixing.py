"""How well is a pass mixed where the rows of a data set lie sorted by kind?

The rows of the embedded `emoji` are sorted by the thing that their caption names and written anew, in row groups of
100 and of 1000 rows; beside them stand the files as they are shipped. The embedded model's loss of each row is
computed once. Rows are then taken in the order that a stream draws them in passes 0, 1, 5 and 20 (counted from 0),
192 at a time, which is an epoch of the run. The mean loss of an epoch differs from that of all rows; counted in
standard errors of a mean of 192 rows drawn at random, the root mean square of that difference is 1 and the largest of
a pass is between 2 and 3 if the rows are mixed perfectly.

How many different things the rows of an epoch show is told too. As shipped, rows lie in no order; that losses differ
from group to group there most likely comes from the training, which drew one group at a time: what came last is known
best. So only the things tell how well those files are mixed.

Compared with: a perfect shuffle of all rows, and the order of old versions, which shuffled the row groups, and the
rows of one group at a time. All are means over seeds.

Prints JSON: the largest deviation in pass 0 and 20 of sorted rows in groups of 1000 and 100 (figure), that of a
perfect shuffle (reference), their ratio; then all orders. Takes three minutes on an
idle core.
"""

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import tyro
from torch.nn import functional as F

from dalle_lib.checkpoint import load_model
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, CodeRow, Manifest, read_codes, stream_codes, write_codes
from dalle_lib.streaming.batches import to_batch
from dalle_lib.streaming.order import Order

PASSES = (0, 1, 5, 20)
GROUPS = (1000, 100)
SHUFFLE, OLD, SHIPPED = "perfect shuffle", "one group at a time", "as shipped"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure."""

    run: str = "emoji"
    """An embedded run."""
    epoch: int = 192
    """Rows of an epoch."""
    seeds: int = 20
    """Orders of each kind, whose figures are averaged."""


@torch.inference_mode()
def losses_of(card: RunCard, rows: list[CodeRow], batch_size: int = 16) -> np.ndarray:
    """Return the embedded model's mean loss of the codes of each row, in nats."""
    model = load_model(card.path(card.checkpoint), card.model).eval()
    tokenizer, found = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length), []
    for start in range(0, len(rows), batch_size):
        batch = to_batch(rows[start : start + batch_size], tokenizer)
        logits = model(batch.text, batch.codes).image_logits
        found.append(F.cross_entropy(logits.transpose(1, 2), batch.codes, reduction="none").mean(1))
    return torch.cat(found).double().numpy()


def things_of(rows: list[CodeRow], things: list[str]) -> list[str]:
    """Return the thing that each caption names: the longest that it holds."""
    longest = sorted(things, key=len, reverse=True)
    return [next((thing for thing in longest if thing in row.caption), "") for row in rows]


def deviations(losses: np.ndarray, epoch: int) -> tuple[float, float]:
    """Return the largest and the root mean square of the deviations of epochs, in standard errors, of one pass."""
    means = losses[: len(losses) // epoch * epoch].reshape(-1, epoch).mean(1)
    errors = (means - losses.mean()) / (losses.std() / epoch**0.5)
    return float(np.abs(errors).max()), float(np.sqrt((errors**2).mean()))


def different_things(things: np.ndarray, epoch: int) -> float:
    """Return how many different things the rows of an epoch show, on average over a pass."""
    epochs = things[: len(things) // epoch * epoch].reshape(-1, epoch)
    return float(np.mean([len(np.unique(one)) for one in epochs]))


def drawn(groups: list[int], size: int, number: int) -> Callable[[int], np.ndarray]:
    """Return what gives, for a seed, the rows of a pass in the order of the kit's streams."""
    starts = np.cumsum([0, *groups])

    def rows(seed: int) -> np.ndarray:
        order, found = Order(groups, size, seed), []
        position = number * order.rows
        while position < (number + 1) * order.rows:
            window = order.window_at(position)
            held = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in window.groups])
            found.append(held[window.rows])
            position = window.stop
        return np.concatenate(found)

    return rows


def one_group_at_a_time(groups: list[int]) -> Callable[[int], np.ndarray]:
    """Return what gives, for a seed, all rows in the order of old versions."""
    starts = np.cumsum([0, *groups])

    def rows(seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        order = random.permutation(len(groups))
        return np.concatenate([random.permutation(np.arange(starts[one], starts[one + 1])) for one in order])

    return rows


def require_streams_order(folder: Path, rows: list[CodeRow], order: np.ndarray) -> None:
    """Raise AssertionError unless a stream of seed 0 begins with the rows that `order` names."""
    told = [row.caption for row in islice(stream_codes(str(folder), seed=0), len(order))]
    assert told == [rows[number].caption for number in order]


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    torch.set_num_threads(1)
    card = RunCard.load(benchmark.run)
    source = Path(card.data_source(card.data.train))
    shipped = read_codes(source / "codes.parquet")
    losses = losses_of(card, shipped)
    things = things_of(shipped, json.loads((source / "words.json").read_text(encoding="utf-8"))["things"])
    by_thing = np.argsort(things, kind="stable")
    numbers = np.unique(things, return_inverse=True)[1]
    groups = list(Manifest.parse((source / "manifest.json").read_bytes(), "manifest").files[0].groups)
    sets = {SHIPPED: (losses, numbers, groups, (source / "codes.parquet").stat().st_size)}
    with tempfile.TemporaryDirectory() as place:
        for rows_per_group in GROUPS:
            (folder := Path(place, str(rows_per_group))).mkdir()
            rows = [shipped[number] for number in by_thing]
            write_codes(folder / "codes.parquet", rows, card.data.format, rows_per_group)
            manifest = Manifest.of_folder(folder, card.data.format)
            manifest.save(folder)
            groups = list(manifest.files[0].groups)
            require_streams_order(folder, rows, drawn(groups, manifest.size, 0)(0))
            sets[f"sorted, groups of {rows_per_group}"] = losses[by_thing], numbers[by_thing], groups, manifest.size
    table = {}
    for name, (one, shown, groups, size) in sets.items():
        orders = {f"pass {number}": drawn(groups, size, number) for number in PASSES}
        orders |= {OLD: one_group_at_a_time(groups)}
        orders |= {SHUFFLE: lambda seed: np.random.default_rng(seed).permutation(len(losses))}
        table[name] = {}
        for order, make in orders.items():
            found = [
                (*deviations(one[rows], benchmark.epoch), different_things(shown[rows], benchmark.epoch))
                for rows in map(make, range(benchmark.seeds))
            ]
            names = ("largest", "root mean square", "things")
            table[name][order] = {told: round(float(n), 2) for told, n in zip(names, np.mean(found, 0), strict=True)}
    chosen = {f"{name}, pass {number}": (name, number) for name in list(sets)[1:] for number in (0, 20)}
    figure = {told: table[name][f"pass {number}"]["largest"] for told, (name, number) in chosen.items()}
    reference = {told: table[name][SHUFFLE]["largest"] for told, (name, _) in chosen.items()}
    result = {"figure": figure, "reference": reference}
    result["ratio"] = {told: round(figure[told] / reference[told], 2) for told in figure}
    result |= {"orders": table, "rows": len(losses), "things": len(set(things)), "seeds": benchmark.seeds}
    result |= {"loss": {"mean": round(float(losses.mean()), 3), "deviation of a row": round(float(losses.std()), 3)}}
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, one thread, torch {torch.__version__}"
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
