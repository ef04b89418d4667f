"""How does the kit's `stream_codes` compare with the library `datasets`, which streams the same files?

Writes 40,000 rows of 1024 random codes of 8192 (13 bits each: no order in them helps any way of reading) with
captions of about 50 letters to four files, and serves them by the tests' stand-in for the Hub on this machine, which
counts bytes and keeps to a rate. Each way reads them in a process of its own, leaves out what `Filters.paper` leaves
out (a twentieth of the rows), decodes codes to int64, shuffles, and gives batches of 16:

- the kit with the next window read ahead, as trainers read; the kit in its sixth pass, where its windows have grown
  to 16 row groups; and the kit without reading ahead;
- `datasets` as it comes, with its own buffer of 1000 rows to shuffle, a function for each row;
- `datasets` tuned: Arrow reads 2 MB at a time, and 256 rows at once are filtered and decoded; with a buffer of 1000,
  with one of 16,000, which mixes as far as the kit's windows do, and with none, which gives rows in the order of the
  files.

Prints JSON: the kit's figures, those of `datasets` tuned with a buffer of 1000 (reference), and their ratios: rows a
second after the first batch; seconds and bytes to the first batch, at any speed and at 10 Mbit/s; bytes read for each
row of a pass, over the bytes that a row has in its file; and peak memory above the imports. Then all ways; how long a
trainer waits for batches on a link of 10 Mbit/s while the next window is read ahead; and how many rows are repeated
and lost when a reader stops in the middle of a pass and another one goes on. Needs Linux. Takes four minutes.
"""

import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import tyro

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from streaming_ways import BATCH, CODEBOOK, COUNT, REPOSITORY  # noqa: E402

from dalle_lib.rehearsal.hub.stand_in import Hub  # noqa: E402
from dalle_lib.streaming import CodeRow, CodesFormat, Filters, Manifest, write_codes  # noqa: E402

FORMAT = CodesFormat(grid=math.isqrt(COUNT), codebook_size=CODEBOOK, vqgan_sha256="a" * 64)
LINK = 10e6 / 8
"""Bytes a second of a link of 10 Mbit/s."""
LIMITS = {"seconds, 10 Mbit/s": 5.0, "MB, 10 Mbit/s": 3.0, "bytes": 1.1, "memory": 150.0}
KIT, LATER, ALONE = "kit", "kit, sixth pass", "kit, nothing read ahead"
PLAIN, TUNED = "datasets", "datasets, tuned"
WAYS = {
    KIT: {"way": "kit", "made": {"is_ahead": True}},
    LATER: {"way": "kit", "made": {"is_ahead": True, "first": 5}},
    ALONE: {"way": "kit", "made": {}},
    PLAIN: {"way": "datasets", "made": {"buffer": 1000, "is_tuned": False}},
    TUNED: {"way": "datasets", "made": {"buffer": 1000, "is_tuned": True}},
    f"{TUNED}, buffer of 16,000": {"way": "datasets", "made": {"buffer": 16_000, "is_tuned": True}},
    f"{TUNED}, not shuffled": {"way": "datasets", "made": {"buffer": 0, "is_tuned": True}},
}
TRAINERS = {0.5: 100, 5: 40, 20: 20}
"""Samples a second of trainers; the first is a peer of the paper's run. Each is measured so many times faster, on a
link that is as many times faster."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure."""

    rows: int = 40_000
    """Rows of the data set."""
    files: int = 4
    """Files that they are in."""
    trainer_s: float = 20.0
    """Seconds for each of the trainers."""
    tasks: tuple[str, ...] = ("first", "pass", "trainer", "resume")
    """What to measure of first batches, whole passes, trainers and readers that go on."""


def made_rows(count: int, start: int) -> Iterator[CodeRow]:
    """Yield rows whose captions begin with their number; a twentieth does not pass the filters."""
    order, codes = random.Random(start), np.random.default_rng(start)
    words = [line.split(" ")[0] for line in __doc__.split() if line.isalpha()]
    for number in range(start, start + count):
        caption = f"{number} {' '.join(order.choices(words, k=9))}"
        nsfw = "UNLIKELY" if order.random() < 0.97 else "UNSURE"
        width = 300 if order.random() < 0.98 else 1000
        yield CodeRow(caption, codes.integers(CODEBOOK, size=COUNT), nsfw=nsfw, width=width, height=300)


def write_data(folder: Path, benchmark: Benchmark) -> tuple[int, int, float]:
    """Write the data set; return its bytes, how many rows pass the filters, and the letters of a caption."""
    each, kept, letters = benchmark.rows // benchmark.files, 0, 0
    for number in range(benchmark.files):
        rows = list(made_rows(each, each * number))
        write_codes(folder / f"{number}.parquet", rows, FORMAT)
        filters = Filters.paper()
        kept += sum(
            filters.why_not(row.caption, nsfw=row.nsfw, width=row.width, height=row.height) is None for row in rows
        )
        letters += sum(len(row.caption) for row in rows)
    Manifest.of_folder(folder, FORMAT).save(folder)
    return sum(file.stat().st_size for file in folder.glob("*.parquet")), kept, letters / benchmark.rows


class Served:
    """A data set on the stand-in for the Hub, whose readers are processes of their own."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.environment = os.environ | {
            "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1,localhost",
            "HF_TOKEN_PATH": str(folder / "no-token"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        }  # fmt: skip

    def do(self, way: str, task: str, rate: float = math.inf, **options: object) -> dict:
        """Return what a way's process found in a task, with the bytes and requests that it cost the Hub."""
        self.hub.rate = rate
        self.hub.log.clear()
        asked = json.dumps({**WAYS[way], "task": task, "options": options})
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            done = subprocess.run(
                [sys.executable, "-c", "from streaming_ways import main; main()", asked],
                env=self.environment | {"HF_HOME": cache}, stdout=subprocess.PIPE, timeout=600,
            )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{way}, {task}: exit status {done.returncode}; its error is above")
        cost = {"MB": sum(one.sent for one in self.hub.log) / 1e6, "requests": len(self.hub.log)}
        print(f"{way}, {task}: {done.stdout.decode().strip()} {cost}", file=sys.stderr, flush=True)
        return json.loads(done.stdout) | cost


def measured(served: Served, benchmark: Benchmark, size: int, kept: int) -> dict[str, dict]:
    """Return what all ways do, by the task and the way."""
    found: dict[str, dict] = {task: {} for task in benchmark.tasks}
    for way in WAYS:
        if "first" in found and way in (KIT, PLAIN, TUNED):
            found["first"][way] = served.do(way, "first")
            slow = served.do(way, "first", rate=LINK)
            found["first"][way] |= {f"{name}, 10 Mbit/s": slow[name] for name in ("seconds", "MB", "requests")}
        if "pass" in found:
            told = served.do(way, "pass")
            told["bytes"] = told["MB"] * 1e6 / size
            if told["kept"] != kept:
                raise SystemExit(f"{way}: expected {kept:,} rows, but it gave {told['kept']:,}.")
            if way != LATER and "most bytes a row" in told:
                told["bytes at most"] = told["most bytes a row"] * benchmark.rows / size
            found["pass"][way] = told
    if "trainer" in found:
        for rate, times in TRAINERS.items():
            options = {"samples_per_s": rate * times, "seconds": benchmark.trainer_s}
            told = served.do(KIT, "trainer", rate=LINK * times, **options)
            found["trainer"][f"{rate:g} samples a second"] = told | {"times faster": times}
    if "resume" in found:
        found["resume"] = {way: served.do(way, "resume", kept=kept) for way in (KIT, PLAIN)}
    return found


def headline(found: dict[str, dict], way: str, later: str) -> dict[str, float]:
    """Return a way's figures; those of `later` are as far on in the data as its memory grows."""
    told = {}
    if "pass" in found:
        passes = [found["pass"][way], found["pass"][later]]
        told |= {"rows a second": passes[0]["rate"], "bytes": found["pass"][ALONE if way == KIT else way]["bytes"]}
        told["memory"] = max(one["memory"] for one in passes)
    names = ("seconds", "MB", "seconds, 10 Mbit/s", "MB, 10 Mbit/s")
    return told | {name: found["first"][way][name] for name in names if "first" in found}


def rounded(value: object) -> object:
    """Return numbers, or what holds them, with four digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        (data := Path(place, "data")).mkdir()
        size, kept, letters = write_data(data, benchmark)
        with Hub(Path(place, "hub")) as hub:
            hub.add(f"datasets/{REPOSITORY}", data)
            found = measured(Served(hub, Path(place)), benchmark, size, kept)
    figure, reference = headline(found, KIT, LATER), headline(found, TUNED, TUNED)
    result = {"figure": figure, "reference": reference}
    result["ratio"] = {name: figure[name] / reference[name] for name in figure}
    result["limits"] = LIMITS
    result["within limits"] = {name: figure[name] <= limit for name, limit in LIMITS.items() if name in figure}
    result["data"] = {"rows": benchmark.rows, "kept": kept, "bytes a row": size / benchmark.rows, "letters": letters}
    result |= found | {"batch": BATCH, "seconds in all": time.perf_counter() - began}
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, pyarrow {pyarrow.__version__}, "
    result["machine"] += f"datasets {datasets.__version__}"
    print(json.dumps(rounded(result), indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
