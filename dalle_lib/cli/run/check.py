"""`dalle-lib run check`."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dalle_lib.one_line import printable

if TYPE_CHECKING:
    from dalle_lib.organizing.checking import Checked, Finding
    from dalle_lib.run import RunCard

MARKS = {"fits": "✓", "doubtful": "!", "wrong": "✗"}
MAX_VALUE = 40
"""Letters of a value that a line shows."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Tell what each field of a run's card says, and whether all that it names is there, fits, and makes sense.

    It reads what peers read: files, data, weights. A line has ✓ where a field fits, ! where it makes little sense, and
    ✗ where no peer could use it: then the command ends with code 2.

    For example:

    dalle-lib run check outputs/photos-run

    dalle-lib run check owner/name --json
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """An embedded run, a folder, or owner/name on the Hub."""
    json: bool = False
    """Print everything as JSON on standard output."""

    def run(self) -> None:
        """Print each field of the card, and what the run is, or raise ValueError if something does not fit."""
        from dalle_lib.organizing.checking import check_run
        from dalle_lib.run import RunCard, hub_token_for

        card = RunCard.load(self.named, hub_token_for(self.named))
        checked = check_run(card)
        print(as_json(card, checked) if self.json else "\n".join(map(in_words, checked.findings)), flush=True)
        if checked.wrong:
            first = checked.wrong[0]
            others = ", ".join(finding.field for finding in checked.wrong[1:])
            also = f" Nor do these fit: {others}." if others else ""
            raise ValueError(f"{first.field} does not fit: {first.told}{also}")
        if not self.json:
            lines = "line" if len(checked.doubtful) == 1 else "lines"
            doubtful = f" Look at the {lines} with !." if checked.doubtful else ""
            print(f"\n{describe(card)}\nAll that the card names is there, and fits.{doubtful}")


def in_words(finding: "Finding") -> str:
    """Return a line for one field, and a second one for what is doubtful or wrong."""
    value = finding.value["name"] if isinstance(finding.value, dict) and "sha256" in finding.value else finding.value
    if value is None or value in ((), "", {}):
        shown = "-"
    elif isinstance(value, float | int) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,g}"
    elif isinstance(value, tuple | list | dict):
        shown = ", ".join(map(str, value))
    else:
        shown = str(value)
    shown = printable(shown)
    shown = shown if len(shown) <= MAX_VALUE else f"{shown[: MAX_VALUE - 3]}..."
    line = f"{MARKS[finding.state]} {finding.field:<27} {shown:<16} {finding.meaning}"
    return f"{line}\n    -> {printable(finding.told)}" if finding.told else line


def as_json(card: "RunCard", checked: "Checked") -> str:
    """Return what has been checked, as JSON."""
    fields: list[dict[str, Any]] = [asdict(finding) for finding in checked.findings]
    told = {"run": card.name, "key": card.key, "rows": checked.rows, "fits": not checked.wrong, "fields": fields}
    return json.dumps(told, indent=1)


def taken(card: "RunCard") -> str:
    """Return which kits a run takes."""
    return f"dalle-lib {card.kit or 'of any version'} whose peers speak protocol {card.protocol}, as yours do"


def describe(card: "RunCard") -> str:
    """Return what a run is: model, data, schedule, the key under which its peers meet, and the kits that it takes."""
    from dalle_lib.run import codes_of_run
    from dalle_lib.run.sizes import size_of

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
            f"Kit:      {taken(card)}.",
        ]
    )
