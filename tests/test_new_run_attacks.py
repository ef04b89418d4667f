"""Captions, data sets and pictures of strangers that would make a run nobody can join, or work that never ends."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prepare_sources import VQGAN, as_folder, pictures, prepare, rows_in

from dalle_lib.dashboard.datasets import beside_originals, captioned
from dalle_lib.files import BrokenFile, sha256_of
from dalle_lib.run import batches_of, initial_model, new_run, require_fit
from dalle_lib.streaming import CodeRow, CodesFormat, Manifest, write_codes
from dalle_lib.streaming.prepare.card import PREVIEW
from dalle_lib.streaming.prepare.pictures import Unusable, open_picture, to_square
from dalle_lib.streaming.tokenizer import MAX_ALPHABET
from dalle_lib.vqgan import load_vqgan

FORMAT = CodesFormat(grid=8, codebook_size=2048, vqgan_sha256=sha256_of(VQGAN))
USUAL = [f"picture {number}" for number in range(40)]


def data_of(folder: Path, captions: list[str], files: int = 1) -> Path:
    """Write a data set of these captions in each file of `train`, and of one in `held_out`."""
    for split, found, count in ("train", captions, files), ("held_out", ["a held-out one"], 1):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            rows = [CodeRow(caption, np.full(64, place)) for place, caption in enumerate(found)]
            write_codes(folder / split / f"{number:05}.parquet", rows, FORMAT)
        Manifest.of_folder(folder / split, FORMAT).save(folder / split)
    return folder


@pytest.mark.parametrize(
    "captions",
    [
        [*USUAL, "a" * 9_999],
        [*USUAL, "=" * 3_000],
        ["   "] * 5,
        ["\u200b\u3000"] * 5,
        ["the same"] * 50,
        ["one"],
        [f"\x1b[31m\x07\x00{number}" for number in range(20)],
        ["<script>alert(1)</script>", *USUAL],
    ],
    ids=["one letter", "a line", "spaces", "nothing seen", "all equal", "one row", "control codes", "a script"],
)
def test_a_run_of_any_captions_can_be_joined(tmp_path, captions):
    card = new_run(tmp_path / "run", data_of(tmp_path / "data", captions), vqgan=VQGAN)
    require_fit(card)
    batch = next(batches_of(card, 4, seed=0))
    assert int(batch.text.max()) < card.model.text_vocab <= 1024
    assert math.isfinite(initial_model(card)(batch.text, batch.codes).image_loss.item())


def test_a_few_captions_of_all_letters_there_are_do_not_make_the_model_large(tmp_path):
    letters = [chr(number) for number in range(0x4E00, 0x4E00 + 2 * MAX_ALPHABET)]
    strange = ["".join(letters[start : start + 900]) for start in range(0, len(letters), 900)]
    card = new_run(tmp_path / "run", data_of(tmp_path / "data", [*USUAL, *strange]), vqgan=VQGAN)
    require_fit(card)
    assert card.model.text_vocab <= MAX_ALPHABET + 3


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9])])
def test_data_that_are_partly_gone_make_no_run(tmp_path, damage):
    data = data_of(tmp_path / "data", USUAL, files=2)
    damage(data / "train" / "00001.parquet")
    with pytest.raises(ValueError, match=r"00001\.parquet is gone or is not the file .* hf://datasets/owner/name"):
        new_run(tmp_path / "run", data, vqgan=VQGAN)
    assert not (tmp_path / "run").exists()


def test_a_jpeg_whose_pixels_are_gone_over_again_and_again_is_left_out():
    made = io.BytesIO()
    Image.new("L", (3000, 3000)).save(made, "JPEG", progressive=True)
    usual = made.getvalue()
    last = usual[usual.rindex(b"\xff\xda") : -2]
    assert to_square(open_picture(usual)[0], 8).size == (8, 8)
    with pytest.raises(Unusable, match="JPEG of too many scans"):
        to_square(open_picture(usual[:-2] + last * 50_000 + usual[-2:])[0], 8)


def test_a_notebook_says_so_where_there_is_nothing_to_show(tmp_path):
    assert "No picture with a caption can be used" in captioned([]).data
    prepared = prepare(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    rows, vqgan = rows_in(tmp_path / "out"), load_vqgan(VQGAN)
    (tmp_path / "out" / PREVIEW).write_bytes(b"PAR1")
    with pytest.raises(BrokenFile, match=r"preview\.parquet cannot be read as the preview of a data set"):
        beside_originals(prepared, rows, vqgan)
    (tmp_path / "out" / PREVIEW).unlink()
    assert "prepared with preview=0" in beside_originals(prepared, rows, vqgan).data


def test_captions_of_strangers_are_no_html_of_a_notebook(tmp_path):
    script = "<script>alert(1)</script>"
    source = as_folder(tmp_path / "in", pictures(9))
    (source / "hostile.png").write_bytes(pictures(1, start=20)["picture 20"])
    (source / "hostile.txt").write_text(script)
    prepared = prepare(source, tmp_path / "out", preview=20)
    rows = [row for row in rows_in(tmp_path / "out") if row.caption == script]
    pages = captioned([(script, np.zeros((8, 8, 3), np.uint8))]), beside_originals(prepared, rows, load_vqgan(VQGAN))
    assert all("<img" in page.data and "<script" not in page.data for page in pages)
    assert script not in (tmp_path / "out" / "README.md").read_text()
