"""What drawing gives: how far it is while it goes on, and what came out."""

import hashlib
import io
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from dalle_lib.files import replace_file
from dalle_lib.inference.captions import ARTICLES, Novelty, words_in
from dalle_lib.inference.choosing import Choice
from dalle_lib.inference.settings import Settings
from dalle_lib.model import ModelConfig
from dalle_lib.one_line import shortened
from dalle_lib.vqgan import VQGANConfig

GAP = 4
"""Pixels of white to the right of each picture of a contact sheet, and below it."""
LABEL = 18
"""Pixels of height for the words below a picture of a grid."""


@dataclass(frozen=True)
class Progress:
    """How far the drawing of one prompt is."""

    prompt: str
    drawn: int
    """Candidates that are finished, without those that are being drawn now."""
    candidates: int
    """Candidates that were asked for."""
    codes: Int[Tensor, "side_by_side codes"]
    """The codes so far of the candidates that are being drawn now, side by side."""
    codes_each: int
    """Codes of a whole picture."""

    @property
    def share(self) -> float:
        """The part of the prompt's codes that are drawn, from 0 to 1."""
        finished = self.drawn + len(self.codes) * self.codes.shape[1] / self.codes_each
        return finished / self.candidates


@dataclass(frozen=True, repr=False)
class Drawing:
    """All candidates for one prompt, and how well each fits it according to CLIP, if there was one."""

    prompt: str
    caption: str
    """The prompt as the model and CLIP read it: as the run's training captions would say it, if these are known."""
    model: str
    """Name of the run that the model is from."""
    settings: Settings
    """How it was drawn, with the guidance and the seed that were used."""
    candidates: UInt8[Tensor, "candidates height width 3"]
    """The pictures, in the order drawn."""
    codes: Int[Tensor, "candidates codes"]
    """Their codes, row by row."""
    scores: Float[Tensor, "candidates"] | None
    """Cosine similarity of each picture and the prompt; None without a CLIP."""
    choices: list[Choice]
    """The best of the different pictures, best first, and how many candidates are the same; see `choose_best`."""
    noise: float | None
    """Scores that differ by less mean the same; see `CLIPRanker.noise`. None where all candidates are one picture,
    and without a CLIP."""
    seconds: dict[str, float]
    """Seconds that drawing, decoding and ranking took."""
    novelty: Novelty = field(default_factory=Novelty)
    """What of the prompt is not in the training data; empty where those captions are not at hand."""

    @property
    def unknown_words(self) -> list[str]:
        """Words of the prompt that no training caption holds."""
        return self.novelty.words

    @property
    def reading(self) -> str:
        """How the prompt was read, where that differs from what was typed by more than articles; else nothing."""
        typed, read = ([w for w in words_in(text) if w not in ARTICLES] for text in (self.prompt, self.caption))
        return "" if typed == read else f"read as {shortened(self.caption)!r}"

    @property
    def best(self) -> list[int]:
        """Numbers of the best candidates, best first; no two are the same picture, so there may be fewer than asked."""
        return [choice.number for choice in self.choices]

    @property
    def pictures(self) -> list[Image.Image]:
        """The best candidates, best first."""
        return [Image.fromarray(self.candidates[number].numpy()) for number in self.best]

    @property
    def labels(self) -> list[str]:
        """For each of the best: how many candidates are the same picture, and its CLIP score, as in "x31 · 0.874"."""
        if self.scores is None:
            return [f"x{choice.count}" for choice in self.choices]
        return [f"x{choice.count} · {float(self.scores[choice.number]):.3f}" for choice in self.choices]

    def __repr__(self) -> str:
        """Return one line: prompt, run, seed, the best pictures' labels, time, how it was read, and what is new."""
        parts = [
            f"{self.prompt!r} by {self.model}, seed {self.settings.seed}",
            f"{len(self.candidates)} candidates, best {', '.join(self.labels)}",
            f"{sum(self.seconds.values()):.1f} s",
            self.reading,
            str(self.novelty),
        ]
        return f"<Drawing of {'; '.join(filter(None, parts))}>"

    def _repr_png_(self) -> bytes:
        """Return the grid as notebooks show it."""
        return png_bytes(self.grid())

    def grid(self, side: int = 128) -> Image.Image:
        """Return the best pictures beside each other, `side` pixels wide, each above its label."""
        return labelled(self.pictures, self.labels, side)

    def sheet(self) -> Image.Image:
        """Return all candidates as one picture, in the order drawn."""
        return contact_sheet(self.candidates, columns=min(8, len(self.candidates)))

    def save(self, folder: str | Path) -> list[Path]:
        """Write the best candidates as PNG files that say how to draw them again, and return their paths, best first.

        A contact sheet of all candidates, whose name ends in "all", is written beside them; its path comes last. Files
        of the same prompt, seed and rank are replaced. A name that cannot spell its prompt, which is long or has other
        signs than small letters, has eight digits of the prompt's hash; each picture holds it whole. No file is half
        written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem, files = f"{self._spelt()}-{self.settings.seed}", []
        for rank, (number, picture) in enumerate(zip(self.best, self.pictures, strict=True), start=1):
            about = PngInfo()
            for name, value in self.about(number).items():
                about.add_itxt(name, str(value))
            files.append(folder / f"{stem}-{rank}.png")
            _save_whole(picture, files[-1], about)
        files.append(folder / f"{stem}-all.png")
        _save_whole(self.sheet(), files[-1])
        return files

    def _spelt(self) -> str:
        """Return the prompt as part of a file's name; no two prompts have the same."""
        whole = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower()).strip("-")
        if whole.replace("-", " ") == self.prompt and len(whole) <= 60:
            return whole
        digits = hashlib.sha256(self.prompt.encode()).hexdigest()[:8]
        return f"{whole[:60].strip('-') or 'picture'}-{digits}"

    def about(self, number: int) -> dict[str, str | int | float]:
        """Return what the PNG of candidate `number` says of itself: prompt, model, score and settings."""
        return {
            "prompt": self.prompt,
            "model": self.model,
            "candidate": f"{number + 1} of {len(self.candidates)}",
            **({} if self.scores is None else {"score": round(float(self.scores[number]), 4)}),
            **asdict(self.settings),
        }


def require_same_codes(name: str, model: ModelConfig, vqgan: VQGANConfig) -> None:
    """Raise ValueError, which names the run, unless its VQ-GAN shows the codes that its model draws."""
    drawn, shown = (model.grid, model.image_vocab), (vqgan.grid, vqgan.codebook_size)
    if drawn != shown:
        raise ValueError(
            f"{name} draws grids of {drawn[0]} among {drawn[1]} codes, but its VQ-GAN shows grids of {shown[0]} among "
            f"{shown[1]}: get the right VQ-GAN from its organiser."
        )


def _save_whole(picture: Image.Image, file: Path, about: PngInfo | None = None) -> None:
    """Write a PNG file that is whole or not there. Raises OSError, which names the file, if it cannot be written."""
    try:
        with replace_file(file) as unfinished:
            picture.save(unfinished, "PNG", pnginfo=about)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OSError(f"expected room for {file}, but it could not be written ({reason}).") from error


def png_bytes(picture: Image.Image) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def labelled(pictures: list[Image.Image], labels: list[str], side: int) -> Image.Image:
    """Return `pictures` beside each other as one, each `side` pixels a side and above its label."""
    sheet = Image.new("RGB", (len(pictures) * (side + GAP) - GAP, side + LABEL), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        sheet.paste(picture.resize((side, side), Image.Resampling.LANCZOS), (place * (side + GAP), 0))
        draw.text((place * (side + GAP) + side // 2, side + 3), label, "black", anchor="ma", font_size=12)
    return sheet


def contact_sheet(pictures: UInt8[Tensor, "pictures height width 3"], columns: int = 8, side: int = 128) -> Image.Image:
    """Return `pictures` as one picture, row by row in `columns`, each scaled to `side` pixels a side."""
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (side + GAP), rows * (side + GAP)), "white")
    for i, picture in enumerate(pictures):
        place = (i % columns * (side + GAP), i // columns * (side + GAP))
        sheet.paste(Image.fromarray(picture.numpy()).resize((side, side), Image.Resampling.LANCZOS), place)
    return sheet
