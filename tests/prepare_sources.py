"""Small pictures with captions as every kind of source, and what a prepared data set holds."""

import csv
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dalle_lib.run.files import EMBEDDED
from dalle_lib.streaming import CodeRow, Manifest, read_codes
from dalle_lib.streaming.prepare import Prepared, prepare_dataset

VQGAN = EMBEDDED / "vqgan.safetensors"
SMALL = {
    "vqgan": VQGAN,
    "held_out": 0.2,
    "rows_per_group": 4,
    "groups_per_shard": 2,
    "batch_size": 5,
    "workers": 2,
    "preview": 6,
}
"""What tests prepare with: files of at most 8 rows."""


def picture(seed: int, width: int = 70, height: int = 64) -> Image.Image:
    """Return a picture that is unlike that of any other seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


def encoded(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **how)
    return made.getvalue()


def pictures(count: int, start: int = 0) -> dict[str, bytes]:
    """Return pictures by their captions."""
    return {f"picture {seed}": encoded(picture(seed)) for seed in range(start, start + count)}


def as_folder(folder: Path, pairs: Mapping[str, bytes], inside: str = "deep/er") -> Path:
    for place in folder, folder / inside:
        place.mkdir(parents=True, exist_ok=True)
    for number, (caption, data) in enumerate(pairs.items()):
        file = folder / (inside if number % 2 else "") / f"{caption.replace(' ', '-')}.png"
        file.write_bytes(data)
        file.with_suffix(".txt").write_text(caption)
    return folder


def as_tar(file: Path, pairs: Mapping[str, bytes], **told) -> Path:
    """Write a WebDataset tar; captions are in text files, or in JSON beside `told` if that is given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for number, (caption, data) in enumerate(pairs.items()):
            about = json.dumps({"caption": caption, **told}) if told else caption
            for suffix, content in ("png", data), ("json" if told else "txt", about.encode()):
                member = tarfile.TarInfo(f"{number:06}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file


def as_parquet(file: Path, pairs: Mapping[str, bytes]) -> Path:
    """Write a table as the Hub has pictures."""
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": data, "path": None} for data in pairs.values()]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"text": list(pairs), "image": pa.array(images, kind)}), file, row_group_size=3)
    return file


def as_csv(file: Path, places: Mapping[str, str], column: str) -> Path:
    """Write a table of paths or URLs by their captions."""
    with open(file, "w", newline="") as handle:
        csv.writer(handle).writerows([("caption", column), *places.items()])
    return file


def prepare(source: str | Path, out: Path, **settings) -> Prepared:
    return prepare_dataset(source, out, **(SMALL | settings))


def rows_in(folder: Path, splits: tuple[str, ...] = ("train", "held_out")) -> list[CodeRow]:
    """Return the rows of a data set's files, all of which its manifests must name as they are."""
    found = []
    for split in splits:
        if (folder / split).exists():
            manifest = Manifest.parse((folder / split / "manifest.json").read_bytes(), split)
            assert manifest == Manifest.of_folder(folder / split, manifest.format)
            found += [row for entry in manifest.files for row in read_codes(folder / split / entry.name)]
    return found


def codes_by_caption(rows: list[CodeRow]) -> dict[str, list[int]]:
    """Return the codes of rows, whose captions must all differ."""
    found = {row.caption: row.codes.tolist() for row in rows}
    assert len(found) == len(rows)
    return found
