"""Pictures above their captions, for README. Needs Debian's fonts-dejavu-core."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

COLUMNS, SIDE, GAP, LINES = 6, 120, 8, 30
"""Pictures in a row, and pixels: of a picture's side, between two of them, and for the two lines of a caption."""
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
"""Pillow's own font has no ñ."""


def captioned(pictures: Sequence[Image.Image], captions: Sequence[str]) -> Image.Image:
    """Return the pictures, each above its caption, in rows of COLUMNS, with 256 colours."""
    width, height = SIDE + GAP, SIDE + LINES + GAP
    image = Image.new("RGB", (COLUMNS * width - GAP, -(-len(pictures) // COLUMNS) * height - GAP), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.truetype(FONT, 9.5)
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = number % COLUMNS * width, number // COLUMNS * height
        image.paste(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (x, y))
        lines = caption.replace(" on ", "\non ")
        draw.multiline_text((x + SIDE // 2, y + SIDE + 2), lines, "black", font, anchor="ma", align="center", spacing=2)
    return image.quantize(256)
