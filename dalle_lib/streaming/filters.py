"""Which pairs of picture and caption are kept, when a data set is prepared and when it is read."""

from dataclasses import dataclass

MAX_CAPTION = 10_000
"""Letters of a caption beyond which it is none."""
NSFW = ("UNLIKELY", "UNSURE", "NSFW")
"""What a classifier said of a picture, in the words of LAION-400M."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What a pair must be like to be kept; by default, every pair with a caption of at most MAX_CAPTION letters is.

    A filter that needs what a data set does not tell is an error where that data set is opened.
    """

    min_caption: int = 1
    """Letters that a caption has at least."""
    max_aspect: float | None = None
    """How many times longer than the other one a side of the original picture may be. It needs `width` and `height`."""
    nsfw: tuple[str, ...] | None = None
    """What a classifier may have said of the picture, such as UNLIKELY. It needs `nsfw`."""

    def __post_init__(self) -> None:
        if not (type(self.min_caption) is int and 0 <= self.min_caption <= MAX_CAPTION):
            raise ValueError(f"min_caption must be a whole number from 0 to {MAX_CAPTION}, but is {self.min_caption}.")
        if self.max_aspect is not None and not self.max_aspect >= 1:
            raise ValueError(f"max_aspect is the longer side over the shorter one, but is {self.max_aspect}, below 1.")
        if self.nsfw is not None and not self.nsfw:
            raise ValueError(f"nsfw must name what is kept, such as {NSFW[0]}, but names nothing.")

    @classmethod
    def paper(cls) -> "Filters":
        """Captions of 3 letters or more, no side over twice the other, and NSFW "UNLIKELY" (arXiv:2207.03481)."""
        return cls(min_caption=3, max_aspect=2, nsfw=("UNLIKELY",))

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of a data set that these filters read, besides its captions."""
        sizes = ("width", "height") if self.max_aspect is not None else ()
        return (*sizes, "nsfw") if self.nsfw is not None else sizes

    def require_told(self, columns: tuple[str, ...], source: str) -> None:
        """Raise ValueError if a data set with these columns does not tell what the filters need."""
        if missing := [column for column in self.needs if column not in columns]:
            raise ValueError(
                f"the filters need {', '.join(missing)} of each picture, but {source} does not tell: choose other "
                "filters, or prepare the data anew from a source that tells."
            )

    def why_not(
        self, caption: str | None, *, nsfw: str | None = None, width: int | None = None, height: int | None = None
    ) -> str | None:
        """Return why a pair is left out, in a few words that are the same for all of its kind, or None if it is kept.

        `width` and `height` are those of the original picture, in pixels.
        """
        if not caption:
            return "no caption"
        if len(caption) > MAX_CAPTION:
            return f"caption above {MAX_CAPTION:,} letters"
        if len(caption) < self.min_caption:
            return f"caption below {self.min_caption} letters"
        if self.max_aspect is not None:
            if not width or not height or min(width, height) < 0:
                return "size unknown"
            if max(width, height) > self.max_aspect * min(width, height):
                return f"a side above {self.max_aspect:g} times the other"
        if self.nsfw is not None and nsfw not in self.nsfw:
            return f"nsfw not {' or '.join(self.nsfw)}"
        return None
