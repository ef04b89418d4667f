"""`dalle-lib generate`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.inference.settings import Settings

if TYPE_CHECKING:
    from dalle_lib.inference import Drawing, TextToImage


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Draw pictures of prompts with the model of a run. With an embedded run, nothing is downloaded.

    For example:

    dalle-lib generate "penguin on a yellow background"

    dalle-lib generate "green frog" "pizza" --candidates 64 --best 2 --out pictures
    """

    prompts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to draw, each prompt in quotes."""
    model: Annotated[str, tyro.conf.arg(name="run")] = "emoji"
    """An embedded run, a folder, owner/name on the Hub, or paper-2021; or the folder of a peer that you have run."""
    candidates: int = 32
    """How many pictures to draw of each prompt."""
    best: int = 4
    """How many of them CLIP keeps."""
    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    device: str | None = None
    """cpu or cuda; None takes a GPU if there is one."""
    out: Path = Path("outputs/pictures")
    """Folder for the pictures."""
    json: bool = False
    """Print what was drawn as JSON on standard output, one line a prompt."""

    def run(self) -> None:
        """Draw all prompts, and print where their best pictures are."""
        if not self.prompts:
            raise ValueError('expected a prompt, as in: dalle-lib generate "penguin on a yellow background"')
        draw = drawer(self.model, self.device)
        drawings = draw(list(self.prompts), candidates=self.candidates, best=self.best, **asdict(self.settings))
        for drawing in drawings:
            files = drawing.save(self.out)
            if self.json:
                about = [
                    drawing.about(number) | {"file": str(file)}
                    for number, file in zip(drawing.best, files, strict=True)
                ]
                print(json.dumps({"pictures": about, "seconds": drawing.seconds, "unknown": drawing.unknown_words}))
            else:
                print(describe_drawing(drawing, files))


def drawer(run: str, device: str | None) -> "TextToImage":
    """Return what draws with the model of a run, or with the one that a peer has saved in its folder."""
    from dalle_lib.checkpoint import load_model
    from dalle_lib.inference import TextToImage
    from dalle_lib.run import RunCard
    from dalle_lib.swarm.process.folder import MODEL, SETTINGS
    from dalle_lib.swarm.process.settings import PeerSettings

    folder = Path(run)
    if not ((folder / SETTINGS).is_file() and (folder / MODEL).is_file()):
        return TextToImage.from_run(run, device)
    card = RunCard.load(PeerSettings.load(folder / SETTINGS).run)
    return TextToImage.from_card(card, load_model(folder / MODEL, card.model), device)


def describe_drawing(drawing: "Drawing", files: list[Path]) -> str:
    """Return where the best candidates of a prompt are, and how well CLIP thinks they fit it."""
    lines = [f"{drawing.prompt!r}, seed {drawing.settings.seed}, {sum(drawing.seconds.values()):.1f} s:"]
    scores = [f"{float(drawing.scores[number]):.3f}" for number in drawing.best]
    lines += [f"  {file}  CLIP score {score}" for file, score in zip(files, scores, strict=True)]
    if drawing.unknown_words:
        lines.append(f"  the model never saw: {', '.join(drawing.unknown_words)}")
    return "\n".join(lines)
