"""Whether drawn pictures show what their captions say: by the nearest picture of the data, and by the run's CLIP."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from dalle_lib.evaluation import MAX_ROWS, Gallery, choose_captions, first_rows
from dalle_lib.inference.captions import TrainingCaptions
from dalle_lib.inference.drawing import contact_sheet
from dalle_lib.inference.nearest import TrainingPictures
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.streaming import CodeRow
from dalle_lib.streaming.batches import codes_of
from dalle_lib.vqgan import VQGAN

JUDGED = 64
"""Held-out captions of which a first sample is judged."""
MAX_PIXELS = MAX_ROWS * 64**2
"""Pixels of all pictures to which those drawn are compared: larger pictures are fewer, so that memory and time stay."""
SHOWN = 6
"""Columns of the sheet of nearest pictures."""
CONFIDENCE = 1.96
"""Standard errors on each side of a mean in an interval of 95%."""
_BACKGROUND = re.compile(r"(?P<shown>.+) on an? (?P<background>[\w-]+) background")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What first samples of held-out captions show. Shares are from 0 to 1; None says that it cannot be told."""

    captions: int
    """How many were drawn, one picture each."""
    among: int | None = None
    """Pictures of the data, the captions' own among them, of which the nearest to what was drawn was looked for."""
    exact: float | None = None
    """Share of captions whose own picture was the nearest."""
    object: float | None = None
    """Share of captions whose object the nearest picture has."""
    colour: float | None = None
    """The same of the colour, among captions that name one."""
    background: float | None = None
    """The same of the background, among captions that name one."""
    rank: float | None = None
    """Mean of 1 / rank of the right caption among `ranked` by the run's CLIP: 1 if it always fits best."""
    rank_half_width: float | None = None
    """Half of the 95% interval of that mean."""
    rank_ceiling: float | None = None
    """The same of the captions' own pictures, coded and decoded: no model can be expected to do better."""
    rank_chance: float | None = None
    """The same if CLIP chose blindly."""
    ranked: int | None = None
    """Held-out captions among which the right one was ranked."""
    nearest: float | None = None
    """Mean cosine of each picture and the nearest training picture, by CLIP."""
    nearest_held_out: float | None = None
    """The same of the captions' own pictures, which no model has drawn: if `nearest` is far above it, the model
    repeats its training pictures."""


class Judge:
    """Judges pictures of the same held-out captions of a run, again and again; what it compares to is made once.

    The run's CLIP judges where it lies beside the card. It chooses among candidates, too, so first samples alone may be
    given to it.
    """

    def __init__(self, card: RunCard, held_out: list[CodeRow], vqgan: VQGAN) -> None:
        """`held_out` are the rows whose captions are ranked; some of them are drawn."""
        self.card, self.vqgan = card, vqgan
        self.held_out = list({row.caption: row for row in held_out}.values())
        own = {row.caption: row for row in self.held_out}
        self.captions = choose_captions(self.held_out, JUDGED)
        self.own = vqgan.decode(codes_of([own[caption] for caption in self.captions]))

    def judge(self, pictures: UInt8[Tensor, "captions height width 3"]) -> Judged:
        """Return what `pictures` show, the first sample of each of `captions`."""
        return Judged(captions=len(pictures), **self._exactness(pictures), **self._ranks(pictures))

    def sheet(self, pictures: UInt8[Tensor, "captions height width 3"]) -> Image.Image | None:
        """Return, for some captions, a column each: own picture, the training picture nearest to it, drawn, nearest.

        None without a CLIP or without the training data.
        """
        if self._training is None:
            return None
        own, drawn = self.own[:SHOWN], pictures[:SHOWN]
        near = [
            self.vqgan.decode(codes_of([self.train[place] for place in self._training.nearest_to(each)[1].tolist()]))
            for each in (own, drawn)
        ]
        return contact_sheet(torch.cat([own, near[0], drawn, near[1]]), columns=len(own))

    @cached_property
    def ranker(self) -> CLIPRanker | None:
        """The run's CLIP, None where it does not lie beside the card."""
        is_here = self.card.clip_is_beside and self.card.has_clip()
        return CLIPRanker(self.card.clip_source()) if is_here else None

    @cached_property
    def train(self) -> list[CodeRow]:
        """The training rows to which pictures are compared, the first ones; none where they are elsewhere."""
        if self.card.data.train.startswith("hf://"):
            return []
        return first_rows(self.card, self.card.data.train, MAX_PIXELS // self.own[0, ..., 0].numel())

    @cached_property
    def _gallery(self) -> Gallery:
        return Gallery(self.train + self.held_out, self.vqgan)

    @cached_property
    def _training(self) -> TrainingPictures | None:
        return TrainingPictures(self.train, self.vqgan, self.ranker) if self.train and self.ranker else None

    @cached_property
    def _words(self) -> TrainingCaptions | None:
        words = TrainingCaptions.of(self.card)
        return words if words is not None and words.has_words else None

    def _exactness(self, pictures: Tensor) -> dict[str, float]:
        if not self.train:
            return {}
        pairs = list(zip(self.captions, self._gallery.nearest(pictures), strict=True))
        found = {"among": len(self._gallery.captions), "exact": _share([right == near for right, near in pairs])}
        if self._words is not None:
            parts = [(parts_of(right, self._words), parts_of(near, self._words)) for right, near in pairs]
            for name in "object", "colour", "background":
                named = [right[name] == near[name] for right, near in parts if right[name]]
                found |= {name: _share(named)} if named else {}
        return found

    def _ranks(self, pictures: Tensor) -> dict[str, float]:
        if self.ranker is None:
            return {}
        everything = [row.caption for row in self.held_out]
        captions, right = self.ranker.embed_captions(everything), [everything.index(each) for each in self.captions]
        drawn, own = (reciprocal_ranks(self.ranker.embed_pictures(each) @ captions.T, right)
                      for each in (pictures, self.own))  # fmt: skip
        found = {
            "rank": statistics.fmean(drawn),
            "rank_half_width": CONFIDENCE * standard_error(drawn),
            "rank_ceiling": statistics.fmean(own),
            "rank_chance": statistics.fmean(1 / rank for rank in range(1, len(everything) + 1)),
            "ranked": len(everything),
        }
        if self._training is not None:
            found["nearest"], found["nearest_held_out"] = (
                float(self._training.nearest_to(each)[0].mean()) for each in (pictures, self.own)
            )
        return found


def parts_of(caption: str, words: TrainingCaptions) -> dict[str, str]:
    """Return object, colour and background of a caption of the data; what it does not name is ""."""
    found = _BACKGROUND.fullmatch(caption)
    shown, background = (found["shown"], found["background"]) if found else (caption, "")
    colour, _, thing = shown.partition(" ")
    is_coloured = shown not in words.things and colour in words.colours
    return {
        "object": thing if is_coloured else shown,
        "colour": colour if is_coloured else "",
        "background": background,
    }


def reciprocal_ranks(scores: Float[Tensor, "pictures captions"], right: Sequence[int]) -> list[float]:
    """Return 1 / rank of each picture's `right` caption; one whose score others have too comes after them."""
    own = scores[torch.arange(len(scores)), torch.tensor(right)]
    return (1 / (scores >= own[:, None]).sum(1)).tolist()


def standard_error(values: Sequence[float]) -> float:
    """Return that of the mean of `values`, 0 for a single one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _share(are_right: Sequence[bool]) -> float:
    return sum(are_right) / len(are_right)
