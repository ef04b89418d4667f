"""How good each checkpoint is: its loss on held-out data with an interval, and the same prompts drawn again."""

import json
import logging
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import MAX_EXAMINED_CODES, choose_captions, draw_one_each, first_rows
from dalle_lib.files import replace_file
from dalle_lib.inference.drawing import contact_sheet
from dalle_lib.inference.text_to_image import GUIDANCE
from dalle_lib.machine import few_threads
from dalle_lib.model import DALLE, generate
from dalle_lib.monitor.checkpoints import found_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import BEST, PICTURES
from dalle_lib.monitor.judging import CONFIDENCE, JUDGED, Judge, Judged, standard_error
from dalle_lib.monitor.lapse import time_lapse
from dalle_lib.monitor.settings import PROMPTS, ROWS, MonitorSettings
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.model_page import BEST_OF_MANY, FIRST, LAPSE, MAX_CAPTION, NEAREST, PAGE_FOLDER, PROMPTS_FILE
from dalle_lib.run import RunCard, initial_model
from dalle_lib.run.files import MODEL, checkpoint_name
from dalle_lib.streaming import CaptionTokenizer
from dalle_lib.streaming.batches import to_batch
from dalle_lib.vqgan import VQGAN, load_vqgan

logger = logging.getLogger(__name__)

MIN_ROWS = 8
"""Held-out rows that a checkpoint is examined by where more take too long."""
EXAMINE_S = 120.0
"""Seconds after which no further row is begun."""
CANDIDATES = 8
"""Pictures of each prompt among which CLIP chooses the best."""
DRAW_S = 600.0
"""Seconds beyond which no pictures are drawn but the first samples of the prompts."""
COLUMNS = 4
"""Pictures beside each other in a grid."""
BROKEN = "{}"
"""The figures of a checkpoint that is none."""
CLOSE_S = 20.0
"""Seconds for which a monitor that is told to stop waits for what it examines."""
LOOK_S = 5.0
NICENESS = 15
"""How much the thread that examines gives way: what is told of the run must not wait for it."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How good a checkpoint is."""

    held_out_loss: float
    """Mean cross-entropy of held-out codes given their captions, in nats a code."""
    half_width: float
    """Half of the 95% interval of that mean, by the spread of the rows."""
    rows: int
    """Held-out rows that it was computed of."""
    drawn: Judged | None = None
    """What pictures of held-out captions show; None where drawing them takes too long."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What a checkpoint draws."""

    first: Image.Image
    """The first sample of each prompt, whatever it is."""
    best: Image.Image | None = None
    """The best of CANDIDATES of each, by the run's CLIP; None without one, or where drawing takes too long."""
    nearest: Image.Image | None = None
    """`Judge.sheet`, where first samples were judged."""


class Evaluator:
    """Examines checkpoints of one run: each by the same rows, in the same order, and by the same prompts and seed."""

    def __init__(self, card: RunCard, rows: int = ROWS, prompts: int = PROMPTS, judges: bool = True) -> None:
        """Read the held-out rows beside the card. Raises ValueError if they are elsewhere, or cannot be read."""
        if card.data.held_out.startswith("hf://"):
            raise ValueError(f"the held-out data of {card.name} are not beside its card.")
        self.card, self.judges = card, judges
        self.guidance = GUIDANCE if card.recipe.caption_dropout else 1.0
        self.tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
        self.rows = first_rows(card, card.data.held_out, rows)
        is_here = not card.data.train.startswith("hf://")
        self.seen = choose_captions(first_rows(card, card.data.train, rows), prompts // 2) if is_here else []
        self.unseen = choose_captions(self.rows, prompts // 2)
        self.prompts = self.seen + self.unseen

    @cached_property
    def judge(self) -> Judge:
        """What compares drawn pictures to the run's data, made when it is first needed."""
        return Judge(self.card, self.rows, self.vqgan)

    @cached_property
    def vqgan(self) -> VQGAN:
        """What makes pictures of codes."""
        return load_vqgan(self.card.path(self.card.vqgan))

    def examine(self, model: DALLE) -> Figures:
        """Return how good a model is, but for what it draws."""
        losses, deadline = [], time.monotonic() + EXAMINE_S
        with torch.inference_mode(), few_threads(model):
            for row in self.rows:
                if len(losses) >= MIN_ROWS and time.monotonic() > deadline:
                    break
                batch = to_batch([row], self.tokenizer)
                losses.append(float(model(batch.text, batch.codes).image_loss))
        half_width = CONFIDENCE * standard_error(losses)
        return Figures(held_out_loss=statistics.fmean(losses), half_width=half_width, rows=len(losses))

    def draw(self, model: DALLE) -> tuple[Pictures | None, Judged | None]:
        """Return what a model draws, and what that shows; None where it takes a processor too long.

        Judging and the best of many are left out if they are not wanted, or would take longer than DRAW_S.
        """
        if self.card.model.image_length > MAX_EXAMINED_CODES:
            return None, None
        with few_threads(model):
            started = time.monotonic()
            first = self.draw_first(model)
            each_s = (time.monotonic() - started) / len(self.prompts)
            if not self.judges or each_s * (JUDGED + CANDIDATES * len(self.prompts)) > DRAW_S:
                return Pictures(first=first), None
            samples = self._first_samples(model, self.judge.captions)
            pictures = Pictures(first=first, best=self._best(model), nearest=self.judge.sheet(samples))
            return pictures, self.judge.judge(samples)

    def draw_first(self, model: DALLE) -> Image.Image:
        """Return the first sample of each prompt."""
        with few_threads(model):
            return self._grid(self._first_samples(model, self.prompts))

    def _first_samples(self, model: DALLE, captions: list[str]) -> Tensor:
        return draw_one_each(model, captions, self.tokenizer, self.vqgan, guidance=self.guidance)

    def _best(self, model: DALLE) -> Image.Image | None:
        if self.judge.ranker is None:
            return None
        codes = generate(model, self.tokenizer(self.prompts), samples=CANDIDATES, guidance=self.guidance, seed=0)
        candidates = [self.vqgan.decode(each) for each in codes]
        scores = map(self.judge.ranker.score, self.prompts, candidates)
        return self._grid(torch.stack([each[int(of.argmax())] for each, of in zip(candidates, scores, strict=True)]))

    def _grid(self, pictures: Tensor) -> Image.Image:
        return contact_sheet(pictures, columns=COLUMNS)


class Examiner:
    """Examines new checkpoints from a thread of its own until `close`, the newest first; it holds up nothing else."""

    def __init__(
        self,
        card: RunCard,
        folder: Path,
        place: Path,
        database: Path,
        say: Callable[[str], None] = logger.info,
        settings: MonitorSettings | None = None,
    ) -> None:
        """`place` is the folder of the monitor's peer, `database` the file. Raises ValueError as `Evaluator` does."""
        settings = settings or MonitorSettings()
        self.evaluator = Evaluator(card, settings.rows, settings.prompts, settings.judges)
        self.folder, self.place = folder, place
        self._database, self._say = database, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the checkpoint in hand, or leave it to the next start where that takes longer than CLOSE_S."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        give_way()
        try:
            self.begin()
        except Exception:  # as below
            logger.exception("the model of the beginning has drawn nothing")
        while not self._stop.wait(LOOK_S):
            try:
                with closing(MonitorDatabase(self._database)) as database:
                    self.look(database)
            except Exception:  # whatever it is, the next checkpoint is examined
                logger.exception("a checkpoint was not examined")

    def begin(self) -> None:
        """Draw with the model with which the run begins, if it can draw here and has not: the first of all pictures."""
        card, file = self.evaluator.card, self.folder / PICTURES / f"{checkpoint_name(0)}.webp"
        if card.model.image_length <= MAX_EXAMINED_CODES and not file.exists():
            write_picture(file, self.evaluator.draw_first(initial_model(card).eval()))

    def look(self, database: MonitorDatabase) -> None:
        """Examine the newest checkpoint that has no figures yet, and draw with it."""
        here = found_in(self.place)
        rows = database.rows("SELECT epoch, sha256 FROM checkpoints WHERE figures IS NULL ORDER BY epoch DESC")
        if (row := next((row for row in rows if row["epoch"] in here), None)) is None:
            return
        epoch = row["epoch"]
        # By its digest, too: where the run goes back meanwhile, another one of this epoch is to come.
        of_this = "WHERE epoch = :epoch AND sha256 = :sha256"
        query = f"UPDATE checkpoints SET figures = :figures {of_this}"
        try:
            model = load_model(here[epoch] / MODEL, self.evaluator.card.model).eval()
        except (OSError, ValueError) as error:
            database.change(query, figures=BROKEN, **row)  # one that is broken is not read again and again
            self._say(f"The checkpoint of epoch {epoch:,} cannot be examined: {in_one_line(error)}")
            return
        figures = self.evaluator.examine(model)
        if not math.isfinite(figures.held_out_loss):
            database.change(query, figures=BROKEN, **row)
            self._say(f"The checkpoint of epoch {epoch:,} is broken: its loss on held-out data is not finite.")
            return
        try:
            pictures, drawn = self.evaluator.draw(model)
            if pictures is not None and database.rows(f"SELECT epoch FROM checkpoints {of_this}", **row):
                self._keep(pictures, epoch, is_newest=epoch == max(here))
            if drawn is not None and all(math.isfinite(value) for value in asdict(drawn).values() if value is not None):
                figures = replace(figures, drawn=drawn)
        except (OSError, ValueError, RuntimeError) as error:  # of VQ-GAN, CLIP, huge weights: the loss is known
            self._say(f"No pictures by the checkpoint of epoch {epoch:,}: {in_one_line(error)}")
        database.change(query, figures=as_json(figures), **row)
        loss = f"{figures.held_out_loss:.3f} ± {figures.half_width:.3f} nats a code"
        self._say(f"Checkpoint of epoch {epoch:,}: {loss} on held-out data.")

    def _keep(self, pictures: Pictures, epoch: int, is_newest: bool) -> None:
        """Write the pictures of a checkpoint, and those that the page shows if it is the newest."""
        name, page = f"{checkpoint_name(epoch)}.webp", self.folder / PAGE_FOLDER
        page.mkdir(exist_ok=True)
        write_picture(self.folder / PICTURES / name, pictures.first)
        write_picture(self.folder / BEST / name, pictures.best)
        if is_newest:
            for file, picture in (FIRST, pictures.first), (BEST_OF_MANY, pictures.best), (NEAREST, pictures.nearest):
                write_picture(page / file, picture)
            prompts = {"seen": self.evaluator.seen, "unseen": self.evaluator.unseen}
            prompts = {name: [caption[:MAX_CAPTION] for caption in each] for name, each in prompts.items()}
            with replace_file(page / PROMPTS_FILE) as unfinished:
                unfinished.write_text(json.dumps(prompts, ensure_ascii=False), encoding="utf-8")
        time_lapse(self.folder, page / LAPSE)


def give_way() -> None:
    """Let this thread compute when no other does, on Linux: elsewhere a notebook's whole kernel would give way."""
    if sys.platform == "linux":
        os.nice(NICENESS)


def as_json(figures: Figures) -> str:
    """Return figures without those that could not be told, in as many digits as they have meaning."""

    def short(value: object) -> object:
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items() if each is not None}
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return json.dumps(short(asdict(figures)))


def write_picture(file: Path, picture: Image.Image | None) -> None:
    """Write a picture as WebP, or remove the one that is there if there is none now."""
    if picture is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(exist_ok=True)
    with replace_file(file) as unfinished:
        picture.save(unfinished, "WEBP", quality=85)
