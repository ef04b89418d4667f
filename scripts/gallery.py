"""Draw with the embedded model what the site's gallery shows: site/gallery/.

Each prompt has its first sample and CLIP's choice of 32 candidates. Beside the prompts whose parts the
training data hold, but not together, are the training pictures that are nearest to the prompt's CLIP embedding.
`gallery.json` says what each file is. It takes three minutes of a processor core, and draws the same files each time.
"""

import json
import re
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dalle_lib.inference import Drawing, TextToImage

KNOWN, NEW, FAILING = "known", "new", "failing"
PROMPTS = {
    KNOWN: (
        "lion on a yellow background", "blue rose on a black background", "purple butterfly on a yellow background",
        "magenta dragon on a green background", "yellow whale on a black background",
        "teal teapot on a yellow background",
    ),
    NEW: (
        "polar bear on a black background", "green rocket on a pink background", "teal octopus on an orange background",
        "blue tomato on an orange background", "orange turtle on a blue background", "purple pizza",
    ),
    FAILING: (
        "purple elephant", "two red apples", "a dog riding a bicycle", "a green umbrella on a pink background",
        "the Eiffel Tower at sunset", "a wizard",
    ),
}  # fmt: skip
"""What was in the training data, what is a new combination of what was, and what the model cannot know."""
CANDIDATES, SEED, NEAREST, SIDE = 32, 0, 4, 128
OUT = Path(__file__).parent.parent / "site" / "gallery"


def main() -> None:
    """Draw all prompts, and write the pictures and gallery.json."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.webp"):
        old.unlink()
    draw = TextToImage.from_run("emoji")
    told = {
        kind: [_told(draw, prompt, nearest=NEAREST if kind == NEW else 0) for prompt in prompts]
        for kind, prompts in PROMPTS.items()
    }
    about = {"run": "emoji", "candidates": CANDIDATES, "seed": SEED, "command": "python scripts/gallery.py"}
    (OUT / "gallery.json").write_text(json.dumps(about | {"drawn": told}, indent=1) + "\n")


def _told(draw: TextToImage, prompt: str, nearest: int) -> dict:
    """Draw one prompt, write its pictures, and return what gallery.json says of it."""
    drawing = draw(prompt, candidates=CANDIDATES, best=1, seed=SEED)
    name = re.sub(r"\W+", "-", prompt.lower())
    told = {
        "prompt": prompt,
        "novelty": str(drawing.novelty),
        "first": _picture(drawing, 0, name),
        "best": _picture(drawing, drawing.best[0], f"{name}-best"),
    }
    if nearest:
        found = draw.nearest_training(prompt, nearest)
        told["nearest"] = [
            {"caption": caption, "score": round(score, 3), "file": _write(pixels, f"{name}-nearest-{number}")}
            for number, (caption, score, pixels) in enumerate(
                zip(found.captions, found.scores.tolist(), found.pictures, strict=True), start=1
            )
        ]
    return told


def _picture(drawing: Drawing, number: int, name: str) -> dict:
    """Write one candidate; return its file and its score by CLIP."""
    return {"file": _write(drawing.candidates[number], name), "score": round(float(drawing.scores[number]), 3)}


def _write(pixels: Tensor, name: str) -> str:
    """Write a picture as WebP, twice as large as it was drawn, and return the file's name."""
    picture = Image.fromarray(pixels.to(torch.uint8).numpy()).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    picture.save(OUT / f"{name}.webp", quality=88, method=6)
    return f"{name}.webp"


if __name__ == "__main__":
    main()
