"""The work itself: rows of a source become rows of codes, and these files, in steps that a kill cannot break."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from tqdm.auto import tqdm

from dalle_lib.streaming.codes import METADATA_KEY, CodesFormat
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.layouts import CodeRow
from dalle_lib.streaming.manifest import FileEntry
from dalle_lib.streaming.packing import bits_of
from dalle_lib.streaming.prepare.journal import SPLITS, Encoded, Journal, Sample, shard_name
from dalle_lib.streaming.prepare.pictures import as_png
from dalle_lib.streaming.prepare.reading import Found, Ready, ahead, judge_for, rows_from
from dalle_lib.streaming.prepare.settings import PrepareSettings
from dalle_lib.streaming.prepare.sources import Source
from dalle_lib.streaming.prepare.urls import UNREACHED
from dalle_lib.streaming.writing import write_codes
from dalle_lib.vqgan import VQGAN

KEPT, ALIKE, SOURCE_BYTES = "kept", "kept near-duplicates", "bytes of kept pictures"
"""What is counted beside why rows are left out."""
NEAR_DUPLICATE = "near-duplicate"
MAX_ROWS_AT_ONCE = 1000
"""Rows after which progress is noted, however few of them are kept."""
MIN_SAMPLES = 32
"""Pictures of each split that are set aside, to tell how much of them the codes keep."""
_ROWS_OF_AN_OUTAGE = 16


class Encoder:
    """Makes rows of codes of what is left of a source, and writes them into files."""

    def __init__(
        self,
        source: Source,
        journal: Journal,
        folder: Path,
        vqgan: VQGAN,
        codes_format: CodesFormat,
        filters: Filters,
        settings: PrepareSettings,
    ) -> None:
        self._source, self._journal, self._folder = source, journal, folder
        self._vqgan, self._format, self._settings = vqgan, codes_format, settings
        self._judge = judge_for(source, filters, vqgan.config.resolution, settings.fit)
        self._samples = max(settings.preview, MIN_SAMPLES)
        self._last_place = {split: journal.last_place(split, self._samples) for split in SPLITS}
        self._units, self._unit_bytes = journal.unit_bytes()
        self._waiting = {split: journal.waiting(split) for split in SPLITS}
        self.rate = 0.0
        """Rows a second, in the end."""

    def run(self, shard_is_done: Callable[[], None]) -> None:
        """Do all that is left, and call `shard_is_done` after each file. Raises ConnectionError if no URL answers."""
        start, done = time.monotonic(), self._done()
        with tqdm(desc="pictures", unit=" pictures", initial=done, total=self._total(done)) as progress:
            self._write_shards(shard_is_done)
            for found, ready in self._batches():
                self._keep(found, ready)
                self._write_shards(shard_is_done)
                progress.update(len(found))
                progress.total = self._total(progress.n)
                progress.set_postfix_str(self._so_far())
        self._write_shards(shard_is_done, is_end=True)
        self.rate = (progress.n - done) / max(1e-9, time.monotonic() - start)

    def _batches(self) -> Iterator[tuple[list[Found], list[Ready | str]]]:
        """Yield rows with what became of them, as many as hold a batch of pictures that are kept."""
        found: list[Found] = []
        ready: list[Ready | str] = []
        size = self._settings.batch_size
        rows = rows_from(self._source, self._journal)
        for each, made in ahead(rows, self._judge, self._settings.workers, 2 * size + self._settings.workers):
            found.append(each.without_row())
            ready.append(made)
            if sum(isinstance(one, Ready) for one in ready) == size or len(ready) == MAX_ROWS_AT_ONCE:
                yield found, ready
                found, ready = [], []
        if found:
            yield found, ready

    def _keep(self, found: list[Found], ready: list[Ready | str]) -> None:
        """Encode the pictures that are kept, and note at once what became of all rows."""
        is_outage = len(ready) >= _ROWS_OF_AN_OUTAGE and all(made == UNREACHED for made in ready)
        if is_outage and not self._settings.skip_unreached:
            raise ConnectionError(
                f"none of {len(ready)} URLs in a row could be reached: is this machine online? Run the same again: the "
                "work goes on where it was. If it is online, turn on skip_unreached to leave them out."
            )
        kept, counts, seen = [], Counter(), set()
        for each, made in zip(found, ready, strict=True):
            if isinstance(made, str):
                counts[made] += 1
                continue
            is_alike = made.hash in seen or self._journal.has_seen(made.hash)
            seen.add(made.hash)
            if is_alike and self._settings.drop_duplicates:
                counts[NEAR_DUPLICATE] += 1
                continue
            counts.update({KEPT: 1, ALIKE: is_alike, SOURCE_BYTES: made.bytes})
            kept.append((each, made, is_alike))
        codes = self._encode([made.pixels for _, made, _ in kept])
        with self._journal.change():
            for (each, made, is_alike), row in zip(kept, codes, strict=True):
                split = made.split(self._settings.held_out)
                self._add(split, each, made, row)
                if not is_alike:  # the same picture twice would tell nothing more
                    self._add_sample(split, each, made)
            for picture_hash in seen:
                self._journal.see(picture_hash)
            for reason, number in counts.items():
                self._journal.count(reason, number)
            self._journal.set_meta("next_row", found[-1].next_row)

    def _encode(self, pictures: list[np.ndarray]) -> np.ndarray:
        if not pictures:
            return np.zeros((0, self._format.grid**2), "<u2")
        codes = self._vqgan.encode(torch.from_numpy(np.stack(pictures)), chunk=self._settings.batch_size)
        return codes.numpy().astype("<u2")

    def _add(self, split: str, found: Found, ready: Ready, codes: np.ndarray) -> None:
        row = Encoded(split, found.place, ready.caption, codes.tobytes(), ready.nsfw, ready.width, ready.height)
        self._journal.add_row(row)
        self._waiting[split] += 1

    def _add_sample(self, split: str, found: Found, ready: Ready) -> None:
        if found.place < self._last_place[split]:
            sample = Sample(found.place, split, ready.caption, as_png(ready.pixels))
            self._journal.add_sample(sample, self._samples)
            self._last_place[split] = self._journal.last_place(split, self._samples)

    def _write_shards(self, shard_is_done: Callable[[], None], is_end: bool = False) -> None:
        most = self._settings.rows_per_shard
        for split in SPLITS:
            while self._waiting[split] >= most or (is_end and self._waiting[split]):
                self._write_shard(split)
                self._waiting[split] -= min(self._waiting[split], most)
                shard_is_done()

    def _write_shard(self, split: str) -> None:
        """Write the rows of a split that have waited longest, shuffled, into a file of their own."""
        last, numbers = self._journal.first_rows(split, self._settings.rows_per_shard)
        file = self._folder / split / shard_name(len(self._journal.shards(split)))
        file.parent.mkdir(exist_ok=True)
        packing, rows = self._journal.meta("packing"), map(_code_row, map(self._journal.row, numbers))
        write_codes(file, rows, self._format, self._settings.rows_per_group, packing, self._settings.format)
        with open(file, "r+b") as handle:
            os.fsync(handle.fileno())
        if packing is None:
            self._journal.set_meta("packing", _packing_of(file))
        self._journal.add_shard(split, FileEntry.of(file, file.name), last)

    def _done(self) -> int:
        counts = self._journal.counts
        return sum(counts.values()) - counts.get(ALIKE, 0) - counts.get(SOURCE_BYTES, 0)

    def _total(self, done: int) -> int | None:
        """Return how many rows there are; an estimate by the bytes of the units that are done, where they hold many."""
        if self._source.are_rows:
            return self._units
        size_done = self._journal.unit_bytes(before=self._journal.next_row[0])[1]
        return max(done, round(done * self._unit_bytes / size_done)) if size_done else None

    def _so_far(self) -> str:
        counts = self._journal.counts
        kept = counts.get(KEPT, 0)
        size = kept * self._format.grid**2 * bits_of(self._format.codebook_size) / 8
        smaller = f", {counts[SOURCE_BYTES] / size:.1f} times smaller" if kept else ""
        return f"{kept / max(1, self._done()):.1%} kept{smaller}"


def _code_row(row: Encoded) -> CodeRow:
    codes = np.frombuffer(row.codes, "<u2").astype(np.int64)
    return CodeRow(row.caption, codes, row.nsfw, row.width, row.height)


def _packing_of(file: Path) -> str:
    """Return how a file's codes are packed, so that all files of a data set can be alike."""
    return json.loads(pq.read_schema(file).metadata[METADATA_KEY]).get("packing", "uint16")
