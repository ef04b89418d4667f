"""From a prompt to pictures: draw many candidates, and keep the few that CLIP finds best."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dalle_lib.checkpoint import load_model
from dalle_lib.inference.captions import Novelty, TrainingCaptions, training_rows
from dalle_lib.inference.choosing import choose_best, different
from dalle_lib.inference.drawing import Drawing, Progress, require_same_codes
from dalle_lib.inference.fetching import Download, downloads_of, sizes_of
from dalle_lib.inference.nearest import Nearest, TrainingPictures
from dalle_lib.inference.published import PAPER, PaperFiles
from dalle_lib.inference.settings import SIDE_BY_SIDE, Settings, check_counts, check_prompts, how_many
from dalle_lib.machine import autocast_dtype, choose_device, few_threads, free_memory, require_room_in_cache
from dalle_lib.model import DALLE, cache_bytes, generate_rows
from dalle_lib.one_line import printable, shortened
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL
from dalle_lib.run.newest import newest_checkpoint, without_checkpoint
from dalle_lib.streaming import CaptionTokenizer, CodeRow
from dalle_lib.vqgan import VQGAN, load_vqgan

logger = logging.getLogger(__name__)

CACHE_SHARE = 0.75
"""Part of the free memory that unfinished pictures may fill with keys and values: on 16 GB, 128 of the paper's."""
GUIDANCE = 1.5
"""Guidance that suits models which trained without some of their captions."""
MAX_COMPARED = 8
"""Different pictures by which CLIP's noise is measured; each takes four more scores."""


class TextToImage:
    """Draws pictures of prompts with one model: `TextToImage.from_run("emoji")("penguin").pictures[0].show()`.

    Called with a prompt it returns a Drawing, and with a list of prompts a list of Drawings.
    """

    def __init__(
        self,
        name: str,
        model: DALLE,
        tokenizer: CaptionTokenizer,
        vqgan: VQGAN,
        ranker: CLIPRanker | None,
        guidance: float = 1.0,
        captions: TrainingCaptions | None = None,
        rows: Callable[[], list[CodeRow]] | None = None,
    ) -> None:
        """Take the parts of a model: `from_run` finds those of a run, `from_paper` those of the paper.

        Without a `ranker`, the commonest pictures are the best. `guidance` is used where a call names none. `captions`
        are those of the training data, if at hand; `rows` then reads these with their pictures. Raises ValueError if
        the VQ-GAN has other codes than the model.
        """
        require_same_codes(name, model.config, vqgan.config)
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.vqgan = vqgan
        self.ranker = ranker
        self.guidance = guidance
        self.captions, self.rows = captions, rows
        self._training: TrainingPictures | None = None

    @classmethod
    def from_run(
        cls, run: str | Path = "emoji", device: str | torch.device | None = None, *, clip: bool = True
    ) -> "TextToImage":
        """Return a TextToImage with the parts of a run and its newest checkpoint; its CLIP only with `clip`.

        `run` is an embedded run, a folder, "owner/name" on the Hub, or "paper-2021". Without `device`, a GPU is taken
        if there is one. Raises ValueError if there is no such run or device, or the run has no checkpoint yet, and
        NotEnoughRoom before a download that would not fit.
        """
        if run == PAPER:
            return cls.from_paper(device=device, clip=clip)
        device = choose_device(device)  # a wrong one is told before anything is fetched
        card = RunCard.load(run)
        newest = newest_checkpoint(card)
        if newest is None and card.checkpoint is None:
            raise ValueError(without_checkpoint(card))
        require_room_in_cache(card.name, lambda: sizes_of(downloads_of(card, newest, clip=clip)))
        weights = card.path(card.checkpoint) if newest is None else newest.fetched(MODEL)
        return cls.from_card(card, load_model(weights, card.model), device, clip=clip)

    @classmethod
    def from_paper(
        cls, files: PaperFiles | None = None, device: str | torch.device | None = None, *, clip: bool = True
    ) -> "TextToImage":
        """Return a TextToImage with the paper's published model, after fetching what is not here yet.

        Raises NotEnoughRoom before a download that would not fit, ValueError if a file is not what it should be, and
        ConnectionError if one cannot be fetched.
        """
        files, device = files or PaperFiles(), choose_device(device)
        require_room_in_cache(PAPER, lambda: sizes_of(files.downloads()))
        return cls(
            PAPER,
            files.read_model().to(device),
            files.read_tokenizer(),
            files.read_vqgan().to(device),
            CLIPRanker(files.clip, device) if clip else None,
        )

    @classmethod
    def from_card(
        cls, card: RunCard, model: DALLE, device: str | torch.device | None = None, *, clip: bool = True
    ) -> "TextToImage":
        """Return a TextToImage with `model` and the run's tokenizer and VQ-GAN, on `device`; its CLIP with `clip`."""
        device = choose_device(device)
        return cls(
            card.name,
            model.to(device),
            CaptionTokenizer(card.path(card.tokenizer), card.model.text_length),
            load_vqgan(card.path(card.vqgan)).to(device),
            CLIPRanker(card.clip_source(), device, card.clip_commit) if clip else None,
            # Guidance pushes away from what the model draws without a caption: it must have seen pictures without one.
            guidance=GUIDANCE if card.recipe.caption_dropout else 1.0,
            captions=(captions := TrainingCaptions.of(card)),
            rows=None if captions is None else lambda: training_rows(card),
        )

    def __call__(
        self,
        prompts: str | list[str],
        *,
        candidates: int | None = None,
        best: int = 4,
        preset: str | None = None,
        top_k: int = Settings.top_k,
        top_p: float = Settings.top_p,
        temperature: float = Settings.temperature,
        guidance: float | None = None,
        seed: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Drawing | list[Drawing]:
        """Return the Drawing of a prompt, or one for each of a list: `candidates` pictures, the `best` of them by CLIP.

        Only different pictures are kept, so they may be fewer than `best`; see `choose_best`. Without a CLIP, the best
        are those that were drawn most often.

        `Settings` says what `top_k` to `seed` mean; `preset` is a name of PRESETS, such as "paper-top-p", which sets
        top_k, top_p and, where none are given, `candidates`. `progress` is called after each row of codes. Raises
        ValueError for an empty prompt or a setting out of its range, and FloatingPointError if the model's weights are
        broken, so that its logits are not finite.
        """
        each = [prompts] if isinstance(prompts, str) else prompts
        asked = Settings(top_k=top_k, top_p=top_p, temperature=temperature, guidance=guidance, seed=seed)
        asked = asked.with_preset(preset)
        asked.check()
        candidates = how_many(candidates, preset)
        check_counts(candidates, best)
        check_prompts(each)
        chosen = asked.completed(self.guidance)
        with few_threads(self.model):
            drawings = [self._draw(prompt, chosen, candidates, best, progress) for prompt in each]
        return drawings[0] if isinstance(prompts, str) else drawings

    def estimate(self, candidates: int) -> float:
        """Return about how many seconds a prompt with this many candidates takes, by drawing one row of their codes."""
        count, started = self.side_by_side(candidates, self.guidance), time.perf_counter()
        with few_threads(self.model):
            next(self._rows("a", Settings().completed(self.guidance), 0, count))
        return (time.perf_counter() - started) * self.model.config.grid * -(-candidates // count)

    def side_by_side(self, candidates: int, guidance: float = 1.0) -> int:
        """Return how many candidates are drawn at once: as many as fit into the free memory, at most SIDE_BY_SIDE."""
        each, of_text = cache_bytes(self.model.config, self._dtype or torch.float32)
        room, sequences = CACHE_SHARE * free_memory(self.vqgan.device), 1 if guidance == 1 else 2
        return max(1, min(candidates, SIDE_BY_SIDE, int(room / sequences - of_text) // each))

    @property
    def suggested_candidates(self) -> int:
        """Candidates a prompt that suit the device: on a GPU as many as in the paper, on a processor fewer."""
        if self.vqgan.device.type == "cuda":
            return 128
        return 32 if self.model.config.image_length <= 256 else 4  # larger pictures take minutes each

    def novelty_of(self, prompt: str) -> Novelty:
        """Return what of `prompt` is not in the training data; nothing if its captions are not at hand."""
        return Novelty() if self.captions is None else self.captions.novelty_of(prompt)

    def unknown_words(self, prompt: str) -> list[str]:
        """Return the words of `prompt` that no training caption holds; none if those captions are not at hand."""
        return self.novelty_of(prompt).words

    def nearest_training(self, prompt: str, count: int = 4) -> Nearest:
        """Return the training pictures whose CLIP embeddings are nearest to the prompt's, as the paper shows them.

        They tell whether a drawing repeats what the model saw. The first call embeds all training pictures, 12 s on one
        core for the run `emoji`; later calls take no time. Raises ValueError if they or a CLIP are not at hand.
        """
        if self.rows is None:
            raise ValueError(f"the training data of {self.name} are not at hand: expected a folder beside its card.")
        if self.ranker is None:
            raise ValueError("which pictures are near is for a CLIP to say: load the model with clip=True.")
        with few_threads(self.model):
            if self._training is None:
                self._training = TrainingPictures(self.rows(), self.vqgan, self.ranker)
            return self._training.nearest(prompt if self.captions is None else self.captions.as_written(prompt), count)

    def preview(self, codes: Int[Tensor, "pictures codes"]) -> UInt8[Tensor, "pictures height width 3"]:
        """Return pictures of which only the first rows of codes are drawn, white where nothing is drawn yet."""
        grid, factor = self.vqgan.config.grid, self.vqgan.config.factor
        missing = grid**2 - codes.shape[1]
        pictures = self.vqgan.decode(torch.nn.functional.pad(codes, (0, missing)))
        rows = codes.shape[1] // grid
        pictures[:, rows * factor :] = 255
        return pictures

    def _draw(self, prompt: str, settings: Settings, candidates: int, best: int, progress) -> Drawing:
        """Return the Drawing of one prompt, with settings that leave nothing open."""
        novelty = self.novelty_of(prompt)
        if novelty.words or novelty.phrases:
            logger.warning("%s: %s.", shortened(prompt), printable(str(novelty)))
        caption = prompt if self.captions is None else self.captions.as_written(prompt)
        if len(read := self.tokenizer.read_part(caption)) < len(caption):
            logger.warning("only its first %d text tokens are read: ...%s", self.tokenizer.text_length, read[-20:])
        started = time.perf_counter()
        codes = self._codes_of(prompt, caption, settings, candidates, progress)
        drawn = time.perf_counter()
        pictures = self.vqgan.decode(codes)
        decoded = time.perf_counter()
        scores = noise = None
        if self.ranker is not None:
            scores = self.ranker.score(caption, pictures)
            compared = [choice.number for choice in different(scores, pictures)[:MAX_COMPARED]]
            noise = self.ranker.noise(caption, pictures[compared]) if len(compared) > 1 else None
        ranked = time.perf_counter()
        return Drawing(
            prompt=prompt,
            model=self.name,
            settings=settings,
            candidates=pictures,
            codes=codes,
            scores=scores,
            choices=choose_best(scores, pictures, best, noise or 0.0),
            noise=noise,
            seconds={"drawing": drawn - started, "decoding": decoded - drawn, "ranking": ranked - decoded},
            caption=caption,
            novelty=novelty,
        )

    def _codes_of(
        self,
        prompt: str,
        caption: str,
        settings: Settings,
        candidates: int,
        progress: Callable[[Progress], None] | None,
    ) -> Int[Tensor, "candidates codes"]:
        """Return the codes of all candidates, as many drawn side by side as fit into memory."""
        count, finished = self.side_by_side(candidates, settings.guidance), []
        for first in range(0, candidates, count):
            for codes in self._rows(caption, settings, first, min(count, candidates - first)):
                if progress is not None:
                    progress(Progress(prompt, first, candidates, codes, self.model.config.image_length))
            finished.append(codes)
        return torch.cat(finished)

    @property
    def _dtype(self) -> torch.dtype | None:
        """The 16-bit type in which a GPU draws; None on a processor, which draws in float32."""
        return autocast_dtype(self.vqgan.device) if self.vqgan.device.type == "cuda" else None

    def _rows(self, caption: str, settings: Settings, first: int, count: int) -> Iterator[Int[Tensor, "count codes"]]:
        """Yield the codes so far of the `count` candidates from number `first` on, after each row."""
        device = self.vqgan.device
        rows = generate_rows(
            self.model,
            self.tokenizer([caption]).to(device),
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


def downloads(run: str | Path) -> list[Download]:
    """Return the files that `TextToImage.from_run` would fetch, with their sizes; nothing for an embedded run.

    Files that the Hub's cache holds already are listed too, and marked. Raises ValueError if there is no such run, and
    ConnectionError if the Hub cannot be asked.
    """
    return PaperFiles().downloads() if run == PAPER else downloads_of(RunCard.load(run))
