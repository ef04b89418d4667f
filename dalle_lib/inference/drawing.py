"""What a drawing is: how it is asked for, how far it is, and what came out."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from jaxtyping import Float, Int, UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How candidates are drawn."""

    top_k: int = 256
    """Draw each code among this many likeliest ones; 0 is all."""
    top_p: float = 1.0
    """Draw each code among the likeliest ones that together have this probability; 0 takes the likeliest alone."""
    temperature: float = 1.0
    """Below 1 safer, above 1 bolder."""
    guidance: float = 1.0
    """How strongly the caption pulls; 1 is the model as it is, and needs half the time."""
    seed: int = 0
    """The same seed and settings give the same pictures on one kind of device, however many are drawn."""


@dataclass(frozen=True)
class Progress:
    """How far one drawing is."""

    prompt: str
    drawn: int
    """Candidates finished before those that are being drawn now."""
    candidates: int
    codes: Int[Tensor, "side_by_side codes"]
    """What is drawn so far of the candidates that are drawn side by side now."""
    codes_each: int
    """Codes of a whole picture."""

    @property
    def share(self) -> float:
        """The part of the whole work that is done, from 0 to 1."""
        finished = self.drawn + len(self.codes) * self.codes.shape[1] / self.codes_each
        return finished / self.candidates


@dataclass(frozen=True)
class Drawing:
    """All candidates for one prompt, and what CLIP thinks of them."""

    prompt: str
    model: str
    settings: Settings
    candidates: UInt8[Tensor, "candidates height width 3"]
    """In the order drawn."""
    codes: Int[Tensor, "candidates codes"]
    scores: Float[Tensor, "candidates"]
    """Cosine similarity of picture and prompt."""
    best: list[int]
    """Numbers of the best candidates, best first; the same picture twice only where there are not enough others."""
    seconds: dict[str, float]
    """Time for drawing, decoding and ranking."""
    unknown_words: list[str] = field(default_factory=list)
    """Words of the prompt that are in no caption the model has seen, if those are known."""

    @property
    def pictures(self) -> list[Image.Image]:
        """The best candidates, best first."""
        return [Image.fromarray(self.candidates[i].numpy()) for i in self.best]

    def save(self, folder: str | Path) -> list[Path]:
        """Write the best candidates as PNG files that say how to draw them again, and return where."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower()).strip("-")[:60] or "picture"
        files = []
        for rank, (number, picture) in enumerate(zip(self.best, self.pictures, strict=True), start=1):
            about = PngInfo()
            for name, value in self.about(number).items():
                about.add_itxt(name, str(value))
            files.append(folder / f"{stem}-{self.settings.seed}-{rank}.png")
            picture.save(files[-1], pnginfo=about)
        return files

    def about(self, number: int) -> dict[str, str | int | float]:
        """Return what is kept inside the PNG of a candidate."""
        return {
            "prompt": self.prompt,
            "model": self.model,
            "candidate": f"{number + 1} of {len(self.candidates)}",
            "score": round(float(self.scores[number]), 4),
            **{name: getattr(self.settings, name) for name in self.settings.__dataclass_fields__},
        }


def contact_sheet(pictures: UInt8[Tensor, "pictures height width 3"], columns: int = 8, side: int = 128) -> Image.Image:
    """Return `pictures` side by side, row by row, each `side` pixels wide."""
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (side + 4), rows * (side + 4)), "white")
    for i, picture in enumerate(pictures):
        place = (i % columns * (side + 4), i // columns * (side + 4))
        sheet.paste(Image.fromarray(picture.numpy()).resize((side, side), Image.Resampling.LANCZOS), place)
    return sheet
