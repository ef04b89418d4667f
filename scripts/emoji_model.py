"""The stages `young` and `full` of build_emoji.py: the models, each trained in one process."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from emoji_data import ASSETS, LARGE, SMALL, single_thread
from tqdm import trange

from dalle_lib.checkpoint import save_model
from dalle_lib.model import DALLE
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard, batches_of, file_card


@dataclass
class Model:
    """Train a run's model in one process, by the card's own recipe."""

    name: str
    steps: int
    schedule_steps: int
    """Steps after which the learning rate would have fallen to 0."""
    out: Path = ASSETS
    batch_size: int = 32
    report: Path | None = None
    """Where the loss curve goes, as JSON."""

    def run(self) -> None:
        """Write the run's checkpoint and name it in the card."""
        single_thread()
        card = RunCard.load(self.out / f"{self.name}.json")
        checkpoint = self.out / f"{self.name}.safetensors"
        model = DALLE(card.model)
        optimizer = LAMB8bit(parameter_groups(model, card.optimizer.weight_decay), lr=card.optimizer.lr, bits=32)
        schedule = linear_warmup_schedule(optimizer, max(10, self.steps // 50), self.schedule_steps)
        batches = batches_of(card, self.batch_size, card.seed)
        curve, started = [], time.process_time()
        for step, batch in zip(trange(1, self.steps + 1, desc=self.name), batches, strict=False):
            output = model(batch.text, batch.codes, batch.input_codes)
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            curve.append((step, output.image_loss.item(), output.text_loss.item()))
            if step % 250 == 0 or step == self.steps:
                save_model(checkpoint, model, dtype=torch.float16)
                if self.report is not None:
                    self._write_curve(curve, time.process_time() - started)
        card.with_changes(checkpoint=file_card(checkpoint)).save(self.out, f"{self.name}.json")

    def _write_curve(self, curve: list[tuple], cpu_seconds: float) -> None:
        """Write the processor seconds, and the losses as means over 20 steps."""
        points = pd.DataFrame(curve, columns=["step", "image_loss", "text_loss"])
        means = points.groupby((points["step"] - 1) // 20).mean().round(4).to_dict("records")
        self.report.write_text(json.dumps({"cpu_seconds": cpu_seconds, "means": means}) + "\n", encoding="utf-8")


@dataclass
class Young(Model):
    """Train the young model of the small set: it knows backgrounds, and hardly any shape."""

    name: str = SMALL
    steps: int = 85
    schedule_steps: int = 400


@dataclass
class Full(Model):
    """Train the finished model of the large set."""

    name: str = LARGE
    steps: int = 4000
    schedule_steps: int = 4000
    report: Path | None = field(default=Path("docs/emoji/loss.json"))
