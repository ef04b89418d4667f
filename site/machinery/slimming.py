"""What a built site does not need to carry, and what its pages lack."""

import re
import shutil
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from PIL import Image

UNUSED = ("scripts/fontawesome.js*", "scripts/*.map", "styles/*.map", "vendor", "locales", "images/logo_*", "*.html")
"""Files of the theme that no page loads: icon fonts and their script (1.5 MB), sources, translations."""
RULE = re.compile(r"[^{}]+\{[^{}]*\}")
PICTURE = re.compile(r"<img\b[^>]*>")
PARAMETERS = re.compile(r"<dl>\s*(<dd>.*?</dd>)\s*</dl>", re.DOTALL)
"""The parameters of a long signature: Sphinx writes a list of definitions that defines nothing."""
LINK_INSIDE = re.compile(r"(<summary>[^<]*)<a [^>]*>([^<]*)</a>(?=[^<]*</summary>)")
"""A link in what one clicks to unfold something: the keyboard cannot reach both."""
TOGGLE = '<summary><span class="toctree-toggle" role="presentation">'


def slim(html: Path) -> None:
    """Remove what no page loads from the built site, and give each picture its size and lazy loading."""
    static = html / "_static"
    for pattern in UNUSED:
        for path in static.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    style = static / "styles" / "pydata-sphinx-theme.css"
    style.write_text(RULE.sub(_without_icons, style.read_text(encoding="utf-8")), encoding="utf-8")
    for page in html.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(mended(text, page), encoding="utf-8")


def mended(text: str, page: Path) -> str:
    """Return the HTML of `page` with sizes of pictures, and with what screen readers need."""
    text = PICTURE.sub(lambda picture: with_size(picture[0], page), text)
    text = PARAMETERS.sub(
        lambda found: found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>"), text
    )
    text = LINK_INSIDE.sub(r"\1\2", text)
    # What scrolls by itself is reached by the keyboard only if it may have the focus.
    text = text.replace('<div class="dalle-scroll">', '<div class="dalle-scroll" tabindex="0">')
    return text.replace(TOGGLE, TOGGLE.replace("<summary>", '<summary aria-label="Pages below">'))


def _without_icons(rule: re.Match) -> str:
    """Return a rule of the theme's style, or nothing if it is about the icon font alone."""
    selectors, _, body = rule[0].partition("{")
    about_icons = all(".fa" in selector for selector in selectors.split(",")) or "Font Awesome" in body
    return "" if about_icons else rule[0]


def with_size(picture: str, page: Path) -> str:
    """Return an `<img>` that tells its size, so that the page does not jump when the picture has come."""
    attributes = {name: value for name, _, value in re.findall(r"""([\w-]+)=(["'])(.*?)\2""", picture)}
    source = attributes.get("src", "")
    added = {"loading": "lazy", "decoding": "async"}
    if not source.startswith(("data:", "http:", "https:")) and not {"width", "height"} & attributes.keys():
        width, height = size_of(page.parent / unquote(source).partition("?")[0])
        added |= {"width": str(width), "height": str(height)}
    new = " ".join(f'{name}="{value}"' for name, value in added.items() if name not in attributes)
    return re.sub(r"<img\b", f"<img {new}", picture, count=1)


def size_of(picture: Path) -> tuple[int, int]:
    """Return width and height of a picture in pixels of CSS."""
    if picture.suffix != ".svg":
        with Image.open(picture) as image:
            return image.size
    root = ElementTree.parse(picture).getroot()
    if box := root.get("viewBox"):
        _, _, width, height = map(float, box.replace(",", " ").split())
    else:
        width, height = (float(root.get(name, "").removesuffix("px")) for name in ("width", "height"))
    return round(width), round(height)
