"""`dalle-lib run rehearse`."""

import contextlib
import json
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.rehearsal.settings import Rehearsal

DEFAULTS = Rehearsal()


@dataclass(frozen=True, kw_only=True)
class RehearseCommand:
    """Play a run on this machine before you invite anybody: joins, a refused stranger, a ban, drop-outs, epochs.

    For example, as it comes, and a large model whose epochs this machine would not end:

    dalle-lib run rehearse outputs/photos-run

    dalle-lib run rehearse owner/name --volunteers 3 --samples 64 --minutes 10 --out rehearsed
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """An embedded run, a folder, or owner/name on the Hub. Its keys are not needed, and nobody else notices."""
    rehearsal: Annotated[Rehearsal, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes] = DEFAULTS
    out: Path | None = None
    """A new folder for logs and models of all peers; None keeps nothing."""
    json: bool = False
    """Print the report as one JSON document on standard output."""

    def run(self) -> None:
        """Play it, and print what was seen and what would have gone wrong."""
        from dalle_lib.rehearsal.rehearse import rehearse
        from dalle_lib.rehearsal.words import in_words
        from dalle_lib.run import hub_token_for

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # all that was started ends with it
        with contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext():
            say = partial(print, flush=True)
            report = rehearse(self.named, self.rehearsal, self.out, hub_token_for(self.named), say)
        print(json.dumps(report.as_dict()) if self.json else in_words(report))
