"""The stages `young` and `full` of build_emoji.py: the models, each trained in one process."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from emoji_data import ASSETS, LARGE, SMALL, single_thread
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import trange

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.model import DALLE
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard, batches_of, file_card

PRECISION = {SMALL: torch.float8_e4m3fn, LARGE: torch.float16}
"""Type of the stored weights. On the young model's loss, 3.17 nats a code, 8 bits cost 0.004."""


@dataclass
class Model:
    """Train a run's model in one process, by the card's own recipe and optimizer.

    Matrices are multiplied in bfloat16, layers are compiled, and attention is plain matrix products: 1.45 times as
    fast as eager bfloat16 on one core of an AMD processor with AVX512_BF16.
    """

    name: str
    steps: int
    schedule_steps: int
    """Steps after which the learning rate would have fallen to 0."""
    out: Path = ASSETS
    batch_size: int = 32
    lr: float | None = None
    """The learning rate at its highest; None takes the card's."""
    start: Path | None = None
    """Go on with this checkpoint, with fresh statistics and learning rate."""
    report: Path | None = None
    """Where the loss curve goes, as JSON. With `start`, what is there stays, and its steps count on."""

    def run(self) -> None:
        """Write the run's checkpoint and name it in the card."""
        single_thread()
        card = RunCard.load(self.out / f"{self.name}.json")
        checkpoint = self.out / f"{self.name}.safetensors"
        model = DALLE(card.model) if self.start is None else load_model(self.start, card.model)
        model.transformer.compile_layers()
        before = self._earlier()
        lr = card.optimizer.lr if self.lr is None else self.lr
        optimizer = LAMB8bit(parameter_groups(model, card.optimizer.weight_decay), lr=lr, bits=32)
        schedule = linear_warmup_schedule(optimizer, max(10, self.steps // 50), self.schedule_steps)
        batches = batches_of(card, self.batch_size, card.seed + before["steps"])
        curve, started = [], time.process_time()
        for step, batch in zip(trange(1, self.steps + 1, desc=self.name), batches, strict=False):
            with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
                output = model(batch.text, batch.codes, batch.input_codes)
                output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            curve.append((before["steps"] + step, output.image_loss.item(), output.text_loss.item()))
            if step % 250 == 0 or step == self.steps:
                save_model(checkpoint, model, dtype=PRECISION[self.name])
                if self.report is not None:
                    self._write_curve(before, curve, time.process_time() - started)
        card.with_changes(checkpoint=file_card(checkpoint)).save(self.out, f"{self.name}.json")

    def _earlier(self) -> dict:
        """Return what the report says of the stages before this one."""
        if self.start is None or self.report is None or not self.report.exists():
            return {"steps": 0, "cpu_seconds": 0.0, "means": []}
        return json.loads(self.report.read_text(encoding="utf-8"))

    def _write_curve(self, before: dict, curve: list[tuple], cpu_seconds: float) -> None:
        """Write steps, processor seconds, and the losses as means over 20 steps, after those of earlier stages."""
        points = pd.DataFrame(curve, columns=["step", "image_loss", "text_loss"])
        means = points.groupby((points["step"] - 1) // 20).mean().round(4).to_dict("records")
        whole = {
            "steps": curve[-1][0],
            "cpu_seconds": round(before["cpu_seconds"] + cpu_seconds),
            "means": before["means"] + means,
        }
        self.report.write_text(json.dumps(whole) + "\n", encoding="utf-8")


@dataclass
class Young(Model):
    """Train the young model of the small set: it knows backgrounds, and hardly any shape."""

    name: str = SMALL
    steps: int = 85
    schedule_steps: int = 400


@dataclass
class Full(Model):
    """Train the finished model of the large set, in stages of at most an hour: each after the first has a `start`.

    The one in the kit had 750 steps on rows that lay emoji by emoji, then stages of 4,000 steps, of 3,000, and of
    1,800 at a learning rate of 3e-3, all on pictures whose hues were turned alike; then 5,000 at 4e-3 on others, and
    5,000 more on those of today.
    """

    name: str = LARGE
    steps: int = 3600
    schedule_steps: int = 3600
    batch_size: int = 16
    report: Path | None = field(default=Path("docs/emoji/loss.json"))
