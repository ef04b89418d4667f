"""Draw with the embedded model what README shows: docs/pictures_small.png and docs/rows.gif.

The first has twelve captions, of each the one of 64 candidates that CLIP chose. The second shows how the first samples
of six captions appear row by row. It takes half a minute on one processor core.
"""

from pathlib import Path

from captioned import COLUMNS, GAP, SIDE, captioned
from PIL import Image

from dalle_lib.inference import Progress, TextToImage

CAPTIONS = (
    "penguin on a yellow background", "red apple", "pizza on a black background", "robot on a pink background",
    "rocket on a blue background", "hamburger", "cookie on a yellow background", "green frog",
    "polar bear on a black background", "croissant on a pink background", "pineapple on a pink background",
    "ghost on a black background",
)  # fmt: skip
"""The polar bear on black and the pineapple on pink were in no training data."""
CANDIDATES = 64
ROW_MS, LAST_MS = 250, 2500
"""How long the animation shows each row, and the finished pictures."""
DOCS = Path(__file__).parent.parent / "docs"


def rows_appearing(draw: TextToImage, captions: tuple[str, ...], file: Path) -> None:
    """Write an animation of the first samples of `captions`, side by side, as their rows of codes are drawn."""
    columns = []
    for caption in captions:
        shown: list[Image.Image] = []
        draw(caption, candidates=1, best=1, seed=0, progress=lambda p, to=shown: to.append(_first(draw, p)))
        columns.append(shown)
    frames = []
    for pictures in zip(*columns, strict=True):
        frame = Image.new("RGB", (len(captions) * (SIDE + GAP) - GAP, SIDE), "white")
        for number, picture in enumerate(pictures):
            frame.paste(picture, (number * (SIDE + GAP), 0))
        frames.append(frame)
    palette = frames[-1].quantize(128)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [ROW_MS] * len(others) + [LAST_MS]
    first.save(file, save_all=True, append_images=others, duration=times, loop=0, optimize=True)


def _first(draw: TextToImage, progress: Progress) -> Image.Image:
    """Return the first candidate as far as it is drawn."""
    picture = Image.fromarray(draw.preview(progress.codes[:1])[0].numpy())
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def main() -> None:
    """Draw the captions and write both files."""
    draw = TextToImage.from_run("emoji")
    drawings = draw(list(CAPTIONS), candidates=CANDIDATES, best=1, seed=0)
    best = [drawing.pictures[0] for drawing in drawings]
    captioned(best, CAPTIONS).save(DOCS / "pictures_small.png", optimize=True)
    rows_appearing(draw, CAPTIONS[:COLUMNS], DOCS / "rows.gif")


if __name__ == "__main__":
    main()
