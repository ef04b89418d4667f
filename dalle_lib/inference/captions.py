"""What the training captions of a run hold, what of a prompt they do not, and how they would say it."""

import re
from collections import Counter
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from math import log
from pathlib import Path

from dalle_lib.files import ANEW, files_in, read_record
from dalle_lib.one_line import shortened
from dalle_lib.run import RunCard
from dalle_lib.streaming import CodeRow, code_files, read_codes

WORDS = "words.json"
"""File beside the training data that says which things, colours and backgrounds its captions name, if it has one."""
OWN_COLOURS = "own_colours"
"""Its entry with a list for each of some things; all others are lists."""
MAX_COMBINATIONS = 10**6
"""Colours times things; those of `emoji` make 3,000."""
ARTICLES = frozenset({"a", "an", "the"})
SAME_COLOURS = {"gray": "grey", "violet": "purple"}
"""Other words for colours, which are read as those that the captions use."""
MAX_NAMED = 5
"""Unknown words of a prompt that are named; of more, the number is told."""
CLOSE = 0.84
"""How alike two words must be spelt, from 0 to 1, for one to be a slip: "pengiun" is, but no kitten is a kite."""
NEAREST = 3
"""Training captions that are named where a prompt is new."""
ENDINGS = ("ies", "y"), ("ves", "fe"), ("ves", "f"), ("es", ""), ("s", "")
"""How words end where there are many of a thing, and where there is one."""
SHADES = ("light", "dark", "bright", "pale", "deep")
"""Words before a colour that are left out, and told, where the captions know that colour in one shade."""
_BACKGROUND = re.compile(
    r"(?P<subject>.+?),?(?P<joined> (?:on|with|against|in front of))? (?P<colour>[\w-]+)(?P<named> background)?"
)


@dataclass(frozen=True)
class Novelty:
    """What of a prompt is not in the training data, as far as their captions tell."""

    words: list[str] = field(default_factory=list)
    """Words that no training caption holds, and shades of colours, such as "light blue"."""
    phrases: list[str] = field(default_factory=list)
    """Things and backgrounds that no training caption names, though it holds each of their words."""
    is_combination: bool = False
    """Whether the captions hold all parts of the prompt, but not together."""
    colourless: str = ""
    """The thing of such a prompt whose colour is asked for, if no caption gives it one."""
    own_colour: str = ""
    """A thing with a colour, such as "red tomato", that no caption gives it, as it has about that hue by itself."""
    only_behind: str = ""
    """The colour that is asked for of a thing, if captions know it as a background only."""
    nearest: list[str] = field(default_factory=list)
    """Training captions that say nearly the same, nearest first."""

    def __str__(self) -> str:
        """Return one sentence for whoever asked for the picture; nothing if all is known."""
        told = []
        if self.words:
            others = len(self.words) - MAX_NAMED
            more = f" and {others} more words" if others > 0 else ""
            told.append(", ".join(f"no {name}" for name in self.words[:MAX_NAMED]) + f"{more} in its training data")
        if self.phrases:
            told.append(f"no training caption is about {', '.join(repr(shortened(name)) for name in self.phrases)}")
            if self.only_behind:
                told.append(f"{self.only_behind} is only a background there")
        elif self.is_combination:
            told.append("a new combination: its training data hold the parts, but not together")
            if self.colourless:
                told.append(f"no training caption gives {self.colourless!r} a colour, so it may stay as it is")
        elif self.own_colour:
            told.append(f"no training caption says {self.own_colour!r}, which has about that hue by itself")
        if told and self.nearest:
            told.append(f"the nearest captions that it knows: {', '.join(self.nearest)}")
        return "; ".join(told)


class TrainingCaptions:
    """The captions that a run trained on, to hold prompts against them."""

    def __init__(self, captions: list[str], words: dict | None = None) -> None:
        """Take the captions, and the `things`, `colours` and `backgrounds` that they name, where these are known.

        `plain_background` is the colour behind things whose caption names none, `own_colours` has for some things the
        colours that no caption gives them, as they have about these hues by themselves.
        """
        self.captions = captions
        self.known_words = frozenset(word for caption in captions for word in words_in(caption))
        self.has_words = words is not None
        self.things, self.backgrounds, self.plain_background = (
            frozenset((words or {}).get(kind, ())) for kind in ("things", "backgrounds", "plain_background")
        )
        self.colours: list[str] = (words or {}).get("colours", [])
        self.own_colours: dict[str, list[str]] = (words or {}).get(OWN_COLOURS, {})

    @classmethod
    def of(cls, card: RunCard) -> "TrainingCaptions | None":
        """Return the captions of a run, or None if those are on the Hub: fetching them takes long."""
        source = Path(card.data_source(card.data.train))
        if not source.is_dir():
            return None
        words = files_in(source).get(WORDS)
        listed = None if words is None else read_record(words, _lists_of_words, ANEW)
        return cls([row.caption for row in training_rows(card)], listed)

    def as_written(self, prompt: str) -> str:
        """Return the prompt as the training captions would say it: their articles, "on a ... background".

        One thing stands for many of it where captions know only the one, and the other way round; so does a colour for
        its shades.
        The embedded models were trained on no other wording, and draw worse with an article. Without a list of words,
        nothing is known of how captions are written, and the prompt is returned as it is.
        """
        if not self.has_words:
            return prompt
        subject, background = self._parts(prompt)
        return _caption(subject, background)

    def novelty_of(self, prompt: str) -> Novelty:
        """Return what of the prompt is new; without a list of words, only the words that no caption holds."""
        if not self.has_words:
            return Novelty([word for word in words_in(prompt) if word not in self.known_words | ARTICLES])
        subject, background = self._parts(prompt)
        words = [word for word in words_in(f"{subject} {background or ''}") if word not in self.known_words]
        words += [" ".join(shade) for shade in self._shade.findall(prompt.lower())]
        phrases = []
        if not (set(words_in(subject)) - self.known_words or subject in self._subjects or self._is_made_of(subject)):
            phrases.append(subject)
        if background in self.known_words - self.backgrounds:
            phrases.append(f"{background} background")
        is_known = _caption(subject, background) in self._known
        is_combination = not (is_known or words or phrases)
        if is_combination and self._has_own_colour(subject, background):
            return Novelty(own_colour=subject)
        nearest = [] if is_known else self._nearest(prompt)
        colour, _, thing = subject.partition(" ")
        colourless = thing if is_combination and colour in self.colours and self._is_colourless(thing) else ""
        is_behind = phrases and thing in self.things and colour in self._all_colours - set(self.colours)
        only_behind = colour if is_behind else ""
        return Novelty(words, phrases, is_combination, colourless, only_behind=only_behind, nearest=nearest)

    def _parts(self, prompt: str) -> tuple[str, str | None]:
        """Return what a prompt shows, and the colour of its background if it names one; both without articles."""
        words = self._shade.sub(r"\2", " ".join(prompt.lower().split())).rstrip(".!? ")
        spelt = re.sub(r"\w[\w'’-]*", lambda found: self._as_spelt(found[0]), words)
        bare = " ".join(word for word in spelt.split() if word not in ARTICLES) or spelt  # articles alone stay
        if bare in self._subjects:  # "face with monocle" has no background
            return self._subjects[bare], None
        found = _BACKGROUND.fullmatch(bare)
        # Two of three make a background: "frog on blue", "frog, blue background", "frog on a golden background".
        if found and (found["colour"] in self._all_colours) + bool(found["joined"]) + bool(found["named"]) >= 2:
            subject = self._subjects.get(found["subject"], found["subject"])
            return subject, None if found["colour"] in self.plain_background else found["colour"]
        return bare, None

    def _as_spelt(self, word: str) -> str:
        """Return a colour as the captions spell it, many of a thing as the one that they know or one as many.

        A thing of several words may be written as one, as "hotdog" or "red-apple". Any other word is returned as it is.
        """
        if word in self.known_words | ARTICLES:
            return word
        if (together := word.replace("-", "")) in self._together:
            return self._together[together]
        ends = [*ENDINGS, *((one, many) for many, one in ENDINGS)]
        forms = [word.removesuffix(end) + other for end, other in ends if word.endswith(end)]
        return next((form for form in forms if form in self._words_of_things), SAME_COLOURS.get(word, word))

    def _is_made_of(self, subject: str) -> bool:
        """Return whether `subject` is a thing, or one of the colours and a thing."""
        colour, _, thing = subject.partition(" ")
        return subject in self.things or (colour in self.colours and thing in self.things)

    def _has_own_colour(self, subject: str, background: str | None) -> bool:
        """Return whether `subject` is a thing in a colour that it has anyway, and captions name the thing so.

        A thing that captions give no colour has none to speak of: a penguin is no yellow one for its throat.
        """
        colour, _, thing = subject.partition(" ")
        is_own = colour in self.own_colours.get(thing, ()) and not self._is_colourless(thing)
        return is_own and _caption(thing, background) in self._known

    def _is_colourless(self, thing: str) -> bool:
        """Return whether captions name a thing, but in no colour."""
        return thing in self.things and not any(f"{colour} {thing}" in self._subjects for colour in self.colours)

    def _nearest(self, prompt: str) -> list[str]:
        """Return the NEAREST captions that share most words and pairs of words with the prompt, rare ones first.

        A word that no caption holds stands for the one that is spelt nearly like it, if there is one.
        """
        words = [self._as_spelt(word) for word in words_in(prompt) if word not in ARTICLES]
        spelt = [
            w if w in self.known_words else next(iter(get_close_matches(w, self.known_words, 1, CLOSE)), w)
            for w in words
        ]
        wanted = set(_features(spelt))
        weights = {feature: log(len(self.captions) / count) for feature, count in self._counts.items()}

        def likeness(place: int) -> float:
            features = self._features[place]
            shared, own = (sum(weights[x] for x in group) for group in (wanted & features, features))
            return round(shared / (own + 1) ** 0.5, 9)  # sets are summed in any order: equal ones are to stay equal

        order = sorted(range(len(self.captions)), key=likeness, reverse=True)[:NEAREST]
        return [self.captions[place] for place in order if likeness(place) > 0]

    @cached_property
    def _shade(self) -> re.Pattern:
        """Two groups: what a colour's shade is called, and the colour."""
        shades = "|".join(shade for shade in SHADES if shade not in self.known_words) or "(?!)"
        return re.compile(
            rf"\b({shades})[ -]?({'|'.join(map(re.escape, sorted(self._all_colours | SAME_COLOURS.keys())))})\b"
        )

    @cached_property
    def _all_colours(self) -> frozenset[str]:
        return self.backgrounds | self.plain_background | frozenset(self.colours)

    @cached_property
    def _together(self) -> dict[str, str]:
        """Things of several words, by these without what is between them."""
        return {re.sub("[ -]", "", thing): thing for thing in self.things if " " in thing or "-" in thing}

    @cached_property
    def _words_of_things(self) -> frozenset[str]:
        return frozenset(word for thing in self.things for word in words_in(thing))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.captions)

    @cached_property
    def _subjects(self) -> dict[str, str]:
        """What each caption shows, without its background: as it is written, by itself without articles.

        A thing of which captions only know one or two in colours, as the apple, is the one in the first of `colours`.
        """
        subjects = {re.sub(r" on an? [\w-]+ background$", "", caption) for caption in self.captions}
        written = {" ".join(word for word in each.split() if word not in ARTICLES): each for each in subjects}
        coloured = ((colour, thing) for colour in reversed(self.colours) for thing in self.things - subjects)
        return {thing: f"{c} {thing}" for c, thing in coloured if f"{c} {thing}" in self.things} | written

    @cached_property
    def _features(self) -> list[set]:
        return [set(_features([w for w in words_in(caption) if w not in ARTICLES])) for caption in self.captions]

    @cached_property
    def _counts(self) -> Counter:
        return Counter(feature for features in self._features for feature in features)


def _lists_of_words(told: dict) -> dict:
    """Return what a list of words holds, checked. Raises ValueError if that is no lists of words."""
    lists = [words for kind, words in told.items() if kind != OWN_COLOURS] + [*told.get(OWN_COLOURS, {}).values()]
    if not all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists):
        raise ValueError("expected lists of words")
    colours, things = (len(told.get(kind, ())) for kind in ("colours", "things"))
    if colours * things > MAX_COMBINATIONS:
        raise ValueError(f"expected at most {MAX_COMBINATIONS:,} things in a colour, but got {colours:,} x {things:,}")
    return told


def training_rows(card: RunCard) -> list[CodeRow]:
    """Return the captions and codes of a run's training data, which lie beside its card."""
    files = code_files(Path(card.data_source(card.data.train)))
    return [row for file in files for row in read_codes(file, card.data.format)]


def _caption(subject: str, background: str | None) -> str:
    return subject if background is None else f"{subject} on a {background} background"


def words_in(text: str) -> list[str]:
    """Return the words of a caption in lower case."""
    return re.findall(r"\w[\w'’-]*", text.lower())


def _features(words: list[str]) -> list[str]:
    """Return the words, and each pair of neighbours."""
    return words + [f"{a} {b}" for a, b in pairwise(words)]
