"""Data of the paper's shape and a tokenizer of its size, without what they would take to make."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from dalle_lib.files import sha256_of
from dalle_lib.streaming import CodeRow, CodesFormat, Manifest, write_codes


def tokenizer_in(folder: Path) -> Path:
    """A tokenizer with as many entries as T5's."""
    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(32_100)}, unk_token="w2"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "t5.json"))
    return folder / "t5.json"


def data_of(folder: Path, *, grid: int = 32, codebook_size: int = 8192, tells: bool = True) -> Path:
    """Make a data set of such codes; whether it `tells` what the paper's filters ask."""
    folder.mkdir()
    (folder / "vqgan.safetensors").write_bytes(b"stands for one")
    codes = CodesFormat(grid=grid, codebook_size=codebook_size, vqgan_sha256=sha256_of(folder / "vqgan.safetensors"))
    about = {"width": 300, "height": 200, "nsfw": "UNLIKELY"} if tells else {}
    rows = [CodeRow(f"w{number} w7", np.full(grid**2, number), **about) for number in range(13)]
    for split in "train", "held_out":
        (folder / split).mkdir()
        write_codes(folder / split / "0.parquet", rows, codes)
        Manifest.of_folder(folder / split, codes).save(folder / split)
    return folder
