"""Pictures from anywhere as small squares, or why they cannot be."""

from contextlib import nullcontext
from io import BytesIO
from threading import Lock

import imagehash
import numpy as np
from PIL import Image, ImageOps

from dalle_lib.streaming.prepare.settings import Fit

MAX_BYTES = 2**25
"""Bytes of a picture's file beyond which it is not read."""
MAX_PIXELS = 50_000_000
"""Pixels beyond which a picture is not decoded: some kilobytes can claim any number of them."""
MAX_SCANS = 1000
"""Passes over a JPEG's pixels beyond which it is not decoded: a progressive one has some ten, and 10,000 fit into
a megabyte. A video behind the picture has 15 a megabyte by chance."""
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats that are read. Pillow knows others, one of which, EPS, would start a program."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif", ".jp2")
_LARGE_PIXELS, _LARGE = 4_000_000, Lock()
"""Pixels beyond which pictures are decoded one after the other: 49 million in RGBA took 0.9 GB (2026-11-25)."""
_ORIENTATION = 0x0112
_JPEG, _SCAN = b"\xff\xd8", b"\xff\xda"
_TOO_MANY = f"picture above {MAX_PIXELS // 10**6} megapixels"
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class Unusable(Exception):
    """Why a pair of picture and caption cannot be used, in a few words that are the same for all of its kind."""


def open_picture(data: bytes) -> tuple[Image.Image, int, int]:
    """Return a picture of which only the header has been read, and its width and height as a viewer would show it.

    Raises Unusable if it is none, or too large to be decoded.
    """
    if not data:
        raise Unusable("empty picture")
    if len(data) > MAX_BYTES:
        raise Unusable(f"picture above {MAX_BYTES // 2**20} MiB")
    if data.startswith(_JPEG) and data.count(_SCAN) > MAX_SCANS:
        raise Unusable("JPEG of too many scans")
    Image.init()
    try:
        picture = Image.open(BytesIO(data), formats=[name for name in _FORMATS if name in Image.OPEN])
    except _BOMBS as error:
        raise Unusable(_TOO_MANY) from error
    except Exception as error:  # Pillow's readers raise what they like for what strangers made
        raise Unusable("picture unreadable") from error
    width, height = picture.size
    if not width or not height:
        raise Unusable("picture without pixels")
    if width * height > MAX_PIXELS:
        raise Unusable(_TOO_MANY)
    return picture, *((height, width) if _is_turned(picture) else (width, height))


def to_square(picture: Image.Image, side: int, fit: Fit = "crop") -> Image.Image:
    """Return an opened picture in RGB as a square of `side` pixels: its middle, or all of it with "pad".

    Of an animation it is the first frame; what can be seen through lies on white; 16 bits become 8. Raises Unusable if
    the picture is damaged.
    """
    try:
        picture.draft("RGB", (side, side))  # a JPEG is decoded at a fraction of its size where that is enough
        with _LARGE if picture.width * picture.height > _LARGE_PIXELS else nullcontext():
            picture = _in_rgb(ImageOps.exif_transpose(picture))
            if fit == "pad":
                return ImageOps.pad(picture, (side, side), Image.Resampling.LANCZOS, "white")
            return ImageOps.fit(picture, (side, side), Image.Resampling.LANCZOS)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable("picture damaged") from error


def perceptual_hash(picture: Image.Image) -> int:
    """Return 64 bits that stay the same when a picture is scaled or compressed anew (ImageHash's `phash`)."""
    bits = imagehash.phash(picture).hash.flatten()
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


def as_png(picture: np.ndarray) -> bytes:
    """Return a picture [height, width, 3] as the bytes of a PNG."""
    made = BytesIO()
    Image.fromarray(picture).save(made, "PNG")
    return made.getvalue()


def from_png(data: bytes) -> np.ndarray:
    """Return the picture that `as_png` made these bytes of."""
    return np.asarray(Image.open(BytesIO(data), formats=["PNG"]))


def as_jpeg(picture: np.ndarray, quality: int = 95) -> bytes:
    """Return a picture [height, width, 3] as the bytes of a JPEG."""
    made = BytesIO()
    Image.fromarray(picture).save(made, "JPEG", quality=quality)
    return made.getvalue()


def _is_turned(picture: Image.Image) -> bool:
    """Return whether width and height are exchanged when a picture is shown, as its header says."""
    if "exif" not in picture.info and picture.format != "TIFF":  # a PNG without any would be decoded to look for more
        return False
    try:
        return picture.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    except Exception as error:
        raise Unusable("picture unreadable") from error


def _in_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        values = np.asarray(picture).astype(np.int64)
        values = values.clip(0, 65535) // 257 if values.max() > 255 else values.clip(0, 255)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if picture.mode == "F":
        raise Unusable("picture of numbers without a known range")
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return picture.convert("RGB")
