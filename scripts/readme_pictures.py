"""Draw twelve captions with the embedded model, and write them to docs/pictures_small.png as README shows them.

Each picture is the one of 64 candidates that CLIP chose. It takes half a minute on one processor core.
"""

from pathlib import Path

from PIL import Image, ImageDraw

from dalle_lib.inference import Drawing, TextToImage

CAPTIONS = (
    "penguin on a yellow background", "red apple", "pizza on a black background", "robot on a pink background",
    "rocket on a blue background", "hamburger", "cookie on a yellow background", "green frog",
    "polar bear on a black background", "croissant on a pink background", "pineapple on a pink background",
    "ghost on a black background",
)  # fmt: skip
"""The polar bear on black and the pineapple on pink were in no training data."""
CANDIDATES, COLUMNS, SIDE, GAP, LINES = 64, 6, 120, 8, 30
OUT = Path(__file__).parent.parent / "docs" / "pictures_small.png"


def sheet(drawings: list[Drawing]) -> Image.Image:
    """Return the best picture of each drawing above its caption, in rows of COLUMNS."""
    width, height = SIDE + GAP, SIDE + LINES + GAP
    image = Image.new("RGB", (COLUMNS * width - GAP, -(-len(drawings) // COLUMNS) * height - GAP), "white")
    draw = ImageDraw.Draw(image)
    for number, drawing in enumerate(drawings):
        x, y = number % COLUMNS * width, number // COLUMNS * height
        image.paste(drawing.pictures[0].resize((SIDE, SIDE), Image.Resampling.LANCZOS), (x, y))
        caption = drawing.prompt.replace(" on ", "\non ")
        draw.multiline_text((x + SIDE // 2, y + SIDE + 2), caption, "black", anchor="ma", align="center", spacing=2)
    return image


def main() -> None:
    """Draw the captions and write the picture."""
    drawings = TextToImage.from_run("emoji")(list(CAPTIONS), candidates=CANDIDATES, best=1, seed=0)
    sheet(drawings).quantize(256).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
