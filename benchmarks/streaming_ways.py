"""The ways of reading that `streaming.py` compares; each is measured in a process of its own.

Both libraries read the files from the Hub that HF_ENDPOINT names, leave out what `Filters.paper` leaves out, and give
batches of int64 codes with their captions.
"""

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dalle_lib.streaming import Filters, stream_codes
from dalle_lib.streaming.layouts import CodeRow
from dalle_lib.streaming.packing import bits_of, bytes_of, unpack

REPOSITORY = "crew/rows"
BATCH = 16
MEASURED_EVERY, SETTLED = 10, 10_000
"""Every how many batches, and from how many rows on, the bytes are compared with the rows that were used."""
COUNT, CODEBOOK = 1024, 8192
CHUNK = 256
"""Rows that are decoded at once by the tuned ways of `datasets`."""
Batch = tuple[list[str], np.ndarray]


def peak_mb() -> float:
    """Return the most memory that this process has had, in 10^6 bytes; Linux tells."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("expected a line VmHWM in /proc/self/status: this needs Linux.")


class Kit:
    """`stream_codes`; from pass number `first` on, counted from 0."""

    def __init__(self, first: int = 0, is_ahead: bool = False) -> None:
        self.stream = stream_codes(f"hf://datasets/{REPOSITORY}", seed=0, filters=Filters.paper())
        self.rows = self.stream.data.manifest.rows
        self.stop = (first + 1) * self.rows
        if first:
            self.load(self.stream.state_dict() | {"position": first * self.rows})
        if is_ahead:
            self.stream.prefetch()

    def __iter__(self) -> Iterator[Batch]:
        while self.stream.position < self.stop:
            rows: list[CodeRow] = []
            while len(rows) < BATCH and self.stream.position < self.stop:
                rows.append(next(self.stream))
            yield [row.caption for row in rows], np.stack([row.codes for row in rows])

    def state(self) -> dict:
        return self.stream.state_dict()

    def load(self, state: dict) -> None:
        self.stream.load_state_dict(state)


class Datasets:
    """`datasets`, with a shuffle buffer of so many rows (0: files in their order), and its reader tuned or not."""

    def __init__(self, buffer: int, is_tuned: bool) -> None:
        import datasets
        import pyarrow as pa
        import pyarrow.dataset as pads

        tuned = {}
        if is_tuned:
            cache = pa.CacheOptions(range_size_limit=2 << 20, hole_size_limit=8192, lazy=True)
            tuned = {"fragment_scan_options": pads.ParquetFragmentScanOptions(cache_options=cache)}
        self.is_tuned, self.filters = is_tuned, Filters.paper()
        self.rows = datasets.load_dataset(REPOSITORY, split="train", streaming=True, **tuned)
        if buffer:
            self.rows = self.rows.shuffle(seed=0, buffer_size=buffer)
        if is_tuned:
            self.rows = self.rows.batch(CHUNK)
        else:  # as its guide says: a function for each row
            self.rows = self.rows.filter(self.is_kept).map(self.decoded)

    def is_kept(self, row: dict) -> bool:
        caption, nsfw, width, height = (row[name] for name in ("caption", "nsfw", "width", "height"))
        return self.filters.why_not(caption, nsfw=nsfw, width=width, height=height) is None

    def decoded(self, row: dict) -> dict:
        return row | {"codes": decode([row["codes"]])[0]}

    def __iter__(self) -> Iterator[Batch]:
        return batches(self.chunks() if self.is_tuned else self.singles())

    def singles(self) -> Iterator[Batch]:
        for row in self.rows:
            yield [row["caption"]], np.asarray(row["codes"], dtype=np.int64)[None]

    def chunks(self) -> Iterator[Batch]:
        for chunk in self.rows:
            columns = (chunk[name] for name in ("caption", "nsfw", "width", "height"))
            kept = [
                number
                for number, row in enumerate(zip(*columns, strict=True))
                if self.is_kept(dict(zip(("caption", "nsfw", "width", "height"), row, strict=True)))
            ]
            if kept:
                captions = [chunk["caption"][number] for number in kept]
                yield captions, decode([chunk["codes"][number] for number in kept])

    def state(self) -> dict:
        return self.rows.state_dict()

    def load(self, state: dict) -> None:
        self.rows.load_state_dict(state)


def decode(packed: list[bytes]) -> np.ndarray:
    """Return packed codes as int64, many rows at once."""
    if len(packed) == 1:
        return unpack("bits", packed[0], COUNT, CODEBOOK)[None]
    bits = bits_of(CODEBOOK)
    together = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), bytes_of("bits", COUNT, CODEBOOK))
    narrow = np.unpackbits(together, axis=1, count=COUNT * bits).reshape(-1, bits)
    whole = np.packbits(np.pad(narrow, ((0, 0), (16 - bits, 0))), axis=1).view(">u2")
    return whole.astype(np.int64).reshape(len(packed), COUNT)


def batches(parts: Iterable[Batch]) -> Iterator[Batch]:
    """Yield what `parts` have in batches."""
    captions: list[str] = []
    codes: list[np.ndarray] = []
    for more, pictures in parts:
        captions += more
        codes += list(pictures)
        while len(captions) >= BATCH:
            yield captions[:BATCH], np.stack(codes[:BATCH])
            captions, codes = captions[BATCH:], codes[BATCH:]
    if captions:
        yield captions, np.stack(codes)


def first(made: Kit | Datasets, started: float) -> dict:
    """Return how long the first batch took, from the opening of the data on."""
    _, codes = next(iter(made))
    assert codes.dtype == np.int64
    assert codes.shape == (BATCH, COUNT)
    return {"seconds": time.perf_counter() - started}


def whole(made: Kit | Datasets, started: float) -> dict:
    """Return what a pass took after its first batch."""
    ways = iter(made)
    rows = len(next(ways)[0])
    began, used = time.perf_counter(), time.process_time()
    most, kept = 0.0, rows
    for number, (captions, _) in enumerate(ways):
        kept += len(captions)
        if isinstance(made, Kit) and made.stream.drawn >= SETTLED and number % MEASURED_EVERY == 0:
            most = max(most, made.stream.data.files.bytes_read / made.stream.drawn)
    told = {"seconds": time.perf_counter() - began, "processor": time.process_time() - used, "kept": kept}
    told["rate"], told["processor rate"] = (kept - rows) / told["seconds"], (kept - rows) / told["processor"]
    if isinstance(made, Kit):
        told |= {"drawn": made.stream.drawn, "most bytes a row": most}
    return told


def trainer(made: Kit, started: float, samples_per_s: float, seconds: float) -> dict:
    """Return how long a trainer that takes so many samples a second waits for its batches."""
    ways, waits = iter(made), []
    next(ways)
    stops = time.perf_counter() + seconds
    while time.perf_counter() < stops:
        time.sleep(BATCH / samples_per_s)
        asked = time.perf_counter()
        next(ways)
        waits.append(time.perf_counter() - asked)
    told = {"samples": len(waits) * BATCH, "longest wait": max(waits), "waited": sum(waits)}
    return told | {"share": sum(waits) / (seconds + sum(waits)), "groups": made.stream.position / 1000}


def resume(made: Kit | Datasets, started: float, make, kept: int) -> dict:
    """Return how many rows come twice or never if a reader stops in the middle and another one goes on."""
    drawn: list[str] = []
    for captions, _ in itertools.islice(made, kept // (2 * BATCH)):
        drawn += captions
    state = json.loads(json.dumps(made.state()))
    again = make()
    again.load(state)
    for captions, _ in again:
        drawn += captions
    return {"repeated": len(drawn) - len(set(drawn)), "lost": kept - len(set(drawn)), "drawn": len(drawn)}


TASKS = {"first": first, "pass": whole, "trainer": trainer, "resume": resume}


def main() -> None:
    """Do the task that the command line tells, and print what it found as JSON."""
    asked = json.loads(sys.argv[1])
    way, options = asked["way"], asked.get("options", {})
    import torch  # noqa: F401  a trainer has it, and `datasets` imports it sooner or later

    if way != "kit":
        import datasets
        import scipy.io  # noqa: F401  it imports that while it opens data

        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # else it rests 5 s after a pass, for the sake of Arrow

    def make() -> Kit | Datasets:
        return Kit(**asked.get("made", {})) if way == "kit" else Datasets(**asked["made"])

    if asked["task"] == "resume":
        options["make"] = make
    gc.collect()
    before, started = peak_mb(), time.perf_counter()
    made = make()
    told = TASKS[asked["task"]](made, started, **options)
    print(json.dumps(told | {"memory": peak_mb() - before, "imports": before}), flush=True)
    os._exit(0)  # an abandoned reader of `datasets` may hang or abort when Python ends
