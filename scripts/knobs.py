"""Draw what guidance, temperature and top-k do, and write it to docs/knobs.png as README shows it.

One row a knob, with four first samples of one caption at each value. The other knobs are at their defaults, but top-k
is shown at a high temperature: at 1 this model is so sure that top-k changes nothing. It takes a quarter of a minute on
one processor core.
"""

from pathlib import Path

from PIL import Image, ImageDraw

from dalle_lib.inference import Drawing, TextToImage

CAPTION = "penguin on a yellow background"
BESIDE = {"top_k": {"temperature": 6.0}}
"""What else is set for the row of a knob."""
KNOBS = {
    "guidance": (0.0, 0.2, 0.4, 1.0, 1.5, 6.0),
    "temperature": (0.5, 1.0, 2.0, 3.0, 4.0, 6.0),
    "top_k": (1, 2, 8, 64, 256, 0),
}
SIDE, GAP, LABEL, NAME = 56, 10, 20, 116
"""Pixels of a sample's side, between the values, of a value's label, and of a knob's name."""
OUT = Path(__file__).parent.parent / "docs" / "knobs.png"


def sheet(rows: dict[str, list[Drawing]]) -> Image.Image:
    """Return the drawings with four samples each, a row a knob."""
    width, height = 2 * SIDE + GAP, 2 * SIDE + LABEL + GAP
    image = Image.new("RGB", (NAME + 6 * width - GAP, len(rows) * height - GAP), "white")
    draw = ImageDraw.Draw(image)
    for row, (knob, drawings) in enumerate(rows.items()):
        beside = "".join(f"\nat {other} {value:g}" for other, value in BESIDE.get(knob, {}).items())
        draw.text((0, row * height + SIDE), knob.replace("_", "-") + beside, "black", anchor="lm", font_size=14)
        for column, (value, drawing) in enumerate(zip(KNOBS[knob], drawings, strict=True)):
            x, y = NAME + column * width, row * height
            for number, pixels in enumerate(drawing.candidates):
                sample = Image.fromarray(pixels.numpy()).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                image.paste(sample, (x + number % 2 * SIDE, y + number // 2 * SIDE))
            name = "0 (all)" if knob == "top_k" and value == 0 else f"{value:g}"
            draw.text((x + SIDE, y + 2 * SIDE + 3), name, "black", anchor="ma", font_size=13)
    return image


def main() -> None:
    """Draw at each value of each knob, and write the picture."""
    draw = TextToImage.from_run("emoji")
    rows = {
        knob: [draw(CAPTION, candidates=4, best=1, seed=0, **{knob: value}, **BESIDE.get(knob, {})) for value in values]
        for knob, values in KNOBS.items()
    }
    sheet(rows).quantize(128).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
