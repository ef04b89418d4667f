"""The page of a run's model: what it is, how good it is, what it draws, who made it, what it must not be used for."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dalle_lib.files import reading, small_bytes
from dalle_lib.one_line import printable
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES, hub_files
from dalle_lib.run.newest import STATUS, TEAM_COLUMNS, USER_COLUMNS, file_of_monitor
from dalle_lib.version import project_page

PAGE_FOLDER = "page"
"""Folder of what the page shows, beside it."""
LOSSES, FIRST, BEST_OF_MANY, NEAREST, LAPSE = "losses.webp", "first.webp", "best.webp", "nearest.webp", "lapse.webp"
PROMPTS_FILE = "prompts.json"
PAGE_PICTURES = (LOSSES, FIRST, BEST_OF_MANY, NEAREST, LAPSE)
SHOWN = (*PAGE_PICTURES, PROMPTS_FILE)
"""What is in it: pictures, and the prompts of those."""
MAX_LISTED, MAX_TEAMS = 500, 100
"""Contributors and teams on the page, those with most hours."""
MAX_NAME, MAX_CAPTION, MAX_PROMPTS = 64, 200, 16
"""Letters of a name and of a caption that are shown, and captions."""
_COLUMNS = {
    "exact": "picture", "object": "object", "colour": "colour", "background": "background",
    "rank": "1 / rank", "nearest": "nearest",
}  # fmt: skip
"""Columns of the table beside the loss, by the names of the figures; see `_meanings`."""


@dataclass(frozen=True)
class PageFacts:
    """What a page says of a run, as the run's monitor has told it."""

    contributors: tuple[tuple[str, float, float], ...] = ()
    """User, hours of computing, and share of the averaged gradients."""
    teams: tuple[tuple[str, int, float, float], ...] = ()
    """Team, members, hours of computing, and share of the averaged gradients."""
    listed: int = 0
    """How many users have given ten minutes or more; `contributors` are the first of them."""
    examined: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """Epoch and figures of each examined checkpoint: `held_out_loss`, `half_width` and those of what it draws."""
    pictures: Mapping[str, Path] = field(default_factory=dict)
    """The pictures of the page that there are, by their names in PAGE_FOLDER."""
    seen: tuple[str, ...] = ()
    """Captions of training pictures that the grids show, from left to right and from above."""
    unseen: tuple[str, ...] = ()
    """Held-out captions that they show after those."""
    newest: int | None = None
    """Epoch of the newest checkpoint."""

    @classmethod
    def of(cls, card: RunCard) -> "PageFacts":
        """Return what the run's repository of checkpoints says, nothing without one. Raises ValueError."""
        if card.checkpoints is None:
            return cls()
        there = hub_files(card.checkpoints, card.token)
        places = {name: f"{PAGE_FOLDER}/{name}" for name in SHOWN}
        small = {name: file_of_monitor(card, place) for name, place in places.items()
                 if place in there and (there[place].bytes or 0) <= MAX_CARD_BYTES}  # fmt: skip
        prompts, status = small.pop(PROMPTS_FILE, None), file_of_monitor(card, STATUS)
        with reading(status, "the standing of a run"):
            asked = {} if prompts is None else json.loads(small_bytes(prompts, MAX_CARD_BYTES))
            standing = cls.told(json.loads(small_bytes(status, MAX_CARD_BYTES)), small, asked)
            _quality(standing)  # a figure may be missing that a sentence needs
            return standing

    @classmethod
    def told(cls, status: Mapping, pictures: Mapping[str, Path], prompts: Mapping) -> "PageFacts":
        """Return what a status says, and the prompts. Raises LookupError, TypeError or ValueError for another."""
        users = [dict(zip(USER_COLUMNS, row, strict=True)) for row in status["users"]]
        teams = [dict(zip(TEAM_COLUMNS, row, strict=True)) for row in status.get("teams", ())]
        checkpoints = {int(each["epoch"]): each["figures"] for each in status["checkpoints"]}
        seen, unseen = (tuple(map(str, prompts.get(kind, ())[:MAX_PROMPTS])) for kind in ("seen", "unseen"))
        return cls(
            contributors=tuple((str(user["user"]), user["compute_s"] / 3600, float(user["share"])) for user in users),
            teams=tuple(
                (str(team["team"]), int(team["members"]), team["compute_s"] / 3600, float(team["share"]))
                for team in teams
            ),
            listed=int(status["totals"]["listed"]),
            examined=tuple((epoch, _flat(checkpoints[epoch])) for epoch in sorted(checkpoints) if checkpoints[epoch]),
            pictures=pictures, seen=seen, unseen=unseen, newest=max(checkpoints, default=None),
        )  # fmt: skip


def model_page(card: RunCard, repository: str, facts: PageFacts, epoch: int | None = None, licence: str = "") -> str:
    """Return the page of a run's model, whose checkpoint of `epoch` one draws with by the run's name, `repository`."""
    head = ["library_name: dalle-lib", "pipeline_tag: text-to-image", *([f"license: {licence}"] if licence else [])]
    made = "have trained" if card.state == "finished" else "are training"
    of_epoch = "" if epoch is None else f" This is how it is after {epoch:,} of {card.optimizer.total_epochs:,} epochs."
    lines = [
        "---", *head, "---", f"# {card.name}", "",
        f"A text-to-image model that volunteers {made} together over the internet with "
        f"[dalle-lib]({project_page()}).{of_epoch}",
        "", "```", f'dalle-lib generate "a prompt" --run {repository}', "```", "",
        *_drawn(facts), *_recipe(card, licence), *_quality(facts), *_thanks(card, facts),
        "## What it must not be used for", "",
        "It repeats what its data show and say, with their prejudices, and it may draw a training picture nearly as it "
        "was. Nobody has examined it for harm. Do not show its pictures as photographs, nor draw people without their "
        "word.", "",
        *_citation(card, repository),
    ]  # fmt: skip
    return "\n".join(lines)


def as_code(text: str, most: int) -> str:
    """Return a stranger's text as Markdown that shows it and does nothing else, in a table too: a span of code."""
    shown = printable(text[:most]).replace("`", "'").replace("|", "¦")
    return f"`{shown}`" if shown else "`?`"


def _recipe(card: RunCard, licence: str) -> list[str]:
    data, manifest = card.data.train, (card.data.manifest or "")[:16]
    source = f"`{data}`"
    if data.startswith("hf://datasets/"):
        name = "/".join(data.removeprefix("hf://datasets/").split("/")[:2])
        source = f"[{name}](https://huggingface.co/datasets/{name}), whose page has its licence and known faults"
    recipe = {
        "model": f"{card.model.depth} blocks of {card.model.dim}, {card.model.heads} heads",
        "pictures": f"{card.model.grid}x{card.model.grid} codes, each one of {card.model.image_vocab:,}",
        "data": source + (f", manifest {manifest}" if manifest else ""),
        "held-out data": f"`{card.data.held_out}`",
        "optimizer": f"LAMB in {card.optimizer.bits} bits, learning rate {card.optimizer.lr:g}, "
        f"{card.averaging.target_batch_size:,} samples an epoch",
        "averaging": f"{card.averaging.rule}, {card.averaging.strategy}",
        "licence": licence or "not named yet: ask the organiser before you use its weights",
    }
    rows = (f"| {name} | {told} |" for name, told in recipe.items())
    return ["## How it is made", "", "| | |", "| --- | --- |", *rows, ""]


def _drawn(facts: PageFacts) -> list[str]:
    """Return the pictures with what they are."""
    if FIRST not in facts.pictures:
        return []
    lines, asked = [], {"captions of training pictures": facts.seen, "held-out captions": facts.unseen}
    for whose, prompts in asked.items():
        if prompts:
            lines.append(f"- {whose}: {', '.join(as_code(prompt, MAX_CAPTION) for prompt in prompts)}")
    told = {
        FIRST: "The first sample of each prompt, chosen by nobody:",
        BEST_OF_MANY: "The best of many samples of each prompt, chosen by the run's CLIP:",
        LAPSE: "The first samples of each checkpoint so far:",
    }
    for name, words in told.items():
        if name in facts.pictures:
            lines += ["", words, "", f"![{words.rstrip(':')}]({PAGE_FOLDER}/{name})"]
    return ["## What it draws", "", "The prompts, row by row:", "", *lines, ""]


def _quality(facts: PageFacts) -> list[str]:
    plot = [f"![Losses over epochs]({PAGE_FOLDER}/{LOSSES})", ""] if LOSSES in facts.pictures else []
    if not facts.examined:
        return ["## How it goes", "", *plot] if plot else []
    last = facts.examined[-1][1]
    names = [name for name in _COLUMNS if any(name in figures for _, figures in facts.examined)]
    lines = [
        "## How good it is", "", *plot,
        "| epoch | nats a code on held-out data |" + "".join(f" {_COLUMNS[name]} |" for name in names),
        "| ---: | --- |" + " ---: |" * len(names),
        *(_row(epoch, figures, names) for epoch, figures in facts.examined), "",
        *(f"- {meaning}" for meaning in _meanings(last)), "",
    ]  # fmt: skip
    if NEAREST in facts.pictures:
        lines += [
            "Does it repeat its data? From above: held-out pictures; the training pictures nearest to them; what the "
            "model draws for their captions; the training pictures nearest to that.",
            "", f"![Drawn pictures and the nearest training pictures]({PAGE_FOLDER}/{NEAREST})", "",
        ]  # fmt: skip
    return lines


def _row(epoch: int, figures: Mapping[str, float], names: Iterable[str]) -> str:
    shown = [f"{epoch:,}", f"{figures['held_out_loss']:.3f} ± {figures['half_width']:.3f}"]
    for name in names:
        value, half = figures.get(name), figures.get("rank_half_width", 0.0) if name == "rank" else None
        of_share = name not in ("rank", "nearest")
        shown.append("" if value is None else f"{value:.0%}" if of_share else f"{value:.3f}")
        shown[-1] += f" ± {half:.3f}" if value is not None and half is not None else ""
    return f"| {' | '.join(shown)} |"


def _meanings(last: Mapping[str, float]) -> Iterator[str]:
    """Yield what the columns are, as far as the last checkpoint has them."""
    yield f"Nats a code: the mean over {last.get('rows', 0):,.0f} held-out pictures, with its 95% interval."
    if "captions" in last:
        yield f"The other columns judge {last['captions']:,.0f} first samples, each of another held-out caption."
    if "exact" in last:
        yield f"Picture: how often the caption's own is the nearest of {last['among']:,.0f} pictures of the data."
    if "object" in last:
        yield "Object, colour, background: how often that nearest picture has the caption's, where this names one."
    if "rank" in last:
        yield (
            f"1 / rank: the mean, with its 95% interval, where rank is the place of the right caption among "
            f"{last['ranked']:,.0f} held-out ones. The held-out pictures themselves have {last['rank_ceiling']:.3f}, "
            f"chance has {last['rank_chance']:.3f}. The run's own CLIP has judged, because there is no other one; it "
            "has chosen none of these samples."
        )
    if "nearest" in last:
        yield (
            "Nearest: the mean cosine to the nearest training picture by the same CLIP. Held-out pictures have "
            f"{last['nearest_held_out']:.3f}; a model that is far above that repeats its data."
        )


def _thanks(card: RunCard, facts: PageFacts) -> list[str]:
    if not facts.contributors:
        return []
    title = "Who made it" if card.state == "finished" else "Who makes it"
    lines = [f"## {title}", "", "Thanks to everybody who gave ten minutes of computing or more:", ""]
    lines += ["| user | hours of computing | of the averaged gradients |", "| --- | ---: | ---: |"]
    shown = facts.contributors[:MAX_LISTED]
    lines += [f"| {as_code(user, MAX_NAME)} | {hours:,.1f} | {share:.1%} |" for user, hours, share in shown]
    left = facts.listed - len(shown)
    lines += ["", *([f"And {left:,} more.", ""] if left > 0 else [])]
    if facts.teams:
        lines += ["| team | members | hours of computing | of the averaged gradients |", "| --- | ---: | ---: | ---: |"]
        of_teams = facts.teams[:MAX_TEAMS]
        lines += [
            f"| {as_code(team, MAX_NAME)} | {n:,} | {hours:,.1f} | {share:.1%} |" for team, n, hours, share in of_teams
        ]
        lines.append("")
    return lines


def _citation(card: RunCard, repository: str) -> list[str]:
    address = f"https://huggingface.co/{repository}" if "/" in repository else project_page()
    return [
        "## How to cite it", "", "```bibtex",
        f"@misc{{{card.name},", f"  title = {{{{{card.name}}}: a text-to-image model trained by volunteers}},",
        f"  author = {{{{The volunteers of {card.name}}}}},", f"  howpublished = {{\\url{{{address}}}}},", "}",
        "@misc{together, title = {Training Transformers Together}, eprint = {2207.03481}, archivePrefix = {arXiv}}",
        "```", "",
    ]  # fmt: skip


def _flat(figures: Mapping) -> dict[str, float]:
    """Return a checkpoint's figures by name, those of what it draws among them. Raises ValueError for no numbers."""
    drawn = figures.get("drawn") or {}
    numbers = {str(name): float(value) for name, value in {**figures, **drawn}.items() if name != "drawn"}
    for needed in "held_out_loss", "half_width":
        numbers[needed]  # a KeyError, which `reading` tells
    return numbers
