"""From a prompt to pictures: draw many candidates, and keep the few that CLIP finds best."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dalle_lib.checkpoint import load_model
from dalle_lib.inference.drawing import Drawing, Progress, Settings
from dalle_lib.inference.published import Download, PaperFiles, hub_file
from dalle_lib.machine import autocast_dtype, free_memory, require_room_in_cache, working_gpus
from dalle_lib.model import DALLE, cache_bytes, generate_rows
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.vqgan import VQGAN, load_vqgan

logger = logging.getLogger(__name__)

PAPER = "paper-2021"
"""The name under which `from_run` knows the paper's published model."""
CACHE_SHARE = 0.75
"""The part of the free memory that may be taken to remember unfinished pictures: on 16 GB, 128 of the paper's model."""


class TextToImage:
    """Draws pictures of prompts with the model of a run: `TextToImage.from_run("emoji")("penguin").pictures[0].show()`.

    Called with a prompt it returns a Drawing, with a list of prompts a list of them.
    """

    def __init__(
        self,
        name: str,
        model: DALLE,
        tokenizer: CaptionTokenizer,
        vqgan: VQGAN,
        ranker: CLIPRanker,
        guidance: float = 1.0,
        known_words: Iterable[str] | None = None,
    ) -> None:
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.vqgan = vqgan
        self.ranker = ranker
        self.guidance = guidance
        """Used unless a call asks for another."""
        self.known_words = None if known_words is None else frozenset(known_words)

    @classmethod
    def from_run(cls, run: str | Path = "emoji", device: str | torch.device | None = None) -> "TextToImage":
        """Return what draws with a run's checkpoint: an embedded run, a folder, "owner/name" on the Hub, or PAPER.

        `device` is a GPU if there is one, unless named. Raises ValueError if there is no such run, or if it has no
        checkpoint yet, NotEnoughRoom before a download that would not fit.
        """
        if run == PAPER:
            return cls.from_paper(device=device)
        card = RunCard.load(run)
        if card.checkpoint is None:
            raise ValueError(f"run {card.name!r} has no checkpoint to draw with yet: train it, or ask its organiser.")
        require_room_in_cache(card.name, lambda: _sizes(downloads(run)))
        return cls.from_card(card, load_model(card.path(card.checkpoint), card.model), device)

    @classmethod
    def from_paper(cls, files: PaperFiles | None = None, device: str | torch.device | None = None) -> "TextToImage":
        """Return what draws with the paper's published model, after fetching what is not here yet.

        Raises NotEnoughRoom before a download that would not fit, ValueError if a file is not what it should be, and
        ConnectionError if one cannot be fetched.
        """
        files, device = files or PaperFiles(), choose_device(device)
        require_room_in_cache(PAPER, lambda: _sizes(files.downloads()))
        return cls(
            PAPER,
            files.load_model().to(device),
            files.load_tokenizer(),
            files.load_vqgan().to(device),
            CLIPRanker(files.clip, device),
        )

    @classmethod
    def from_card(cls, card: RunCard, model: DALLE, device: str | torch.device | None = None) -> "TextToImage":
        """Return what draws with `model` and the run's tokenizer, VQ-GAN and CLIP."""
        device = choose_device(device)
        return cls(
            card.name,
            model.to(device),
            CaptionTokenizer(card.path(card.tokenizer), card.model.text_length),
            load_vqgan(card.path(card.vqgan)).to(device),
            CLIPRanker(card.clip_source(), device),
            # A model that never saw an empty caption has nothing to be guided away from.
            guidance=1.5 if card.recipe.caption_dropout else 1.0,
            known_words=_words_of(card),
        )

    def __call__(
        self,
        prompts: str | list[str],
        *,
        candidates: int = 32,
        best: int = 4,
        top_k: int = Settings.top_k,
        top_p: float = Settings.top_p,
        temperature: float = Settings.temperature,
        guidance: float | None = None,
        seed: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Drawing | list[Drawing]:
        """Return the drawing of a prompt, or one for each of a list: `candidates` pictures, CLIP's choice the `best`.

        Without a `seed`, one is made up; the Drawing names it. `progress` is called after each row of codes.
        Raises ValueError for a prompt that is empty, or a setting out of its range, and FloatingPointError if the
        model's weights are broken: what they say of the next code is not finite.
        """
        if not 1 <= best <= candidates:
            raise ValueError(f"expected 1 <= best <= candidates, but got best={best}, candidates={candidates}.")
        each = [prompts] if isinstance(prompts, str) else prompts
        if empty := [prompt for prompt in each if not prompt.strip()]:
            raise ValueError(f"expected prompts of at least one word, but got {empty[0]!r}.")
        settings = Settings(
            top_k=top_k,
            top_p=top_p,
            temperature=temperature,
            guidance=self.guidance if guidance is None else guidance,
            seed=secrets.randbelow(2**31) if seed is None else seed,
        )
        drawings = [self._draw(prompt, settings, candidates, best, progress) for prompt in each]
        return drawings[0] if isinstance(prompts, str) else drawings

    def estimate(self, candidates: int) -> float:
        """Return about how many seconds a prompt with so many candidates takes, by drawing one row of codes."""
        count, started = self.side_by_side(candidates, self.guidance), time.perf_counter()
        next(self._rows("a", Settings(guidance=self.guidance), 0, count))
        return (time.perf_counter() - started) * self.model.config.grid * -(-candidates // count)

    def side_by_side(self, candidates: int, guidance: float = 1.0) -> int:
        """Return how many candidates are drawn at once: all, if what must be remembered of them fits into memory."""
        each, of_text = cache_bytes(self.model.config, self._dtype or torch.float32)
        room, sequences = CACHE_SHARE * free_memory(self.vqgan.device), 1 if guidance == 1 else 2
        return max(1, min(candidates, int(room / sequences - of_text) // each))

    @property
    def suggested_candidates(self) -> int:
        """128 on a GPU, as in the paper; on a processor 32 of a small model, 4 of one that needs minutes a picture."""
        if self.vqgan.device.type == "cuda":
            return 128
        return 32 if self.model.config.image_length <= 256 else 4

    def unknown_words(self, prompt: str) -> list[str]:
        """Return the words that are in no caption the model has seen; none if those captions are not at hand."""
        return [] if self.known_words is None else [w for w in words_in(prompt) if w not in self.known_words]

    def preview(self, codes: Int[Tensor, "pictures codes"]) -> UInt8[Tensor, "pictures height width 3"]:
        """Return unfinished pictures, white where nothing is drawn yet."""
        grid, factor = self.vqgan.config.grid, self.vqgan.config.factor
        missing = grid**2 - codes.shape[1]
        pictures = self.vqgan.decode(torch.nn.functional.pad(codes, (0, missing)))
        rows = codes.shape[1] // grid
        pictures[:, rows * factor :] = 255
        return pictures

    def _draw(self, prompt: str, settings: Settings, candidates: int, best: int, progress) -> Drawing:
        if unknown := self.unknown_words(prompt):
            logger.warning("%s never saw %s: expect nonsense for it.", self.name, ", ".join(map(repr, unknown)))
        started = time.perf_counter()
        count, codes = self.side_by_side(candidates, settings.guidance), []
        for first in range(0, candidates, count):
            for rows in self._rows(prompt, settings, first, min(count, candidates - first)):
                if progress is not None:
                    progress(Progress(prompt, first, candidates, rows, self.model.config.image_length))
            codes.append(rows)
        codes = torch.cat(codes)
        drawn = time.perf_counter()
        pictures = self.vqgan.decode(codes)
        decoded = time.perf_counter()
        scores = self.ranker.score(prompt, pictures)
        ranked = time.perf_counter()
        return Drawing(
            prompt,
            self.name,
            settings,
            pictures,
            codes,
            scores,
            choose_best(scores, codes, best),
            {"drawing": drawn - started, "decoding": decoded - drawn, "ranking": ranked - decoded},
            unknown,
        )

    @property
    def _dtype(self) -> torch.dtype | None:
        """In what precision a GPU draws: in the 16 bits that it is quick in."""
        return autocast_dtype(self.vqgan.device) if self.vqgan.device.type == "cuda" else None

    def _rows(self, prompt: str, settings: Settings, first: int, count: int) -> Iterator[Int[Tensor, "count codes"]]:
        """Yield the codes so far of candidates `first` to `first + count`, after each row."""
        device = self.vqgan.device
        rows = generate_rows(
            self.model,
            self.tokenizer([prompt]).to(device),
            samples=count,
            first_sample=first,
            dtype=self._dtype,
            **asdict(settings),
        )
        while True:
            with torch.autocast(device.type, self._dtype, enabled=self._dtype is not None):
                codes = next(rows, None)
            if codes is None:
                return
            yield codes[0].cpu()


def choose_best(scores: Float[Tensor, "candidates"], codes: Int[Tensor, "candidates codes"], count: int) -> list[int]:
    """Return the numbers of the `count` candidates with the best scores; repeated pictures come after all others."""
    first, repeated, known = [], [], set()
    for number in scores.argsort(descending=True, stable=True).tolist():
        picture = tuple(codes[number].tolist())
        (repeated if picture in known else first).append(number)
        known.add(picture)
    return (first + repeated)[:count]


def downloads(run: str | Path) -> list[Download]:
    """Return what `from_run` would fetch from the Hub, and how large it is; nothing for what is in the kit.

    What the Hub's cache holds already is listed too, and marked. Raises ValueError if there is no such run,
    ConnectionError if the Hub cannot be asked.
    """
    if run == PAPER:
        return PaperFiles().downloads()
    card = RunCard.load(run)
    found = [] if card.clip_is_beside else [hub_file("clip", card.clip)]
    if card.repository is not None:
        files = {"model": card.checkpoint, "tokenizer": card.tokenizer, "vqgan": card.vqgan}
        found += [hub_file(part, card.repository, file.name) for part, file in files.items() if file is not None]
        if card.clip_is_beside:
            found.append(hub_file("clip", card.repository, f"{card.clip}/model.safetensors"))
    return found


def _sizes(files: list[Download]) -> tuple[int, int]:
    """Return the bytes that are not here yet, and the bytes of all files."""
    return sum(file.bytes or 0 for file in files if not file.is_here), sum(file.bytes or 0 for file in files)


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Return `device`, or the first GPU that computes, or the CPU."""
    return torch.device(device or next(iter(working_gpus()), "cpu"))


def words_in(text: str) -> list[str]:
    """Return the words of a caption in lower case."""
    return re.findall(r"\w[\w'’-]*", text.lower())


def _words_of(card: RunCard) -> set[str] | None:
    """Return the words of the run's training captions, or None if they are on the Hub: too many to fetch for this."""
    source = Path(card.data_source(card.data.train))
    if not source.is_dir():
        return None
    files = source.glob("*.parquet")
    return {word for file in files for row in read_codes(file, card.data.format) for word in words_in(row.caption)}
