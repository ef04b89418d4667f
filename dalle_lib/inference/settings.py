"""How candidates are drawn. Imports nothing heavy, because the command line takes its options from here."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How candidates are drawn, code by code."""

    top_k: int = 256
    """Draw each code among this many of the likeliest; 0 allows all. Lower it if pictures fall apart."""
    top_p: float = 1.0
    """Draw each code among the likeliest that together reach this probability; 0 takes the likeliest alone."""
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
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"expected seed >= 0, but got {self.seed}.")

    def completed(self, guidance: float) -> "Settings":
        """Return settings that leave nothing open: this `guidance` and a made-up seed where None stood."""
        return replace(
            self,
            guidance=guidance if self.guidance is None else self.guidance,
            seed=secrets.randbelow(2**31) if self.seed is None else self.seed,
        )


def check_counts(candidates: int, best: int) -> None:
    """Raise ValueError if of so many candidates so many cannot be kept."""
    if not 1 <= best <= candidates:
        raise ValueError(f"expected 1 <= best <= candidates, but got best={best}, candidates={candidates}.")


def check_prompts(prompts: Iterable[str]) -> None:
    """Raise ValueError if there is no prompt, or one without a word."""
    prompts = list(prompts)
    if not prompts or any(not prompt.strip() for prompt in prompts):
        raise ValueError(f'expected prompts of at least one word, such as "green frog", but got {prompts}.')
