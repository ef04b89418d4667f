"""How candidates are drawn. Imports nothing heavy, because the command line takes its options from here."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from string import punctuation, whitespace

from dalle_lib.one_line import shortened

CANDIDATES = 32
"""Pictures that are drawn of a prompt unless a call or a preset says otherwise."""
SIDE_BY_SIDE = 512
"""Candidates that are drawn at once at most: more are no quicker on a processor, and show nothing for long."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings that belong together, under one name."""

    top_k: int
    top_p: float
    candidates: int


PRESETS = {
    "paper-top-k": Preset(top_k=256, top_p=1.0, candidates=128),
    "paper-top-p": Preset(top_k=0, top_p=0.75, candidates=128),
}
"""The two ways in which the paper drew, arXiv:2207.03481: among the 256 likeliest codes, or among the likeliest that
together reach a probability of 0.75; CLIP chose from 128 candidates."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How candidates are drawn, code by code."""

    top_k: int = 256
    """Draw each code among this many of the likeliest; 0 allows all. Lower it if pictures fall apart."""
    top_p: float = 1.0
    """Draw each code among the likeliest that together reach this probability; 0 takes the likeliest alone. It chooses
    among those that top_k leaves: for top_p alone, set top_k to 0."""
    temperature: float = 1.0
    """Below 1 for safer pictures, above 1 for bolder ones. Raise it if all candidates look alike."""
    guidance: float | None = None
    """How strongly the prompt pulls; 1 is the model as it is and takes half the time. None takes the run's default."""
    seed: int | None = None
    """The same seed and settings give the same pictures on one kind of device. None takes a random one, which the
    Drawing names."""

    def check(self) -> None:
        """Raise ValueError if a setting is out of its range. Loads torch, but no model."""
        from dalle_lib.model.sampling import check_filters

        check_filters(self.top_k, self.top_p, self.temperature, 1.0 if self.guidance is None else self.guidance)
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < 2**63):
            raise ValueError(f"expected seed to be a whole number from 0 to 2**63 - 1, but got {self.seed!r}.")

    def with_preset(self, name: str | None) -> "Settings":
        """Return these settings with those of a preset, or these where `name` is None.

        Raises ValueError if there is no such preset, or one of its settings was set to another value beside it.
        """
        if name is None:
            return self
        if name not in PRESETS:
            raise ValueError(f"expected a preset among {', '.join(PRESETS)}, but got {name!r}.")
        chosen = {field: getattr(PRESETS[name], field) for field in ("top_k", "top_p")}
        for field, value in chosen.items():
            if (found := getattr(self, field)) not in (value, getattr(Settings, field)):
                raise ValueError(f"preset {name} means {field}={value}, but got {field}={found} too: leave out one.")
        return replace(self, **chosen)

    def completed(self, guidance: float) -> "Settings":
        """Return settings that leave nothing open: this `guidance` and a made-up seed where None stood."""
        return replace(
            self,
            guidance=guidance if self.guidance is None else self.guidance,
            seed=secrets.randbelow(2**31) if self.seed is None else self.seed,
        )


def how_many(candidates: int | None, preset: str | None) -> int:
    """Return `candidates`, or where they are None, those of the preset, or CANDIDATES without one."""
    if candidates is not None:
        return candidates
    return CANDIDATES if preset is None else PRESETS[preset].candidates


def check_counts(candidates: int, best: int) -> None:
    """Raise ValueError if nothing would be drawn or kept. `best` is a limit, so it may be more than there are."""
    if not (isinstance(best, int) and isinstance(candidates, int) and best >= 1 and candidates >= 1):
        raise ValueError(
            f"expected best and candidates to be whole numbers of at least 1, but got best={best}, "
            f"candidates={candidates}."
        )


def check_prompts(prompts: Iterable[str]) -> None:
    """Raise ValueError if there is no prompt, one without a word, or one that is no text."""
    prompts = list(prompts)
    wrong = [number for number, prompt in enumerate(prompts, start=1) if not prompt.strip(punctuation + whitespace)]
    if wrong or not prompts:
        which = f"prompt {wrong[0]} of {len(prompts)} is {prompts[wrong[0] - 1]!r}" if wrong else "got none"
        raise ValueError(f'expected prompts of at least one word, such as "green frog", but {which}.')
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.isascii() and any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise ValueError(
                f"expected prompts in UTF-8, but prompt {number} of {len(prompts)} holds bytes that are none: "
                f"{shortened(prompt)!r}. Type it again in a terminal that uses UTF-8."
            )
