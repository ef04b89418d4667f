"""The pictures of the embedded runs: emoji of Debian's font, plain, in other colours and on coloured backgrounds.

Needs Debian's fonts-noto-color-emoji and unicode-data.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
NAMES = "/usr/share/unicode/emoji/emoji-test.txt"
SMALL = (
    "🍕🍌🍔🍎🍐🍊🍋🍉🍇🍓🍒🍍🥝🍅🥑🍆🥔🥕🌽🍄🥐🍞🧀🍟🌭🌮🍩🎂🍦🍫🍭☕🐱🐶🐭🐰🦊🐻🐼🐯🦁🐮🐷🐸🐵🐔🐧🐦🦆🦉🐝🐞🦋🐌🐢🐍🐙"
    "🐟🐬🐳🦀😀😎😍😭🤖👻👽💀🎃❤⭐🌈🔥🌙🌻🌹🌷🌵🌲🚀🚗🚌🚲⛵🎈🎁⚽🎸🔑"
)
"""The small set: well-known emoji, on which the demo trains."""
GROUPS = ("Smileys & Emotion", "Animals & Nature", "Food & Drink", "Activities")
"""Unicode's groups of emoji whose names no caption in another colour may take."""
LARGE_GROUPS = GROUPS[1:]
"""The groups that, with the small set, make the large set: most smileys differ by less than 64x64 pixels can show."""
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Palette:
    """The colours of a set of pictures."""

    hues: dict[str, int]
    """Colours of emoji, in degrees of the colour circle."""
    backgrounds: dict[str, tuple[int, int, int]]
    """Colours of backgrounds, beside white."""
    doubles: int
    """Pictures of each emoji in the training data that are in another colour and on a background."""
    near: float | None
    """Degrees from an emoji's main hue within which pixels take another colour; None turns all hues alike."""
    least_change: float
    """Share of an emoji's pixels that another colour must change visibly; else there is no picture in that colour."""


FEW = Palette(
    hues={"red": 0, "green": 120, "blue": 215, "purple": 275},
    backgrounds={"yellow": (255, 214, 64), "pink": (244, 130, 180), "black": (20, 20, 24), "blue": (48, 120, 240)},
    doubles=0,
    near=None,
    least_change=0.0,
)
"""The small set's colours."""
MANY = Palette(
    hues={"red": 0, "orange": 28, "yellow": 54, "green": 120, "teal": 175, "blue": 215, "purple": 272, "magenta": 320},
    backgrounds=FEW.backgrounds
    | {"grey": (128, 128, 128), "orange": (255, 140, 40), "green": (60, 170, 80), "purple": (140, 70, 200)},
    doubles=18,
    near=35,
    least_change=0.25,
)
"""The large set's colours: enough of each that words combine."""
COLOURLESS = 0.12
"""Colourfulness, from 0 to 1, below which an emoji has no variants in other colours."""
VISIBLE_LEVELS = 40
"""Levels, of 255, by which a pixel must change in a colour to look changed."""
NEAR_DEGREES = 20
"""Degrees between an emoji's main hue and a colour within which it has no variant in that colour."""


@dataclass(frozen=True)
class Picture:
    """One picture and its caption."""

    caption: str
    pixels: np.ndarray
    alpha: np.ndarray
    """How opaque the emoji is at each pixel, 0 to 255."""
    name: str
    """Unicode's name of the emoji that it shows."""
    kind: str
    """plain, colour, background or both."""
    held_out: bool
    """Whether the caption, and so this combination, is in no training data."""


def pixels_of(pictures: list[Picture]) -> torch.Tensor:
    """Return the pictures as [pictures, 64, 64, 3] bytes."""
    return torch.from_numpy(np.stack([picture.pixels for picture in pictures]))


def make_pictures(palette: Palette) -> list[Picture]:
    """Return the small set (`FEW`) or the large set (`MANY`). One colour and one background of each emoji are held out.

    A held-out picture of kind "both" has the held-out colour on the held-out background.
    """
    emoji, taken, pictures = emoji_of(GROUPS), set(), []
    names, large = set(emoji.values()), set(emoji_of(LARGE_GROUPS))
    for symbol, name in emoji.items():
        if symbol in SMALL if palette is FEW else symbol in large:
            for picture in variants(symbol, name, palette, names | taken):
                if picture.kind == "plain" or picture.caption not in names | taken:
                    taken.add(picture.caption)
                    pictures.append(picture)
    return pictures


def emoji_of(groups: Sequence[str]) -> dict[str, str]:
    """Return the emoji of these groups and of the small set with Unicode's short names, without skin tones."""
    chosen, group = {}, ""
    for line in Path(NAMES).read_text(encoding="utf-8").splitlines():
        if line.startswith("# group: "):
            group = line.removeprefix("# group: ")
        elif found := re.match(r".*; fully-qualified +# (\S+) E[\d.]+ (.+)", line):
            symbol, name = found[1].replace("\ufe0f", ""), found[2].lower().replace("’", "'")
            if "skin tone" not in name and (symbol in SMALL or group in groups):
                chosen[symbol] = name
    return chosen


def variants(symbol: str, name: str, palette: Palette, taken: set[str]) -> Iterator[Picture]:
    """Yield the pictures of one emoji, without colours whose caption is another emoji's name."""
    picture = glyph(symbol)
    alpha = np.asarray(picture)[..., 3]

    def drawn(caption: str, image: Image.Image, rgb: tuple[int, int, int], kind: str, held_out: bool) -> Picture:
        return Picture(caption, on_background(image, rgb), alpha, name, kind, held_out)

    yield drawn(name, picture, WHITE, "plain", held_out=False)
    hue, colourful = main_hue(picture)
    bare, hues, backgrounds = bare_name(name), palette.hues, palette.backgrounds
    secret_hue = list(hues)[chosen(name, len(hues))]
    secret_background = list(backgrounds)[chosen(f"{name} background", len(backgrounds))]
    coloured = {}
    for colour, target in hues.items():
        near = is_near(hue, target)
        if colourful >= COLOURLESS and not near and f"{colour} {bare}" not in taken:
            recoloured = in_hue(picture, hue, target, palette.near)
            if changed_share(picture, recoloured) >= palette.least_change:
                coloured[colour] = recoloured
                yield drawn(f"{colour} {bare}", recoloured, WHITE, "colour", colour == secret_hue)
    for colour, rgb in backgrounds.items():
        yield drawn(f"{name} on a {colour} background", picture, rgb, "background", colour == secret_background)
    # An orange emoji on an orange background cannot be seen.
    doubles = [(hue, background) for hue in coloured for background in backgrounds if hue != background]
    seen = [(h, b) for h, b in doubles if h != secret_hue and b != secret_background]
    for _ in range(min(palette.doubles, len(seen))):
        hue, background = seen.pop(chosen(f"{name} {len(seen)}", len(seen)))
        caption = f"{hue} {bare} on a {background} background"
        yield drawn(caption, coloured[hue], backgrounds[background], "both", held_out=False)
    if palette.doubles and secret_hue in coloured and secret_hue != secret_background:
        caption = f"{secret_hue} {bare} on a {secret_background} background"
        yield drawn(caption, coloured[secret_hue], backgrounds[secret_background], "both", held_out=True)


def own_colours(symbol: str, hues: dict[str, int]) -> list[str]:
    """Return the colours in which an emoji has no variant as it has about that hue by itself."""
    hue, colourful = main_hue(glyph(symbol))
    return [colour for colour, target in hues.items() if colourful >= COLOURLESS and is_near(hue, target)]


def is_near(hue: float, target: float) -> bool:
    """Return whether two hues, in degrees, are within NEAR_DEGREES of each other."""
    return abs((hue - target + 180) % 360 - 180) < NEAR_DEGREES


def bare_name(name: str) -> str:
    """Return the name of an emoji without its colour."""
    return re.sub(r"^(red|orange|yellow|green|blue|purple|pink) ", "", name)


def chosen(key: str, count: int) -> int:
    """Return a number below `count` that depends on `key` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % count


def render(symbol: str, background: int) -> np.ndarray:
    """Return the 128x128 glyph over a grey level, as float RGB."""
    canvas = Image.new("RGB", (140, 140), (background,) * 3)
    font = ImageFont.truetype(FONT, 109)
    ImageDraw.Draw(canvas).text((0, 0), symbol, font=font, embedded_color=True)
    return np.asarray(canvas, np.float32)[0:128, 4:132]


def glyph(symbol: str) -> Image.Image:
    """Return the 64x64 emoji with its transparency, which follows from renderings on white and on black."""
    white, black = render(symbol, 255), render(symbol, 0)
    alpha = (1 - (white - black).mean(-1, keepdims=True) / 255).clip(0, 1)
    premultiplied = np.concatenate([black, alpha * 255], -1).reshape(64, 2, 64, 2, 4).mean((1, 3))
    colour = premultiplied[..., :3] / (premultiplied[..., 3:] / 255).clip(1e-3)
    rgba = np.concatenate([colour.clip(0, 255), premultiplied[..., 3:]], -1)
    return Image.fromarray(rgba.round().astype(np.uint8), "RGBA")


def on_background(picture: Image.Image, background: tuple[int, int, int]) -> np.ndarray:
    """Return the emoji over a plain colour."""
    canvas = Image.new("RGBA", picture.size, (*background, 255))
    return np.asarray(Image.alpha_composite(canvas, picture).convert("RGB"))


def main_hue(picture: Image.Image) -> tuple[float, float]:
    """Return the most common hue in degrees, weighted by colourfulness, and the mean colourfulness, from 0 to 1."""
    hue, saturation, value = np.moveaxis(np.asarray(picture.convert("RGB").convert("HSV"), np.float32), -1, 0)
    alpha = np.asarray(picture, np.float32)[..., 3] / 255
    weight = saturation / 255 * value / 255 * alpha
    bins = np.bincount((hue / 256 * 36).astype(int).ravel(), weight.ravel(), minlength=36)
    smooth = bins + np.roll(bins, 1) + np.roll(bins, -1)
    return (smooth.argmax() + 0.5) * 10, float(weight.sum() / max(alpha.sum(), 1))


def changed_share(before: Image.Image, after: Image.Image) -> float:
    """Return the share of an emoji's opaque pixels that differ visibly, from 0 to 1."""
    difference = np.abs(np.asarray(before, int) - np.asarray(after, int))[..., :3].max(-1)
    return float((difference[np.asarray(before)[..., 3] > 127] > VISIBLE_LEVELS).mean())


def in_hue(picture: Image.Image, main: float, target: float, near: float | None) -> Image.Image:
    """Return the emoji with the hue `target` where its own is within `near` of `main`, all in degrees.

    So the leaves of a purple strawberry stay green. Without `near` all hues are turned by as much as `main` is.
    """
    hsv = np.array(picture.convert("RGB").convert("HSV"))
    hue, byte = hsv[..., 0].astype(int), 256 / 360
    if near is None:
        hsv[..., 0] = (hue + round((target - main) * byte)) % 256
    else:
        distance = abs((hue / byte - main + 180) % 360 - 180)
        hsv[..., 0] = np.where(distance <= near, round(target * byte) % 256, hue)
    recoloured = Image.fromarray(hsv, "HSV").convert("RGB")
    recoloured.putalpha(picture.getchannel("A"))
    return recoloured
