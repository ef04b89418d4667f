"""The runs on the Hub that say so."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dalle_lib.hub_http import httpx, require_hub
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.publishing import TAG
from dalle_lib.run import RunCard
from dalle_lib.run.sizes import size_of

MAX_RUNS, MAX_OF_ONE = 50, 5
"""Runs whose cards are read, those that were changed last, and those of one owner, who could fill the list else."""
MAX_LOOKED_AT = 1000
"""Runs whose names are read, those that were changed last."""
MAX_PROBLEM = 300
"""Letters that are told of why a run cannot be read."""
NONE = "No run is on the Hub today. Begin one: docs/organiser.md, or notebook 06."


@dataclass(frozen=True)
class ListedRun:
    """A run on the Hub."""

    repository: str
    """owner/name, by which volunteers enter it."""
    card: RunCard | None
    """Its card; None if this kit cannot take part in it."""
    problem: str = ""
    """Why not."""


def list_runs(token: str | None = None) -> list[ListedRun]:
    """Return the runs on the Hub by its tag, those that are open first. `token` is a Hub token for private ones.

    Whoever has an account can tag a repository so: what is listed is what strangers say of themselves. Raises
    ConnectionError if the Hub cannot be asked.
    """
    from huggingface_hub import HfApi

    require_hub("for its runs", "try again later")
    try:
        models = HfApi(token=token).list_models(filter=TAG, sort="last_modified", limit=MAX_LOOKED_AT)
        found = _few_of_each(model.id for model in models)
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"the Hub cannot be asked for its runs: {in_one_line(error):.300}") from error
    listed = [_read(repository, token) for repository in found]
    return sorted(listed, key=lambda run: ("open", "paused", "finished").index(run.card.state) if run.card else 3)


def runs_in_words(runs: Iterable[ListedRun]) -> str:
    """Return what a volunteer wants to know of each run before joining, or that there is none."""
    return "\n\n".join(map(_in_words, runs)) or NONE


def _in_words(run: ListedRun) -> str:
    if run.card is None:
        return f"{run.repository}: this kit cannot take part. {run.problem}"
    lines = [f"{run.repository}: {run.card.state}, {size_of(run.card)}"]
    if run.card.message:
        lines.append(f"  Says:  {run.card.message}")
    if run.card.members is not None and run.card.members.organization:
        lines.append(f"  For:   members of {run.card.members.organization}")
    if run.card.state == "open":
        lines.append(f"  Join:  dalle-lib join --run {run.repository} --name YOUR-NAME")
    return "\n".join(lines)


def _few_of_each(repositories: Iterable[str]) -> list[str]:
    """Return the first MAX_RUNS of these repositories of which no owner has more than MAX_OF_ONE."""
    found, of_owner = [], Counter()
    for repository in repositories:
        owner = repository.partition("/")[0]
        of_owner[owner] += 1
        if of_owner[owner] <= MAX_OF_ONE:
            found.append(repository)
        if len(found) == MAX_RUNS:
            break
    return found


def _read(repository: str, token: str | None) -> ListedRun:
    try:
        return ListedRun(repository, RunCard.load(repository, token))
    except (ValueError, OSError) as error:
        return ListedRun(repository, None, f"{in_one_line(error):.{MAX_PROBLEM}}")
