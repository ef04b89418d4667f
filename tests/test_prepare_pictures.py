"""Damaged, huge and unusual pictures and captions: what is made of them, or why they are left out."""

import io
import struct
import tarfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from prepare_sources import as_folder, as_tar, encoded, picture, pictures, prepare, rows_in

from dalle_lib.streaming.prepare.journal import Journal
from dalle_lib.streaming.prepare.pictures import Unusable, open_picture, perceptual_hash, to_square
from dalle_lib.streaming.prepare.reading import Found, ahead
from dalle_lib.streaming.prepare.sources import Row


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG that claims to have so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def square_of(data: bytes, side: int = 16, fit: str = "crop") -> np.ndarray:
    return np.asarray(to_square(open_picture(data)[0], side, fit)).astype(int)


WHOLE = encoded(picture(1))
NOISE = encoded(Image.effect_noise((300, 300), 90), "JPEG")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty picture"),
        (b"no picture at all", "picture unreadable"),
        (WHOLE[:20], "picture unreadable"),
        (WHOLE[:-200], "picture damaged"),
        (NOISE[: len(NOISE) // 2], "picture damaged"),
        (bomb(8_000, 8_000), "picture above 50 megapixels"),
        (bomb(30_000, 30_000), "picture above 50 megapixels"),
        (bomb(0, 5), "picture unreadable"),
        (b"\xff" * (2**25 + 1), "picture above 32 MiB"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "picture unreadable"),
    ],
    ids=["empty", "text", "header", "cut png", "cut jpeg", "bomb", "huge bomb", "no pixels", "large", "program"],
)
def test_what_cannot_be_a_picture_is_left_out_and_told_in_the_same_words(data, why):
    with pytest.raises(Unusable) as left_out:
        square_of(data)
    assert str(left_out.value) == why


def test_a_picture_is_cut_or_padded():
    flags = Image.new("RGB", (64, 32), "red")
    flags.paste("blue", (16, 0, 48, 32))
    cut, padded = square_of(encoded(flags)), square_of(encoded(flags), fit="pad")
    assert np.allclose(cut, (0, 0, 255), atol=20), "its middle"
    assert (padded[:4] == 255).all(), "white above and below"
    assert (padded[-4:] == 255).all()
    assert (padded[5:-5, [0, -1]] == (255, 0, 0)).all(), "all of its width"
    assert np.allclose(padded[5:-5, 5:-5], (0, 0, 255), atol=20)


def test_what_can_be_seen_through_lies_on_white():
    red = Image.new("RGBA", (20, 20), (255, 0, 0, 128))
    assert np.allclose(square_of(encoded(red)), (255, 127, 127), atol=1)
    palette = Image.new("P", (20, 20), 1)
    palette.putpalette([0, 0, 0, 0, 0, 255])
    assert square_of(encoded(palette, transparency=1)).tolist() == np.full((16, 16, 3), 255).tolist()
    assert np.allclose(square_of(encoded(palette)), (0, 0, 255))
    grey = Image.new("LA", (20, 20), (0, 0))
    assert square_of(encoded(grey)).min() == 255


def test_pictures_in_cmyk_and_of_16_bits_keep_their_colours():
    photo = picture(2)
    as_cmyk = encoded(photo.convert("CMYK"), "JPEG", quality=95)
    assert np.abs(square_of(as_cmyk) - square_of(encoded(photo))).mean() < 8
    ramp = np.tile(np.linspace(0, 65535, 32).astype(np.uint16), (32, 1))
    found = square_of(encoded(Image.fromarray(ramp)), 32)
    assert np.abs(found[:, :, 0] - ramp // 257).max() <= 1


def test_an_animation_gives_its_first_frame_and_a_turned_photo_stands_upright():
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("lime", "red")]
    made = io.BytesIO()
    frames[0].save(made, "GIF", save_all=True, append_images=frames[1:])
    assert np.allclose(square_of(made.getvalue()), (0, 255, 0), atol=2)
    exif = Image.Exif()
    exif[0x0112] = 6
    above = Image.new("RGB", (40, 20), "black")
    above.paste("white", (0, 0, 20, 20))  # its left half, which orientation 6 turns to the top
    turned = encoded(above, exif=exif)
    assert open_picture(turned)[1:] == (20, 40)
    assert square_of(turned)[0, 8].min() > 200 > 50 > square_of(turned)[-1, 8].max()


def test_large_pictures_are_decoded_one_after_the_other(monkeypatch):
    busy, counted = [], []

    def slow(image: Image.Image) -> Image.Image:
        busy.append(image)
        counted.append(len(busy))
        time.sleep(0.02)
        busy.pop()
        return image.convert("RGB")

    monkeypatch.setattr("dalle_lib.streaming.prepare.pictures._in_rgb", slow)
    monkeypatch.setattr("dalle_lib.streaming.prepare.pictures._LARGE_PIXELS", 1000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(square_of, [WHOLE] * 6))
    assert counted == [1] * 6


def test_the_middle_of_a_picture_is_taken():
    wide = Image.new("RGB", (90, 30), "red")
    wide.paste("blue", (30, 0, 60, 30))
    assert np.allclose(square_of(encoded(wide))[:, 2:-2], (0, 0, 255), atol=2)


def test_a_perceptual_hash_stays_when_a_picture_is_scaled():
    smooth = Image.fromarray(np.add.outer(np.arange(200), 3 * np.arange(200) % 256).astype(np.uint8)).convert("RGB")
    assert perceptual_hash(smooth) == perceptual_hash(smooth.resize((150, 150), Image.Resampling.LANCZOS))
    assert perceptual_hash(smooth) != perceptual_hash(picture(3))


def test_unusual_pairs_are_counted_by_reason_and_the_others_are_kept(tmp_path):
    source = as_folder(tmp_path / "in", pictures(5), inside="in")
    for name, data, caption in [
        ("cut.png", WHOLE[:-200], b"cut"),
        ("bomb.png", bomb(9_000, 9_000), b"bomb"),
        ("empty.jpg", b"", b"empty"),
        ("mute.png", WHOLE, None),
        ("silent.png", WHOLE, b" \n"),
        ("latin.png", WHOLE, "café".encode("latin1")),
        ("long.png", WHOLE, b"a" * 10_001),
        ("endless.png", WHOLE, b"a" * 100_000),
    ]:
        (source / name).write_bytes(data)
        if caption is not None:
            (source / name).with_suffix(".txt").write_bytes(caption)
    prepared = prepare(source, tmp_path / "out", held_out=0)
    assert prepared.counts == {
        "picture damaged": 1,
        "picture above 50 megapixels": 1,
        "empty picture": 1,
        "no caption": 2,
        "caption not in UTF-8": 1,
        "caption above 10,000 letters": 2,
    }
    assert {row.caption for row in rows_in(tmp_path / "out")} == pictures(5).keys()


def test_one_caption_that_is_no_text_spoils_no_other_row_of_its_table(tmp_path):
    pairs = pictures(4)
    broken = pa.array([b"picture 0", b"caf\xe9", *(f"picture {n}".encode() for n in (2, 3))], pa.binary())
    table = pa.table({"caption": pa.Array.from_buffers(pa.string(), 4, broken.buffers()), "jpg": list(pairs.values())})
    pq.write_table(table, tmp_path / "in.parquet")
    assert prepare(tmp_path / "in.parquet", tmp_path / "out", held_out=0).counts == {"caption not in UTF-8": 1}
    assert {row.caption for row in rows_in(tmp_path / "out")} == {"picture 0", "picture 2", "picture 3"}
    lines = b"caption,path\n" + b"".join(b"%b,none.png\n" % each for each in (b"caf\xe9", b"other"))
    (tmp_path / "in.csv").write_bytes(lines)
    with pytest.raises(ValueError, match="picture file not readable: 2"):
        prepare(tmp_path / "in.csv", tmp_path / "nothing")


def test_the_whole_part_of_a_cut_tar_is_kept_and_its_rest_is_told(tmp_path, caplog):
    folder = as_tar(tmp_path / "in" / "0.tar", pictures(6)).parent
    with tarfile.open(folder / "0.tar") as tar:
        cut = tar.getmember("000003.txt").offset
    (folder / "0.tar").write_bytes((folder / "0.tar").read_bytes()[: cut - 600])
    as_tar(folder / "1.tar", pictures(3, start=10))
    prepared = prepare(folder, tmp_path / "out", held_out=0)
    assert prepared.counts == {"rest of a damaged source file": 1}
    kept = {row.caption for row in rows_in(tmp_path / "out")}
    assert kept == pictures(3).keys() | pictures(3, start=10).keys()
    assert "0.tar cannot be read as a tar to its end" in caplog.text
    assert prepare(folder, tmp_path / "out", held_out=0).counts == prepared.counts, "it is told once"


@pytest.mark.parametrize(("size", "most"), [(1000, 10), (2**27, 3)], ids=["many rows", "large rows"])
def test_rows_are_read_only_some_way_ahead(size, most):
    begun = []

    def rows():
        for number in range(50):
            begun.append(number)
            yield Found(Row(lambda: None, bytes=size), number, (1, number + 1))

    for done, (found, made) in enumerate(ahead(rows(), lambda row: row.bytes, workers=2, most=10)):
        assert (found.place, made) == (done, size)
        assert len(begun) - done <= most
    assert done == 49


def test_the_journal_of_another_program_is_told_with_what_to_do(tmp_path):
    (tmp_path / "journal.sqlite").write_bytes(b"no data base" * 100)
    with pytest.raises(ValueError, match=r"cannot be read as a journal .* Prepare the data set anew in another folder"):
        Journal(tmp_path)
