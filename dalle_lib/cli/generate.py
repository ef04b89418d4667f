"""`dalle-lib generate`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dalle_lib.files import require_writable
from dalle_lib.inference.settings import Settings, check_counts, check_prompts, how_many
from dalle_lib.one_line import printable_lines, shortened

if TYPE_CHECKING:
    from dalle_lib.inference import Drawing, Progress, TextToImage


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Draw pictures of prompts with the model of a run.

    With an embedded run, nothing is downloaded. For example:

    dalle-lib generate "penguin on a yellow background"

    dalle-lib generate "green frog" "pizza" --candidates 64 --best 2 --out pictures
    """

    prompts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to draw, each prompt in quotes."""
    model: Annotated[str, tyro.conf.arg(name="run")] = "emoji"
    """An embedded run, a folder, owner/name on the Hub, or paper-2021; or the folder of a peer that you have run."""
    preset: Literal["paper-top-k", "paper-top-p"] | None = None
    """Draw as the paper did: each code among the 256 likeliest, or among those that together reach 0.75."""
    candidates: int | None = None
    """How many pictures to draw of each prompt; None takes 32, or the preset's 128."""
    best: int = 4
    """At most how many different ones of them to keep, by CLIP; where its scores differ by no more than its noise, the
    commoner picture comes first."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    clip: bool = True
    """Let the run's CLIP choose. With --no-clip none is loaded, or fetched, and the pictures come first that were drawn
    most often."""
    device: str | None = None
    """cpu or cuda; None takes a GPU if there is one."""
    out: Path = Path("outputs/pictures")
    """Folder for the pictures, named after prompt and seed; those of the same prompt and seed are replaced. A name has
    eight digits of the prompt's hash where it cannot spell the prompt (capitals, commas, Japanese, long ones); each
    file but the sheet holds its whole prompt."""
    json: bool = False
    """Print what was drawn as one JSON list on standard output, an object a prompt."""

    def run(self) -> None:
        """Draw all prompts, and print where their best pictures are."""
        prompts = one_or_many(self.prompts)
        check_prompts(prompts)
        settings, candidates = self.settings.with_preset(self.preset), how_many(self.candidates, self.preset)
        check_counts(candidates, self.best)
        settings.check()
        require_writable(self.out)
        show_progress("loading the model ...")
        draw = drawer(self.model, self.device, clip=self.clip)
        show_progress("")
        drawings = draw(prompts, candidates=candidates, best=self.best, progress=show_progress, **asdict(settings))
        files = [drawing.save(self.out) for drawing in drawings]
        if self.json:
            print(json.dumps([as_dict(*drawn) for drawn in zip(drawings, files, strict=True)], indent=1))
        else:
            print("\n".join(describe_drawing(*drawn) for drawn in zip(drawings, files, strict=True)))


def one_or_many(words: Sequence[str]) -> list[str]:
    """Return the prompts, after asking whether several single words are one prompt that lacks its quotes.

    Where nobody is at the terminal, they are taken as they are, and a line says so.
    """
    if len(words) < 2 or any(len(word.split()) > 1 for word in words):
        return list(words)
    together = " ".join(words)
    if not sys.stdin.isatty():
        print(f'{len(words)} prompts of one word each; if one was meant, quote it: "{together}"', file=sys.stderr)
        return list(words)
    print(f'Is "{together}" one prompt? [Y/n] ', end="", file=sys.stderr, flush=True)
    try:
        answer = input()
    except EOFError as error:
        raise ValueError(f'expected an answer, but the input ended: quote the prompt, "{together}".') from error
    return list(words) if answer.strip().lower().startswith("n") else [together]


def show_progress(now: "str | Progress") -> None:
    """Show what is done, or how far a drawing is, in one line of a terminal, which what comes next overwrites.

    A finished drawing leaves no line. Where standard error is no terminal, nothing is shown.
    """
    if not sys.stderr.isatty():
        return
    if not isinstance(now, str):
        now = f"{now.prompt[:40]}: {now.share:.0%} of {now.candidates} candidates ..." if now.share < 1 else ""
    print(f"\x1b[K{now}", end="\r", file=sys.stderr, flush=True)


def as_dict(drawing: "Drawing", files: list[Path]) -> dict:
    """Return what was drawn of a prompt, for JSON."""
    *pictures, sheet = files
    best = [
        drawing.about(choice.number) | {"count": choice.count, "file": str(file)}
        for choice, file in zip(drawing.choices, pictures, strict=True)
    ]
    return {
        "prompt": drawing.prompt,
        "caption": drawing.caption,
        "pictures": best,
        "sheet": str(sheet),
        "noise": drawing.noise,
        "seconds": drawing.seconds,
        "unknown": drawing.unknown_words,
        "novelty": str(drawing.novelty),
    }


def drawer(run: str, device: str | None, *, clip: bool = True) -> "TextToImage":
    """Return what draws with the model of a run, or with the one that a peer has saved in its folder.

    Raises ValueError if there is neither, or the peer has saved no model yet.
    """
    from dalle_lib.checkpoint import load_model
    from dalle_lib.inference import TextToImage
    from dalle_lib.run import RunCard
    from dalle_lib.run.files import CARD
    from dalle_lib.swarm.process.folder import MODEL, SETTINGS, folders_of_peers
    from dalle_lib.swarm.process.settings import PeerSettings

    folder = Path(run)
    if not folder.exists() and len(folder.parts) > 1 and (there := folders_of_peers(folder.parent)):
        raise ValueError(f"there is no peer in {folder}. Expected one of {', '.join(map(str, there))}.")
    if not (folder / SETTINGS).is_file():
        if folder.is_dir() and not (folder / CARD).exists() and (inside := folders_of_peers(folder)):
            raise ValueError(f"{folder} is no run, but holds peers: name one of {', '.join(map(str, inside))}.")
        return TextToImage.from_run(run, device, clip=clip)
    settings = PeerSettings.load(folder / SETTINGS)
    if not (folder / MODEL).is_file():
        saves = "with the run's first checkpoint" if settings.role == "observer" else "when it leaves"
        raise ValueError(f"the peer in {folder} has saved no model yet: it does so {saves}.")
    card = RunCard.load(settings.run)
    return TextToImage.from_card(card, load_model(folder / MODEL, card.model), device, clip=clip)


def describe_drawing(drawing: "Drawing", files: list[Path]) -> str:
    """Return where the best candidates of a prompt are, how many are alike, and how well CLIP thinks they fit it."""
    *pictures, sheet = files
    count, seconds = len(drawing.candidates), sum(drawing.seconds.values())
    prompt, seed = shortened(drawing.prompt), drawing.settings.seed
    read = f", {drawing.reading}" if drawing.reading else ""
    lines = [f"{prompt!r}{read}, seed {seed}, {seconds:.1f} s; xN: N of {count} are this picture"]
    unit = "" if drawing.scores is None else " CLIP score"
    lines += [f"  {file}  {label}{unit}" for file, label in zip(pictures, drawing.labels, strict=True)]
    lines.append(f"  {sheet}  all {count}")
    novelty = drawing.novelty
    if str(novelty) and not (novelty.words or novelty.phrases):  # what is missing has been told before drawing
        lines.append(f"  {novelty}")
    return printable_lines("\n".join(lines))  # captions of the run's data are in it
