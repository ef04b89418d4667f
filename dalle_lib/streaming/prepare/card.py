"""What a person sees of a data set: its card, and a small split with pictures."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dalle_lib.files import replace_file
from dalle_lib.streaming.codes import CodesFormat
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.layouts import OWN, PAPER, LayoutName
from dalle_lib.streaming.manifest import Manifest
from dalle_lib.streaming.packing import bits_of
from dalle_lib.streaming.prepare.journal import Sample
from dalle_lib.streaming.prepare.pictures import as_jpeg, as_png

PREVIEW = "preview/preview.parquet"
_JPEG_FROM = 128
"""Pixels on a side from which previews are JPEGs, a quarter of a PNG's size."""


def write_preview(file: Path, samples: list[Sample], originals: np.ndarray, decoded: np.ndarray) -> int:
    """Write captions, pictures and what their codes make of them, as the Hub's viewer shows them; return the bytes."""
    encode, suffix = (as_jpeg, "jpg") if originals.shape[1] >= _JPEG_FROM else (as_png, "png")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})

    def column(pictures: np.ndarray) -> pa.Array:
        values = [{"bytes": encode(picture), "path": f"{number}.{suffix}"} for number, picture in enumerate(pictures)]
        return pa.array(values, kind)

    image = {"_type": "Image"}
    features = {"caption": {"dtype": "string", "_type": "Value"}, "picture": image, "reconstruction": image}
    table = pa.table(
        {
            "caption": [sample.caption for sample in samples],
            "picture": column(originals),
            "reconstruction": column(decoded),
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(exist_ok=True)
    with replace_file(file) as unfinished:
        pq.write_table(table, unfinished, row_group_size=100)
    return file.stat().st_size


def write_card(
    file: Path,
    *,
    name: str,
    license: str,
    manifests: Mapping[str, Manifest],
    codes_format: CodesFormat,
    layout: LayoutName,
    packing: str,
    filters: Filters,
    counts: Mapping[str, int],
    figures: Mapping[str, str],
    vqgan: str,
    preview: tuple[int, int] | None,
) -> None:
    """Write the data set's card, README.md; the same data set gives the same card.

    `vqgan` says where the VQ-GAN is, and `preview` the rows and bytes of the small split.
    """
    from huggingface_hub import DatasetCardData

    configs = [_config("default", {split: f"{split}/*.parquet" for split in manifests})]
    if preview:
        configs.append(_config("preview", {"preview": PREVIEW}))
    about = DatasetCardData(license=license, task_categories=["text-to-image"], configs=configs)
    parts = [
        f"---\n{about.to_yaml()}\n---",
        f"# {name.rpartition('/')[2]}",
        f"Captions, and pictures as the codes of a VQ-GAN: {codes_format.grid} x {codes_format.grid} codes a picture, "
        f"each below {codes_format.codebook_size:,}. Only the VQ-GAN with the SHA-256 "
        f"`{codes_format.vqgan_sha256}` can show them; it is {vqgan}.",
        _table(("split", "rows", "files", "bytes", "SHA-256 of the manifest"), _splits(manifests)),
        "\n".join(f"- {what}: {figure}" for what, figure in figures.items()),
    ]
    if preview:
        rows, size = preview
        parts += [
            f"The config `preview` shows {rows} pictures beside what their codes keep of them, in {size:,} bytes. "
            "Below, each picture stands above what its codes keep.",
            "![pictures above their reconstructions](sheet.png)",
        ]
    parts += ["## Reading it", _snippets(name, codes_format, layout, packing), "## What was kept"]
    told = ", ".join(f"`{key}={value!r}`" for key, value in asdict(filters).items())
    parts += [f"Filters: {told}.", _table(("left out because", "rows"), [(why, f"{n:,}") for why, n in counts.items()])]
    with replace_file(file) as unfinished:
        unfinished.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def _config(name: str, files: Mapping[str, str]) -> dict:
    return {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in files.items()]}


def _splits(manifests: Mapping[str, Manifest]) -> list[tuple[str, ...]]:
    return [
        (split, f"{one.rows:,}", f"{len(one.files):,}", f"{one.size:,}", f"`{one.sha256}`")
        for split, one in manifests.items()
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _snippets(name: str, codes_format: CodesFormat, layout: LayoutName, packing: str) -> str:
    columns, size, grid = OWN if layout == "own" else PAPER, codes_format.codebook_size, codes_format.grid
    where = name if "/" in name else "FOLDER"
    source = f"hf://datasets/{name}/train" if "/" in name else "FOLDER/train"
    unpacked = f'np.frombuffer(row["{columns.codes}"], "<u2")'
    if layout == "paper-brotli":
        unpacked = f'np.frombuffer(brotli.decompress(row["{columns.codes}"]), "<u2")'
    elif packing == "bits":
        unpacked = f'unpack("bits", row["{columns.codes}"], {grid**2}, {size})  # {bits_of(size)} bits each'
    needed = "import numpy as np\n" if "np." in unpacked else "from dalle_lib.streaming.packing import unpack\n"
    needed += "import brotli\n" if "brotli." in unpacked else ""
    caption = f'row["{columns.caption}"]'
    caption = f"brotli.decompress({caption}).decode()" if layout == "paper-brotli" else caption
    return (
        "With dalle_lib, as a stream:\n\n```python\n"
        "from dalle_lib.streaming import stream_codes\n\n"
        f'row = next(iter(stream_codes("{source}", seed=0)))\nprint(row.caption, row.codes)\n```\n\n'
        "With datasets:\n\n```python\n"
        f'{needed}from datasets import load_dataset\n\nrow = load_dataset("{where}", split="train")[0]\n'
        f"print({caption})\ncodes = {unpacked}\n```"
    )
