"""`dalle-lib prepare`."""

import json
import logging
import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.one_line import shortened
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.prepare.settings import PrepareSettings

if TYPE_CHECKING:
    from dalle_lib.streaming.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Turn pictures with captions into a data set of codes.

    The source is a folder in which cat.jpg has its caption in cat.txt; WebDataset tars; tables in Parquet or CSV with
    captions and pictures, or their paths or URLs; or hf://datasets/owner/name/folder. Where the command was broken off,
    by a kill too, the same command goes on. Where files were added to the source, it encodes and sends theirs alone.

    For example:

    dalle-lib prepare photos outputs/photos --vqgan emoji-mini

    dalle-lib prepare photos outputs/photos --vqgan train --held-out 0.02 --push-to owner/photos-codes

    dalle-lib prepare tars outputs/codes --vqgan vqgan.safetensors --paper-filters --push-to owner/name
    """

    source: Annotated[str, tyro.conf.Positional]
    """Pictures with captions."""
    out: Annotated[Path, tyro.conf.Positional]
    """A new folder for the data set, or the one in which the same command was broken off."""
    vqgan: str
    """The VQ-GAN of a run (an embedded one, a folder with run.json, or owner/name on the Hub), its file, or `train`
    for one that is trained on the pictures."""
    filters: Annotated[Filters, tyro.conf.arg(name="")] = field(default_factory=Filters)
    paper_filters: bool = False
    """Take the paper's filters: captions of 3 letters, no side over twice the other, NSFW "UNLIKELY"."""
    settings: Annotated[PrepareSettings, tyro.conf.arg(name="")] = field(default_factory=PrepareSettings)
    push_to: str | None = None
    """Send the data set to OWNER/NAME on the Hub, while it is being made."""
    json: bool = False
    """Print what came of it as JSON on standard output."""

    def run(self) -> None:
        """Prepare, and print what came of it."""
        if self.paper_filters and self.filters != Filters():
            raise ValueError("--paper-filters are all of the filters: leave out the others, or it.")
        from dalle_lib.run import vqgan_file
        from dalle_lib.streaming.prepare import prepare_dataset

        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        filters = Filters.paper() if self.paper_filters else self.filters
        prepared = prepare_dataset(
            self.source,
            self.out,
            vqgan=vqgan_file(self.vqgan),
            filters=filters,
            push_to=self.push_to,
            **vars(self.settings),
        )
        print(json.dumps(as_json(prepared)) if self.json else describe(prepared))


def as_json(prepared: "Prepared") -> dict:
    """Return what a script would want to know of a data set that has been prepared."""
    names = ("near_duplicates", "source_bytes", "vqgan_sha256", "repository", "revision", "rows", "bytes", "share_kept")
    return {
        "folder": str(prepared.folder),
        **{name: getattr(prepared, name) for name in names},
        "left_out": dict(prepared.counts),
        "psnr_db": prepared.psnr_db if math.isfinite(prepared.psnr_db) else None,
        "pictures_per_second": prepared.rate,
        "splits": {
            split: {"rows": one.rows, "files": len(one.files), "bytes": one.size, "manifest_sha256": one.sha256}
            for split, one in prepared.manifests.items()
        },
        "data": prepared.data_card,
    }


def describe(prepared: "Prepared") -> str:
    """Return what came of preparing a data set, for a person, and how to make a run of it."""
    lines = [
        f"{prepared.folder}: {prepared.rows:,} rows, {prepared.share_kept:.1%} of the source's, in {prepared.bytes:,} "
        f"bytes, {prepared.bytes / prepared.rows:,.0f} a row; the pictures had {prepared.source_bytes:,}.",
        *(f"  left out, {why}: {number:,}" for why, number in prepared.counts.items()),
        f"The codes keep the pictures at {prepared.psnr_db:.2f} dB (PSNR): look at {prepared.folder / 'sheet.png'}.",
        f"Captions such as {', '.join(repr(shortened(caption)) for caption in prepared.captions)}.",
    ]
    if prepared.near_duplicates:
        lines.append(
            f"Near-duplicates that were kept: {prepared.near_duplicates:,} (--drop-duplicates leaves them out)."
        )
    if prepared.rate:
        lines.append(f"{prepared.rate:,.1f} pictures a second.")
    if prepared.revision:
        lines.append(f"It is at https://huggingface.co/datasets/{prepared.repository}, commit {prepared.revision}.")
    place = f"hf://datasets/{prepared.repository}" if prepared.repository else str(prepared.folder)
    run = ["dalle-lib", "run", "new", f"{prepared.folder}-run", "--data", place]
    if len(prepared.manifests) == 1:
        lines.append(
            "All pictures are on one side of --held-out, so no run can be made of them: prepare more, or take "
            "another share."
        )
    else:
        lines.append(f"A run of it: {shlex.join(run)}")
    return "\n".join(lines)
