"""How good each checkpoint is: its loss on held-out data with an interval, and the same prompts drawn again."""

import json
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from PIL import Image

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import MAX_EXAMINED_CODES, choose_captions, draw_one_each, first_rows
from dalle_lib.files import replace_file
from dalle_lib.machine import few_threads
from dalle_lib.model import DALLE
from dalle_lib.monitor.checkpoints import found_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer
from dalle_lib.streaming.batches import to_batch
from dalle_lib.swarm.process.folder import MODEL, checkpoint_name
from dalle_lib.vqgan import load_vqgan

logger = logging.getLogger(__name__)

ROWS, MIN_ROWS = 256, 8
"""Held-out rows that a checkpoint is examined by, the first ones: at most, and at least where that takes too long."""
EXAMINE_S = 120.0
"""Seconds after which no further row is begun."""
PROMPTS = 8
"""Captions that are drawn with each checkpoint: the first half of training, the others held out."""
PICTURES = "pictures"
"""Folder of the pictures in that of the monitor, a file each checkpoint."""
CONFIDENCE = 1.96
"""Standard errors on each side of a mean in an interval of 95%."""
LOOK_S = 5.0
NICENESS = 15
"""Of the thread that examines: what is told of the run must not wait for it."""
FRAME_MS, LAST_MS = 500, 3000
"""Milliseconds of each picture in a time-lapse, and of the last one."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How good a checkpoint is."""

    held_out_loss: float
    """Mean cross-entropy of held-out codes given their captions, in nats a code."""
    half_width: float
    """Half of the 95% interval of that mean, by the spread of the rows."""
    rows: int
    """Held-out rows that it was computed of."""


class Evaluator:
    """Examines checkpoints of one run: each by the same rows, in the same order, and by the same prompts and seed."""

    def __init__(self, card: RunCard) -> None:
        """Read the held-out rows beside the card. Raises ValueError if they are elsewhere, or cannot be read."""
        if card.data.held_out.startswith("hf://"):
            raise ValueError(f"the held-out data of {card.name} are not beside its card.")
        self.card = card
        self.tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
        self.rows = first_rows(card, card.data.held_out, ROWS)
        self.prompts = choose_captions(self.rows, PROMPTS // 2)
        if not card.data.train.startswith("hf://"):
            self.prompts = choose_captions(first_rows(card, card.data.train, ROWS), PROMPTS // 2) + self.prompts

    def examine(self, model: DALLE) -> Figures:
        """Return how good a model is."""
        losses, deadline = [], time.monotonic() + EXAMINE_S
        with torch.inference_mode(), few_threads(model):
            for row in self.rows:
                if len(losses) >= MIN_ROWS and time.monotonic() > deadline:
                    break
                batch = to_batch([row], self.tokenizer)
                losses.append(float(model(batch.text, batch.codes).image_loss))
        error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
        return Figures(held_out_loss=statistics.fmean(losses), half_width=CONFIDENCE * error, rows=len(losses))

    def draw(self, model: DALLE) -> Image.Image | None:
        """Return the first sample of each prompt, side by side; None where that takes a processor too long."""
        if self.card.model.image_length > MAX_EXAMINED_CODES:
            return None
        vqgan = load_vqgan(self.card.path(self.card.vqgan))
        pictures = draw_one_each(model, self.prompts, self.tokenizer, vqgan)
        return Image.fromarray(torch.cat(list(pictures), dim=1).numpy())


class Examiner:
    """Examines new checkpoints from a thread of its own until `close`, the newest first; it holds up nothing else."""

    def __init__(
        self, card: RunCard, folder: Path, place: Path, database: Path, say: Callable[[str], None] = logger.info
    ) -> None:
        """`place` is the folder of the monitor's peer, `database` the file. Raises ValueError as `Evaluator` does."""
        self.evaluator, self.folder, self.place = Evaluator(card), folder, place
        self._database, self._say = database, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the checkpoint in hand."""
        self._stop.set()
        self._thread.join(EXAMINE_S)

    def _run(self) -> None:
        if hasattr(os, "nice"):
            os.nice(NICENESS)  # Linux: of this thread alone
        with closing(MonitorDatabase(self._database)) as database:
            while not self._stop.wait(LOOK_S):
                try:
                    self.look(database)
                except Exception:  # whatever it is, the next checkpoint is examined
                    logger.exception("a checkpoint was not examined")

    def look(self, database: MonitorDatabase) -> None:
        """Examine the newest checkpoint that has no figures yet, and draw with it."""
        here = found_in(self.place)
        rows = database.rows("SELECT epoch FROM checkpoints WHERE figures IS NULL ORDER BY epoch DESC")
        epoch = next((row["epoch"] for row in rows if row["epoch"] in here), None)
        if epoch is None:
            return
        query = "UPDATE checkpoints SET figures = :figures WHERE epoch = :epoch"
        try:
            model = load_model(here[epoch] / MODEL, self.evaluator.card.model).eval()
        except (OSError, ValueError) as error:
            database.change(query, figures="{}", epoch=epoch)  # one that is broken is not read again and again
            self._say(f"The checkpoint of epoch {epoch:,} cannot be examined: {in_one_line(error)}")
            return
        figures = self.evaluator.examine(model)
        if (drawn := self.evaluator.draw(model)) is not None:
            (self.folder / PICTURES).mkdir(exist_ok=True)
            with replace_file(self.folder / PICTURES / f"{checkpoint_name(epoch)}.webp") as unfinished:
                drawn.save(unfinished, "WEBP", quality=85)
        database.change(query, figures=json.dumps(asdict(figures)), epoch=epoch)
        loss = f"{figures.held_out_loss:.3f} ± {figures.half_width:.3f} nats a code"
        self._say(f"Checkpoint of epoch {epoch:,}: {loss} on held-out data.")


def time_lapse(folder: Path, file: Path) -> int:
    """Write the pictures of all checkpoints in a monitor's folder as one that moves, and return how many there are.

    `file` ends with .webp or .gif. Nothing is written where there are none.
    """
    frames = [Image.open(each).convert("RGB") for each in sorted((folder / PICTURES).glob("epoch-*.webp"))]
    if frames:
        lasts = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
        with replace_file(file) as unfinished:
            kind = {".webp": "WEBP", ".gif": "GIF"}[file.suffix]
            frames[0].save(unfinished, kind, save_all=True, append_images=frames[1:], duration=lasts, loop=0)
    return len(frames)
