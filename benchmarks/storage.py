"""How many bytes does a picture's row of codes take in a file, and how quickly is it written and read?

Writes real codes to Parquet files in memory, in four ways: as many bits each as the codebook needs ("bits"), 16 bits
("uint16"), all low bytes before all high bytes ("planes"), and lists of int16 with Parquet's dictionary ("list"); each
without compression, with zstd and with Brotli at Arrow's levels, in groups of 100, 1,000 and 10,000 rows. Beside them,
each row by itself is compressed with the package `brotli`. Captions are written as strings, and each by itself.

The codes are the training data of the embedded runs; random codes show the other end, where nothing repeats. With
`--pictures FOLDER` of photographs as .jpg, half of them train a VQ-GAN of 8192 codes, 32x32 a picture, and random
256x256 crops of the others are encoded by it, and at 64x64 pixels by the embedded VQ-GANs. The published VQ-GAN, which
has as many codes, would be needed for its own figures: this one knows patches alone, and its fidelity is given beside.
Photographs are in Debian's packages mate-backgrounds, lomiri-wallpapers-16.04, lomiri-wallpapers-20.04 and
plasma-workspace-wallpapers, among drawings to leave out, and two in scikit-learn. The same crops as JPEG files say how
much smaller codes are.

Prints JSON: bytes a row by the smaller of "bits" and "uint16" with Brotli (figure), those by the best of all ways
(reference), and their ratio, in groups of 1,000, for each set of codes; then each way's bytes, and rows a second of
processor time to write and to read, packing included, on one thread. Takes a minute; with 39 photographs 9.
"""

import io
import json
import math
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import brotli
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from PIL import Image

from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.streaming import read_codes
from dalle_lib.vqgan import VQGAN, load_vqgan
from dalle_lib.vqgan_patches import local_config
from dalle_lib.vqgan_training import report_fidelity, train_vqgan

CODECS = ("none", "zstd", "brotli")
GROUPS = (100, 1000, 10_000)
QUALITIES = (5, 9, 11)
JPEG_QUALITIES = (75, 85, 90, 95)
ALONE = "rows by themselves"
RANDOM = "random codes, 8192 codes"
SIDE = 256
LARGEST = 3
"""Times SIDE that a photograph's shorter side is at most scaled to before it is cropped."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure."""

    pictures: Path | None = None
    """Folder of photographs, .jpg."""
    training_crops: int = 16
    """Crops of each photograph that trains."""
    crops: int = 100
    """Crops of each other photograph."""
    steps: int = 200
    """Steps of the decoder, which do not change the codes."""
    sheet: Path | None = None
    """File to write photographs before and after to."""


@dataclass(frozen=True)
class Way:
    """How codes [rows, codes] become the values of a column, and back."""

    values: Callable[[np.ndarray], pa.Array]
    codes: Callable[[pa.ChunkedArray], np.ndarray]


def binary(packed: np.ndarray) -> pa.Array:
    """Return rows of bytes as a column."""
    return pa.array([row.tobytes() for row in packed], pa.binary())


def unpacked(column: pa.ChunkedArray, dtype: str) -> np.ndarray:
    """Return the rows of a column of bytes as numbers."""
    return np.stack([np.frombuffer(row, dtype) for row in column.to_pylist()])


def ways(bits: int, count: int) -> dict[str, Way]:
    """Return the ways to keep `count` codes of so many bits in a row."""

    def pack(codes: np.ndarray) -> pa.Array:
        wide = np.unpackbits(codes.astype(">u2").view(np.uint8), axis=1).reshape(len(codes), count, 16)
        return binary(np.packbits(wide[:, :, 16 - bits :].reshape(len(codes), -1), axis=1))

    def unpack(column: pa.ChunkedArray) -> np.ndarray:
        narrow = np.unpackbits(unpacked(column, "u1"), axis=1, count=count * bits).reshape(-1, count, bits)
        wide = np.concatenate([np.zeros((*narrow.shape[:2], 16 - bits), np.uint8), narrow], axis=2)
        return np.packbits(wide.reshape(len(narrow), -1), axis=1).view(">u2").astype(np.int64)

    def planes(codes: np.ndarray) -> pa.Array:
        return binary(np.concatenate([codes & 255, codes >> 8], axis=1).astype(np.uint8))

    def from_planes(column: pa.ChunkedArray) -> np.ndarray:
        halves = unpacked(column, "u1").astype(np.int64).reshape(-1, 2, count)
        return halves[:, 0] + (halves[:, 1] << 8)

    def lists(codes: np.ndarray) -> pa.Array:
        return pa.array(list(codes.astype(np.int16)), pa.list_(pa.int16()))

    def from_lists(column: pa.ChunkedArray) -> np.ndarray:
        return np.stack(column.to_numpy()).astype(np.int64)

    return {
        "bits": Way(pack, unpack),
        "uint16": Way(
            lambda codes: binary(codes.astype("<u2")), lambda column: unpacked(column, "<u2").astype(np.int64)
        ),
        "planes": Way(planes, from_planes),
        "list": Way(lists, from_lists),
    }


def one_by_one(quality: int) -> Way:
    """Return the way that compresses each row of int16 by itself."""

    def values(codes: np.ndarray) -> pa.Array:
        return pa.array([brotli.compress(row.tobytes(), quality=quality) for row in codes.astype("<i2")], pa.binary())

    def codes(column: pa.ChunkedArray) -> np.ndarray:
        return np.stack([np.frombuffer(brotli.decompress(row), "<i2") for row in column.to_pylist()]).astype(np.int64)

    return Way(values, codes)


def file_of(values: pa.Array, codec: str, rows_per_group: int) -> bytes:
    """Return a Parquet file of one column."""
    file = io.BytesIO()
    pq.write_table(pa.table({"codes": values}), file, compression=codec, row_group_size=rows_per_group)
    return file.getvalue()


def measured(way: Way, codes: np.ndarray, codec: str, rows_per_group: int) -> dict[str, float]:
    """Return the bytes a row of a way, and how many rows a second it writes and reads."""
    started = time.thread_time()
    file = file_of(way.values(codes), codec, rows_per_group)
    written = time.thread_time()
    again = way.codes(pq.read_table(io.BytesIO(file), use_threads=False)["codes"])
    read = time.thread_time()
    assert np.array_equal(again, codes)
    rates = {"written": len(codes) / (written - started), "read": len(codes) / (read - written)}
    return {"bytes": round(len(file) / len(codes), 1), **{name: round(rate) for name, rate in rates.items()}}


def all_ways(codes: np.ndarray, codebook_size: int) -> dict[str, dict[str, float]]:
    """Return what each way comes to, by its name, codec and rows of a group."""
    table = {
        f"{name}, {codec}, {rows}": measured(way, codes, codec, rows)
        for name, way in ways(math.ceil(math.log2(codebook_size)), codes.shape[1]).items()
        for codec in CODECS
        for rows in GROUPS
    }
    for quality in QUALITIES:
        table[f"{ALONE}, {quality}"] = measured(one_by_one(quality), codes, "none", 1000)
    return table


def entropy(codes: np.ndarray) -> float:
    """Return the bits of a code if all were coded by their frequencies alone."""
    counts = np.unique(codes, return_counts=True)[1] / codes.size
    return float(-(counts * np.log2(counts)).sum())


def captions_of(captions: list[str]) -> dict[str, float]:
    """Return the bytes of a caption in each way."""
    strings = pa.array(captions, pa.string())
    table = {
        f"strings, {codec}, {rows}": len(file_of(strings, codec, rows)) / len(captions)
        for codec in CODECS
        for rows in GROUPS
    }
    for quality in QUALITIES:
        alone = pa.array([brotli.compress(caption.encode(), quality=quality) for caption in captions], pa.binary())
        table[f"{ALONE}, {quality}"] = len(file_of(alone, "none", 1000)) / len(captions)
    return {name: round(size, 1) for name, size in table.items()}


def crops(files: list[Path], count: int, seed: int) -> torch.Tensor:
    """Return `count` random crops of each photograph, scaled at random so that the largest shows all its height."""
    order, found = random.Random(seed), []
    for file in files:
        photograph = Image.open(file).convert("RGB")
        photograph = scaled(photograph, LARGEST * SIDE)
        for _ in range(count):
            picture = scaled(photograph, order.randint(SIDE, LARGEST * SIDE))
            left, top = (order.randint(0, size - SIDE) for size in picture.size)
            found.append(np.asarray(picture.crop((left, top, left + SIDE, top + SIDE))))
    order.shuffle(found)  # or else a group of rows would be of one photograph
    return torch.from_numpy(np.stack(found))


def scaled(picture: Image.Image, shorter: int) -> Image.Image:
    """Return a picture whose shorter side has so many pixels."""
    sizes = [round(size * shorter / min(picture.size)) for size in picture.size]
    return picture.resize(sizes, Image.Resampling.LANCZOS, reducing_gap=2.0)


def jpeg_bytes(pixels: torch.Tensor) -> dict[str, float]:
    """Return the mean size of the pictures as JPEG files, by quality, with Pillow's other defaults."""
    sizes = dict.fromkeys(JPEG_QUALITIES, 0)
    for picture in pixels:
        for quality in sizes:
            file = io.BytesIO()
            Image.fromarray(picture.numpy()).save(file, "JPEG", quality=quality)
            sizes[quality] += len(file.getvalue())
    return {str(quality): round(size / len(pixels)) for quality, size in sizes.items()}


def smaller(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Return the pictures with so many pixels on a side."""
    resized = [Image.fromarray(picture.numpy()).resize((side, side), Image.Resampling.BOX) for picture in pixels]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in resized]))


def of_photographs(benchmark: Benchmark) -> tuple[dict[str, tuple[np.ndarray, int]], dict]:
    """Return sets of codes of photographs with the sizes of their codebooks, and what to tell of them."""
    files = sorted(benchmark.pictures.glob("*.jpg"))
    if len(files) < 4:
        raise SystemExit(f"expected at least 4 photographs as .jpg in {benchmark.pictures}, but found {len(files)}.")
    training, pixels = crops(files[::2], benchmark.training_crops, 0), crops(files[1::2], benchmark.crops, 1)
    config = local_config(SIDE, codebook_size=8192)
    own = train_vqgan(training, config, steps=benchmark.steps, seed=0, batch_size=4)
    vqgans: dict[str, VQGAN] = {f"photographs, {config.codebook_size} codes of {SIDE}x{SIDE} pixels": own}
    for name in EMBEDDED_RUNS:
        card = RunCard.load(name)
        vqgans[f"photographs, VQ-GAN of {name}"] = load_vqgan(card.path(card.vqgan))
    sets, fidelity = {}, {}
    for name, vqgan in vqgans.items():
        shown = pixels if vqgan is own else smaller(pixels, vqgan.config.resolution)
        sets[name] = vqgan.encode(shown).numpy(), vqgan.config.codebook_size
        some = shown[:: max(1, len(shown) // 200)]
        fidelity[name] = str(report_fidelity(vqgan, some, benchmark.sheet if vqgan is own else None))
    told = {"training crops": len(training), "photographs": [file.stem for file in files], "fidelity": fidelity}
    return sets, told | {"JPEG": jpeg_bytes(pixels)}


def main(benchmark: Benchmark) -> None:
    """Measure, and print the comparison."""
    torch.set_num_threads(1)
    sets, captions = {}, {}
    for name in EMBEDDED_RUNS:
        card = RunCard.load(name)
        rows = read_codes(Path(card.data_source(card.data.train)) / "codes.parquet")
        sets[name] = np.stack([row.codes for row in rows]), card.data.format.codebook_size
        captions[name] = captions_of([row.caption for row in rows])
    sets[RANDOM] = np.random.default_rng(0).integers(8192, size=(1000, 1024)), 8192
    told = {}
    if benchmark.pictures is not None:
        more, told = of_photographs(benchmark)
        sets |= more
    tables = {name: all_ways(codes, size) for name, (codes, size) in sets.items()}
    sizes = {
        name: {way: found["bytes"] for way, found in table.items() if way.endswith(", 1000") or way.startswith(ALONE)}
        for name, table in tables.items()
    }
    figure = {name: min(found["bits, brotli, 1000"], found["uint16, brotli, 1000"]) for name, found in sizes.items()}
    reference = {name: min(found.values()) for name, found in sizes.items()}
    result = {"figure": figure, "reference": reference}
    result["ratio"] = {name: round(figure[name] / reference[name], 3) for name in figure}
    result["rows"] = {name: len(codes) for name, (codes, _) in sets.items()}
    result["bits of a code by its frequency"] = {name: round(entropy(codes), 2) for name, (codes, _) in sets.items()}
    result |= {"ways": tables, "captions": captions} | told
    machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread, torch {torch.__version__}"
    print(json.dumps(result | {"machine": f"{machine}, pyarrow {pa.__version__}"}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
