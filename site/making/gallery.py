"""The pictures of the landing page and of the gallery, with their captions as text."""

import ast
import json
from html import escape
from pathlib import Path

from PIL import Image

from making.repository import ROOT

GALLERY = ROOT / "site" / "gallery"
FILE = GALLERY / "gallery.json"
"""What `python scripts/gallery.py` has drawn."""
BEST, SCRIPTS = ROOT / "docs" / "pictures_small.png", ROOT / "scripts"
"""README's twelve pictures, one each of its captions, and the scripts that laid them out."""
GAP = 10
"""Pixels between two pictures of a strip."""


def constants(script: str) -> dict:
    """Return the constants of a script that are plain values, without running it."""
    found = {}
    for line in ast.parse((SCRIPTS / f"{script}.py").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign):
            (target,) = line.targets
            names = [each.id for each in getattr(target, "elts", [target])]
            try:
                value = ast.literal_eval(line.value)
            except ValueError:
                continue
            found |= dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value}
    return found


def substitutions() -> dict[str, str]:
    """Return from how many candidates CLIP chose, on the landing page and in the gallery."""
    told = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        "landing_candidates": str(constants("readme_pictures")["CANDIDATES"]),
        "gallery_candidates": str(told["candidates"]),
    }


def make(made: Path) -> None:
    """Write the pictures to `made/static/gallery/` and what shows them to `made/gallery/`."""
    pictures, pages = made / "static" / "gallery", made / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    pages.mkdir(parents=True, exist_ok=True)
    (pages / "landing.html").write_text(_landing(pictures), encoding="utf-8")
    for kind, drawn in json.loads(FILE.read_text(encoding="utf-8"))["drawn"].items():
        shown = "\n".join(_prompt(each, pictures) for each in drawn)
        (pages / f"{kind}.html").write_text(f'<div class="gallery">\n{shown}\n</div>\n', encoding="utf-8")


def _landing(folder: Path) -> str:
    """Cut README's picture into one for each caption, write them, and return what shows them."""
    layout = constants("captioned")
    width, height = (layout["SIDE"] + layout["GAP"], layout["SIDE"] + layout["LINES"] + layout["GAP"])
    shown = []
    with Image.open(BEST) as whole:
        sheet = whole.convert("RGB")
    for number, caption in enumerate(constants("readme_pictures")["CAPTIONS"]):
        left, top = number % layout["COLUMNS"] * width, number // layout["COLUMNS"] * height
        picture = sheet.crop((left, top, left + layout["SIDE"], top + layout["SIDE"]))
        picture.save(folder / f"landing-{number}.webp", quality=88, method=6)
        shown.append(_figure(f"landing-{number}.webp", f"A drawing of “{caption}”", escape(caption)))
    return '<div class="grid-of-pictures">\n' + "\n".join(shown) + "\n</div>\n"


def _figure(file: str, alt: str, caption: str) -> str:
    picture = f'<img class="dark-light" src="_static/gallery/{file}" alt="{escape(alt, quote=True)}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _prompt(told: dict, folder: Path) -> str:
    """Return one prompt with its pictures, what of it is new, and the training pictures nearest to it."""
    prompt = told["prompt"]
    names = {"first": "First sample", "best": "CLIP’s choice"}
    drawn = _strip(
        [told[which]["file"] for which in names],
        f"First sample and CLIP’s choice for “{prompt}”",
        [(name, told[which]["score"]) for which, name in names.items()],
        folder,
    )
    novelty = told["novelty"]
    novelty = f"<p>{escape(novelty[:1].upper() + novelty[1:])}.</p>" if novelty else ""
    nearest = ""
    if "nearest" in told:
        labels = [(near["caption"], near["score"]) for near in told["nearest"]]
        alt = f"The training pictures {', '.join(f'“{caption}”' for caption, _ in labels)}"
        shown = _strip([near["file"] for near in told["nearest"]], alt, labels, folder)
        nearest = f"<h4>Nearest in the training data</h4>{shown}"
    return f'<section class="prompt"><h3>{escape(prompt)}</h3>\n{drawn}\n{novelty}{nearest}</section>'


def _strip(files: list[str], alt: str, labels: list[tuple[str, float]], folder: Path) -> str:
    """Write pictures beside each other as one, which is one request, and return it with a label below each."""
    pictures = [Image.open(GALLERY / file).convert("RGBA") for file in files]
    side = pictures[0].width
    strip = Image.new("RGBA", (len(pictures) * (side + GAP) - GAP, side))
    for number, picture in enumerate(pictures):
        strip.paste(picture, (number * (side + GAP), 0))
    strip.save(folder / files[-1], quality=88, method=6)
    below = "".join(f"<span>{_breaking(escape(name))}<br>{score:.3f}</span>" for name, score in labels)
    picture = f'<img class="dark-light" src="_static/gallery/{files[-1]}" alt="{escape(alt, quote=True)}">'
    return f'<figure class="strip-{len(files)}">{picture}<figcaption>{below}</figcaption></figure>'


def _breaking(caption: str) -> str:
    """Return a caption whose longest common word may break where the column is narrow."""
    return caption.replace("background", "back&shy;ground")
