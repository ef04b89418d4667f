"""The course of preparing one data set: open, encode, publish, finish."""

import logging
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from dalle_lib.checkpoint import read_header
from dalle_lib.files import BrokenFile, replace_file, sha256_of
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.codes import CodesFormat
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.manifest import MANIFEST, Manifest
from dalle_lib.streaming.prepare.card import PREVIEW, write_card, write_preview
from dalle_lib.streaming.prepare.encoding import ALIKE, KEPT, SOURCE_BYTES, Encoder
from dalle_lib.streaming.prepare.journal import JOURNAL, REMEDY, SPLITS, Journal, Sample, shard_name
from dalle_lib.streaming.prepare.opening import source_of
from dalle_lib.streaming.prepare.pictures import from_png
from dalle_lib.streaming.prepare.preparing import TRAIN, WORK, Prepared
from dalle_lib.streaming.prepare.publishing import Publisher
from dalle_lib.streaming.prepare.reading import Ready, ahead, judge_for, rows_from
from dalle_lib.streaming.prepare.settings import PrepareSettings
from dalle_lib.streaming.prepare.sources import Source
from dalle_lib.vqgan import VQGAN, load_vqgan, save_vqgan
from dalle_lib.vqgan_patches import local_config
from dalle_lib.vqgan_training import report_fidelity, train_vqgan

logger = logging.getLogger(__name__)
VQGAN_FILE, SHEET, CARD = "vqgan.safetensors", "sheet.png", "README.md"
_CONVERTED = "converted_from_sha256"
"""Metadata of a VQ-GAN's file that was made of the published one, which is not copied."""


class Making:
    """One call of `prepare_dataset`, whose arguments have been checked."""

    def __init__(
        self,
        source: str | Path,
        out: Path,
        vqgan: str | Path,
        filters: Filters,
        settings: PrepareSettings,
        push_to: str | None,
        token: str | None,
    ) -> None:
        self._source, self._out, self._vqgan, self._filters = source, out, vqgan, filters
        self._settings, self._push_to, self._token = settings, push_to, token
        self._work = out / WORK

    def run(self) -> Prepared:
        """Do all that is left."""
        file = self._work / JOURNAL
        try:
            return self._run()
        except sqlite3.OperationalError as error:
            raise OSError(
                f"{file} cannot be read or written ({in_one_line(error)}): is the disk full, or another program at it? "
                "Run the same again: the work goes on where it was."
            ) from error
        except sqlite3.DatabaseError as error:
            raise BrokenFile(f"{file} is damaged ({in_one_line(error)}). {REMEDY}") from error

    def _run(self) -> Prepared:
        with closing(Journal(self._work)) as journal, closing(self._open_source(journal)) as source:
            _require_files(journal, self._out)
            vqgan, digest = self._open_vqgan(source, journal)
            sizes = vqgan.config
            codes = CodesFormat(grid=sizes.grid, codebook_size=sizes.codebook_size, vqgan_sha256=digest)
            same = {"vqgan": digest, "filters": asdict(self._filters), **self._settings.lasting}
            journal.require_same("settings", same, "other settings")
            encoder = Encoder(source, journal, self._out, vqgan, codes, self._filters, self._settings)
            return self._publish(journal, encoder, vqgan, codes)

    def _publish(self, journal: Journal, encoder: Encoder, vqgan: VQGAN, codes: CodesFormat) -> Prepared:
        publisher = None
        if self._push_to is not None:
            keep = self._settings.keep_local
            publisher = Publisher(self._work, self._out, self._push_to, self._token, keep_local=keep)
            publisher.start(journal, self._settings.private)
        try:
            encoder.run(publisher.shard_is_done if publisher else lambda: None)
            prepared, files = self._finish(journal, vqgan, codes, encoder.rate)
            if publisher is None:
                return prepared
            revision = publisher.finish({name: self._out / name for name in files})
            return replace(prepared, repository=self._push_to, revision=revision)
        finally:
            if publisher is not None:
                publisher.leave()

    def _open_source(self, journal: Journal) -> Source:
        revision = self._settings.revision or journal.meta("revision")
        source = source_of(self._source, self._settings, self._work / "source", self._token, revision)
        self._filters.require_told(source.tells, str(self._source))
        journal.require_same("source", source.about, "another source")
        journal.take_units(source)
        journal.set_meta("revision", source.revision)
        return source

    def _open_vqgan(self, source: Source, journal: Journal) -> tuple[VQGAN, str]:
        file = self._out / VQGAN_FILE if self._vqgan == TRAIN else Path(self._vqgan)
        if self._vqgan == TRAIN and not file.exists():
            vqgan = self._train(source, journal)
            with replace_file(file) as unfinished:
                save_vqgan(unfinished, vqgan)
        vqgan, digest = load_vqgan(file), sha256_of(file)
        kept = self._out / VQGAN_FILE
        if _CONVERTED not in read_header(file)[1] and not kept.exists():
            with replace_file(kept) as unfinished:
                shutil.copyfile(file, unfinished)
        device = self._settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return vqgan.to(device), digest

    def _train(self, source: Source, journal: Journal) -> VQGAN:
        """Return a VQ-GAN that was trained on the first pictures of the source that are not held out."""
        settings = self._settings
        config = local_config(
            settings.train_resolution, factor=settings.train_factor, codebook_size=settings.train_codebook
        )
        look = judge_for(source, self._filters, config.resolution, settings.fit)
        found = ahead(rows_from(source, journal), look, settings.workers, 100)
        ready = (made for _, made in found if isinstance(made, Ready) and made.split(settings.held_out) == "train")
        pixels = [made.pixels for made in islice(ready, settings.train_pictures)]
        if not pixels:
            raise ValueError(f"expected pictures with captions to train a VQ-GAN on, but {self._source} has none.")
        return train_vqgan(torch.from_numpy(np.stack(pixels)), config, steps=settings.train_steps, seed=0)

    def _finish(self, journal: Journal, vqgan: VQGAN, codes: CodesFormat, rate: float) -> tuple[Prepared, list[str]]:
        """Write all but the codes, and return the data set and the names of the files to publish, manifests last."""
        counts = journal.counts
        figures = {name: counts.pop(name, 0) for name in (KEPT, ALIKE, SOURCE_BYTES)}
        if not figures[KEPT]:
            told = ", ".join(f"{why}: {number:,}" for why, number in counts.items()) or "it has no rows"
            raise ValueError(f"nothing of {self._source} was kept ({told}): choose other filters, or another source.")
        manifests = {}
        for split in SPLITS:
            if shards := journal.shards(split):
                manifests[split] = Manifest(codes, tuple(shard.entry for shard in shards))
                manifests[split].save(self._out / split)
        if self._settings.held_out and len(manifests) < len(SPLITS):
            logger.warning("no picture is held out, or all are: choose another held_out for so few pictures.")
        files = [VQGAN_FILE] if (self._out / VQGAN_FILE).exists() else []
        shown = {split: journal.samples(split) for split in SPLITS}
        psnr, told = self._measure(
            vqgan, shown["held_out"] or shown["train"], "held_out" if shown["held_out"] else "train"
        )
        preview = self._preview(vqgan, (shown["held_out"] + shown["train"])[: self._settings.preview])
        files += [SHEET, PREVIEW] if preview else []
        write_card(
            self._out / CARD,
            name=self._push_to or journal.meta("repository") or self._out.resolve().name,
            license=self._settings.license,
            manifests=manifests,
            codes_format=codes,
            layout=self._settings.format,
            packing=journal.meta("packing"),
            filters=self._filters,
            counts=counts,
            figures=_in_words(figures, sum(counts.values()), sum(one.size for one in manifests.values()))
            | {"what the codes keep (PSNR)": told},
            vqgan=f"`{VQGAN_FILE}` beside this card" if VQGAN_FILE in files else "the published GumbelVQ f8 8192",
            preview=preview,
        )
        files += [CARD, *(f"{split}/{MANIFEST}" for split in manifests)]
        prepared = Prepared(
            folder=self._out,
            manifests=manifests,
            counts=counts,
            near_duplicates=figures[ALIKE],
            source_bytes=figures[SOURCE_BYTES],
            psnr_db=psnr,
            vqgan=self._out / VQGAN_FILE if VQGAN_FILE in files else Path(self._vqgan),
            vqgan_sha256=codes.vqgan_sha256,
            resolution=vqgan.config.resolution,
            captions=tuple(sample.caption for sample in (shown["train"] + shown["held_out"])[:3]),
            rate=rate,
        )
        return prepared, files

    def _measure(self, vqgan: VQGAN, samples: list[Sample], split: str) -> tuple[float, str]:
        """Write the sheet, and return the PSNR of samples as a number and in words."""
        fidelity = report_fidelity(vqgan, torch.from_numpy(_pixels(samples)), self._out / SHEET)
        return fidelity.psnr_db, f"{fidelity}, measured on {len(samples)} pictures of {split}"

    def _preview(self, vqgan: VQGAN, samples: list[Sample]) -> tuple[int, int] | None:
        """Write the small split with pictures, and return its rows and bytes; None if there is to be none."""
        if not samples:
            return None
        originals = _pixels(samples)
        decoded = vqgan.decode(vqgan.encode(torch.from_numpy(originals))).numpy()
        return len(samples), write_preview(self._out / PREVIEW, samples, originals, decoded)


def _require_files(journal: Journal, out: Path) -> None:
    """Raise ValueError if a finished file is not in the data set's folder, or a file is there that is none.

    One that the Hub has may be gone, and one that a kill left unnoted is written anew.
    """
    for split in SPLITS:
        ours = {shard.entry.name: shard for shard in journal.shards(split)}
        found = {file.name: file.stat().st_size for file in (out / split).glob("*.parquet")}
        for name, shard in ours.items():
            if found.get(name, shard.revision and shard.entry.bytes) != shard.entry.bytes:
                raise ValueError(f"{out / split / name} is gone or has changed: is there a copy of it? {REMEDY}")
        if others := sorted(found.keys() - ours.keys() - {shard_name(len(ours))}):
            raise ValueError(
                f"{out / split / others[0]} is none of this folder's data: was the journal removed? {REMEDY}"
            )


def _in_words(figures: dict[str, int], left_out: int, size: int) -> dict[str, str]:
    """Return figures for the card, of a data set of `size` bytes."""
    rows = figures[KEPT]
    return {
        "kept": f"{rows:,} of {rows + left_out:,} rows, {rows / (rows + left_out):.1%}",
        "near-duplicates among them, by perceptual hash": f"{figures[ALIKE]:,}",
        "bytes a row": f"{size / rows:,.0f}, {figures[SOURCE_BYTES] / size:.1f} times fewer than the source's pictures",
    }


def _pixels(samples: list[Sample]) -> np.ndarray:
    return np.stack([from_png(sample.picture) for sample in samples])
