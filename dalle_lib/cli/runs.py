"""`dalle-lib runs`."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalle_lib.organizing.listing import ListedRun


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the runs on the Hub that anybody can look at: which are open, how large, what they tell volunteers.

    For example:

    dalle-lib runs

    dalle-lib runs --json
    """

    json: bool = False
    """Print everything as JSON on standard output."""

    def run(self) -> None:
        """Ask the Hub, and print what it lists."""
        from dalle_lib.organizing.listing import list_runs, runs_in_words
        from dalle_lib.platforms import hub_token

        runs = list_runs(hub_token())
        print(json.dumps([_as_dict(run) for run in runs], indent=1) if self.json else runs_in_words(runs))


def _as_dict(run: "ListedRun") -> dict:
    card = run.card and run.card.model_dump(mode="json", include={"name", "state", "message", "kit", "members"})
    return {"repository": run.repository, "card": card, "problem": run.problem}
