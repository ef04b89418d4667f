"""`dalle-lib run new`."""

import shlex
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import tyro

from dalle_lib.organizing.options import KeySettings

if TYPE_CHECKING:
    from dalle_lib.organizing.making import MadeRun
    from dalle_lib.organizing.sizing import Reason


@dataclass(frozen=True, kw_only=True)
class New:
    """Make a run of a data set or of pictures: a folder with its card, a tokenizer and the VQ-GAN, for peers to join.

    Pictures with captions, as `dalle-lib prepare` takes them, become a data set first, in FOLDER.data. For members, or
    with a first peer, keys are made in FOLDER.keys: they are yours alone.

    For example:

    dalle-lib run new outputs/photos-run --data outputs/photos

    dalle-lib run new photos --data pictures --volunteers 20 --organization my-org --server https://run.example.org
    --client-id ID --first-peer run.example.org:31337

    dalle-lib run new paper-run --data outputs/codes --preset paper
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """A new folder for the run."""
    data: str
    """The folder of a data set, or hf://datasets/owner/name, whose newest commit becomes the run's; or pictures with
    captions: a folder, a tar or a table."""
    name: str | None = None
    """The run's name; None takes the folder's."""
    volunteers: int | None = None
    """How many people you expect: epochs are sized for them, and each number is explained."""
    upload_bits: Literal[8, 4] = 8
    """Bits a value of gradients on their way to the peers that average them. 4 suits home links, whose uploads are
    slow. It cannot be changed later."""
    vqgan: str | None = None
    """The VQ-GAN that made the codes: its file, or a run that has it, such as emoji; None takes the one beside the
    data. Of pictures: the VQ-GAN that makes them, as for `dalle-lib prepare`; None trains one on them."""
    held_out: float | None = None
    """Share of pictures that is never trained on; None takes 1%, or more where they are few."""
    captions_from_names: bool = False
    """For a folder of pictures: make captions of their names, red-apple.png is "red apple"."""
    preset: Literal["small", "paper"] | None = None
    """small: the model and schedule of emoji-mini, for a processor or one GPU. paper: the paper's run in every field,
    for pictures of its VQ-GAN. None takes small for up to 16x16 codes, and else the paper's sizes with a tokenizer of
    the data's own."""
    tokenizer: str | None = None
    """A file of the tokenizers library, or owner/name on the Hub; None makes one of the captions, or with --preset
    paper takes T5's."""
    keys: Annotated[KeySettings, tyro.conf.arg(name="")] = field(default_factory=KeySettings)
    json: bool = False
    """Print the card as JSON on standard output."""

    def run(self) -> None:
        """Make the run, and print what it is, why, and what to do next."""
        from dalle_lib.organizing.making import make_run
        from dalle_lib.platforms import hub_token

        made = make_run(
            self.folder,
            self.data,
            name=self.name,
            vqgan=self.vqgan,
            preset=self.preset,
            tokenizer=self.tokenizer,
            volunteers=self.volunteers,
            upload_bits=self.upload_bits,
            held_out=self.held_out,
            captions_from_names=self.captions_from_names,
            keys=self.keys,
            token=hub_token() if self.data.startswith("hf://") else None,
            say=partial(print, file=sys.stderr, flush=True),
        )
        print(made.card.model_dump_json(indent=1) if self.json else describe_made(made, self.volunteers))


def describe_made(made: "MadeRun", volunteers: int | None) -> str:
    """Return what a new run is, what each of its numbers follows from, and what its organiser does next."""
    from dalle_lib.cli.run.check import describe
    from dalle_lib.organizing.checking import rows_of
    from dalle_lib.organizing.sizing import reasons

    lines = [describe(made.card)]
    if made.prepared is not None:
        at = f"{made.prepared.psnr_db:.1f} dB"
        lines.append(f"Look at:  {made.prepared.folder / 'sheet.png'}, pictures above what their codes keep ({at}).")
    lines += ["", *map(in_words, reasons(made.card, rows_of(made.card), volunteers))]
    if volunteers is None:
        lines.append("  With --volunteers N, epochs are sized for so many people.")
    return "\n".join([*lines, "", what_next(made)])


def in_words(reason: "Reason") -> str:
    """Return a line for one number of a card."""
    return f"  {reason.field}{f' = {reason.value}' if reason.value else ''}: {reason.why}."


def what_next(made: "MadeRun") -> str:
    """Return what the organiser of a new run does with it."""
    from dalle_lib.organizing.keys import DAYS

    folder, keys = str(made.folder), made.keys
    if keys is None:
        join = shlex.join(["dalle-lib", "join", "--run", folder, "--name", "ada", "--alone"])
        return f"Begin:    {join}\n          Its line Friends lets others join. Or notebook 01, with RUN = {folder!r}."
    lines = [f"Keys:     {keys.folder}, for you alone: never publish it, and keep a copy."]
    if keys.root is not None:
        lines.append(f"          {keys.root.name} decides who takes part: move it to a disk that you unplug.")
    lines.append(f"Publish:  {shlex.join(['dalle-lib', 'run', 'publish', folder, 'OWNER/NAME'])}")
    if keys.authority is not None:
        server = urlsplit(keys.card.members.server)
        here = ["--port", str(server.port)] if server.scheme == "http" and server.port else []
        serve = shlex.join(["dalle-lib", "auth-server", "serve", "--folder", str(keys.authority), *here])
        lines += [
            f"Server:   {serve}",
            f"          It must answer at {keys.card.members.server}: copy its folder to where it runs. Its key counts",
            f"          for {DAYS:g} days; `dalle-lib auth-server rotate` makes the next one, by {keys.root.name}.",
        ]
    elif keys.root is not None:
        told = f"The first peer's counts for {DAYS:g} days."
        lines.append(f"Members:  `dalle-lib run token` gives them access tokens, by the root key. {told}")
    port = keys.card.initial_peers[0].split("/")[4] if keys.card.initial_peers else "31337"
    first = ["dalle-lib", "join", "--run", folder, "--name", "first-peer", "--role", "bootstrap"]
    lines += [
        f"First:    {shlex.join([*first, '--folder', str(keys.peers), '--port', port])}",
        f"          Its id is {keys.peer_id}.",
    ]
    if not keys.card.initial_peers:
        lines.append("          The card does not name its address: its terminal shows what volunteers need.")
    return "\n".join(lines)
