"""A drawing as SVG inside a page: its text takes the page's ink and type, in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import atan2, cos, sin

from dalle_lib.dashboard.charts import SERIES

WIDTH = 400
"""Units of width of every drawing: narrow, so that its text is legible on a phone."""
BLUE, ORANGE, GREEN, PURPLE, TEAL, RED = SERIES
INK, MUTED, LINE = "currentColor", "var(--dalle-muted, currentColor)", "var(--dalle-line, currentColor)"
TEXT, SMALL = 13, 11.5
"""Sizes of type in units. The smallest is 10 pixels where the page is 360 wide."""


@dataclass
class Drawing:
    """Shapes from the back to the front, with what the drawing says in words."""

    height: float
    alt: str
    """What a person reads who does not see it."""
    caption: str
    """One or two sentences below it."""
    shapes: list[str] = field(default_factory=list)

    def figure(self, name: str) -> str:
        """Return the drawing with its caption, as HTML."""
        return (
            f'<figure class="drawing" id="drawing-{name}">\n'
            f'<svg viewBox="0 0 {WIDTH} {self.height:g}" role="img" aria-label="{escape(self.alt, quote=True)}">\n'
            + "\n".join(self.shapes)
            + f"\n</svg>\n<figcaption>{escape(self.caption)}</figcaption>\n</figure>\n"
        )

    def rect(self, x: float, y: float, width: float, height: float, colour: str, soft: bool = True, **more) -> None:
        """Add a rectangle: filled, or `soft`, as a pale one with a border."""
        style = f'fill-opacity="0.16" stroke="{colour}"' if soft else ""
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.shapes.append(f'<rect {size} rx="{more.get("round", 3):g}" fill="{colour}" {style}/>')

    def text(
        self, x: float, y: float, words: str, size: float = TEXT, colour: str = INK, anchor: str = "start", **more
    ) -> None:
        """Add one line of text whose baseline is at `y`; `strong` makes it bold."""
        weight = ' font-weight="650"' if more.get("strong") else ""
        place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
        self.shapes.append(f'<text {place} fill="{colour}"{weight}>{escape(words)}</text>')

    def lines(self, x: float, y: float, words: Sequence[str], size: float = SMALL, **more) -> None:
        """Add lines of text below each other, the first with its baseline at `y`."""
        for number, line in enumerate(words):
            self.text(x, y + number * size * 1.3, line, size, **more)

    def box(self, x: float, y: float, width: float, height: float, colour: str, words: Sequence[str]) -> None:
        """Add a box with lines of text in its middle, the first of them bold."""
        self.rect(x, y, width, height, colour, round=6)
        step = SMALL * 1.3
        first = y + height / 2 - (len(words) - 1) * step / 2 + SMALL * 0.35
        for number, line in enumerate(words):
            strong, colour_of_text = number == 0, INK if number == 0 else MUTED
            self.text(x + width / 2, first + number * step, line, SMALL, colour_of_text, anchor="middle", strong=strong)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 1.5, dash: str = ""
    ) -> None:
        """Add a line."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        place = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self.shapes.append(f'<line {place} stroke="{colour}" stroke-width="{width:g}"{dashed}/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, **more) -> None:
        """Add a line that ends in a head."""
        angle, size = atan2(y2 - y1, x2 - x1), 7
        self.line(x1, y1, x2 - 5 * cos(angle), y2 - 5 * sin(angle), colour, **more)
        corners = [(x2 - size * cos(angle + turn), y2 - size * sin(angle + turn)) for turn in (-0.45, 0.45)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x2, y2), *corners])
        self.shapes.append(f'<polygon points="{points}" fill="{colour}"/>')

    def cross(self, x: float, y: float, colour: str = RED, size: float = 6) -> None:
        """Add a cross with its middle at a point."""
        self.line(x - size, y - size, x + size, y + size, colour, 2.5)
        self.line(x - size, y + size, x + size, y - size, colour, 2.5)

    def disc(self, x: float, y: float, radius: float, colour: str = INK) -> None:
        """Add a filled circle."""
        self.shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def path(self, places: Sequence[tuple[float, float]], colour: str, width: float = 1.8) -> None:
        """Add a line through places."""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width:g}"'
            ' stroke-linejoin="round"/>'
        )
