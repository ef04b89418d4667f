"""`dalle-lib run new` and `dalle-lib run check`."""

import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from dalle_lib.run import RunCard


@dataclass(frozen=True, kw_only=True)
class New:
    """Make a run of a data set: a folder with its card, a tokenizer and the VQ-GAN, which peers can join.

    For example, of what `dalle-lib prepare` has made:

    dalle-lib run new outputs/photos-run --data outputs/photos
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """A new folder for the run."""
    data: str
    """The folder of a data set, or hf://datasets/owner/name, whose newest commit becomes the run's."""
    name: str | None = None
    """The run's name; None takes the folder's."""
    vqgan: Path | None = None
    """The file of the VQ-GAN that made the codes; None takes the one beside the data."""
    json: bool = False
    """Print the card as JSON on standard output."""

    def run(self) -> None:
        """Make the run, and print what it is and how to train it."""
        from dalle_lib.platforms import hub_token
        from dalle_lib.run import new_run

        token = hub_token() if self.data.startswith("hf://") else None
        card = new_run(self.folder, self.data, name=self.name, vqgan=self.vqgan, token=token)
        told = card.model_dump_json(indent=1) if self.json else f"{describe(card)}\n{how_to_train(self.folder)}"
        print(told)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Read all that a run's card names, as its peers will, and tell what the run is.

    For example:

    dalle-lib run check outputs/photos-run
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """An embedded run, a folder, or owner/name on the Hub."""

    def run(self) -> None:
        """Print what the run is, or raise ValueError for the first thing that does not fit."""
        from dalle_lib.platforms import hub_token
        from dalle_lib.run import EMBEDDED_RUNS, RunCard, require_fit

        token = None if self.named in EMBEDDED_RUNS else hub_token()
        card = RunCard.load(self.named, token)
        require_fit(card)
        print(f"{describe(card)}\nAll that the card names is there, and fits.")


@dataclass(frozen=True)
class Run:
    """Make a run of a data set, or look at one."""

    command: Annotated[
        Annotated[New, tyro.conf.subcommand("new")] | Annotated[Check, tyro.conf.subcommand("check")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Do what was chosen."""
        self.command.run()


def describe(card: "RunCard") -> str:
    """Return what a run is: its model, data and schedule, and the key under which its peers meet."""
    from dalle_lib.cli.join import size_of
    from dalle_lib.run import codes_of_run

    sizes, codes = card.model, card.data.format
    with closing(codes_of_run(card, seed=0)) as stream:
        rows, size = stream.data.manifest.rows, stream.data.manifest.size
    epochs, each = card.optimizer.total_epochs, card.averaging.target_batch_size
    return "\n".join(
        [
            f"Run:      {card.name}, {size_of(card)}.",
            f"Pictures: {codes.grid}x{codes.grid} codes, each one of {codes.codebook_size:,}; captions of up to "
            f"{sizes.text_length} text tokens.",
            f"Data:     {card.data.train}, {rows:,} rows in {size:,} bytes.",
            f"Schedule: {epochs:,} epochs of {each:,} samples, {epochs * each / rows:,.1f} passes over the data.",
            f"Key:      {card.key}. Only peers with the same one meet.",
        ]
    )


def how_to_train(folder: Path) -> str:
    """Return the ways to train a run that is in a folder."""
    join = shlex.join(["dalle-lib", "join", "--run", str(folder), "--name", "ada", "--alone"])
    return f"Begin:    {join}\n          Its line Friends lets others join. Or notebook 01, with RUN = {str(folder)!r}."
