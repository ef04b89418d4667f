"""`dalle-lib run new`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class New:
    """Make a run of a data set: a folder with its card, a tokenizer and the VQ-GAN, which peers can join.

    For example, of what `dalle-lib prepare` has made:

    dalle-lib run new outputs/photos-run --data outputs/photos

    dalle-lib run new paper-run --data outputs/codes --preset paper
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """A new folder for the run."""
    data: str
    """The folder of a data set, or hf://datasets/owner/name, whose newest commit becomes the run's."""
    name: str | None = None
    """The run's name; None takes the folder's."""
    vqgan: Path | None = None
    """The file of the VQ-GAN that made the codes; None takes the one beside the data."""
    preset: Literal["small", "paper"] | None = None
    """small: the model and schedule of emoji-mini, for a processor or one GPU. paper: the paper's run in every field,
    for pictures of its VQ-GAN. None takes small for up to 16x16 codes, and else the paper's sizes with a tokenizer of
    the data's own."""
    tokenizer: str | None = None
    """A file of the tokenizers library, or owner/name on the Hub; None makes one of the captions, or with --preset
    paper takes T5's."""
    json: bool = False
    """Print the card as JSON on standard output."""

    def run(self) -> None:
        """Make the run, and print what it is and how to train it."""
        from dalle_lib.cli.run.check import describe
        from dalle_lib.platforms import hub_token
        from dalle_lib.run import new_run

        card = new_run(
            self.folder,
            self.data,
            name=self.name,
            vqgan=self.vqgan,
            preset=self.preset,
            tokenizer=self.tokenizer,
            token=hub_token() if self.data.startswith("hf://") else None,
        )
        told = card.model_dump_json(indent=1) if self.json else f"{describe(card)}\n{how_to_train(self.folder)}"
        print(told)


def how_to_train(folder: Path) -> str:
    """Return the ways to train a run that is in a folder."""
    join = shlex.join(["dalle-lib", "join", "--run", str(folder), "--name", "ada", "--alone"])
    return f"Begin:    {join}\n          Its line Friends lets others join. Or notebook 01, with RUN = {str(folder)!r}."
