"""A run on the Hub: its card, what lies beside it, and a page by which people find it."""

from pathlib import Path

from dalle_lib.organizing.commits import card_at, commit, head_of
from dalle_lib.organizing.editing import CHANGEABLE, MEMBERS
from dalle_lib.organizing.inviting import NOTEBOOK, Invitation, notebook_for
from dalle_lib.organizing.keys import follow
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.files import CARD, card_here, hub_files
from dalle_lib.run.start import require_fit
from dalle_lib.version import project_page

TAG = "dalle-lib-run"
"""The tag by which runs are found on the Hub."""
PAGE = "README.md"


def publish_run(
    folder: str | Path, repository: str, token: str | None = None, *, private: bool = False, anew: bool = False
) -> str:
    """Send a run to the model repository owner/name on the Hub, which is made if needed, and return the page's address.

    Its card, what the card names, a page and notebook 01 with the run filled in are sent, nothing else of the folder,
    as one commit; large files that are there already are not sent again. `token` is a Hub token that may write there.
    `anew` replaces another run, or a card that was changed there since. Where the run's keys lie beside it, the
    authority's server takes the card from the Hub from now on.

    Raises ValueError, and changes nothing, if something of the run is missing or does not fit, or the repository holds
    another run or a changed card; PermissionError if the Hub refuses; ConnectionError if it does not answer.
    """
    if folder in EMBEDDED_RUNS or card_here(folder) is None:
        raise ValueError(f"expected the folder of a run of yours, but got {str(folder)!r:.200}.")
    card = RunCard.load(folder)
    require_fit(card)
    parent = head_of(repository, token, private=private)
    if not anew and CARD in hub_files(repository, token):
        _require_same(card_at(repository, parent, token), card, repository)
    made = {PAGE: page_of(card, repository).encode(), NOTEBOOK: notebook_for(repository)}
    files = card.files() | {CARD: card.as_text().encode()} | made
    commit(repository, files, f"The run {card.name}", parent, token)
    follow(folder, repository)
    return Invitation.to(repository, card).page


def _require_same(there: RunCard, card: RunCard, repository: str) -> None:
    """Raise ValueError if a card on the Hub is of another run, or says something else that `edit_run` can change."""
    if there.key != card.key:
        raise ValueError(
            f"expected no run but {card.name!r} in {repository}, but it holds {there.key}: this would end it. Name "
            "another repository, or replace it with --anew."
        )
    parts = (there, card, CHANGEABLE), (there.members, card.members, MEMBERS)
    other = [name for old, new, names in parts for name in names if old and getattr(old, name) != getattr(new, name)]
    if other:
        raise ValueError(
            f"expected {repository} and the folder to say the same of {', '.join(other)}, but they differ: change it "
            "there with dalle-lib run edit, or replace it by the folder's with --anew."
        )


def page_of(card: RunCard, repository: str) -> str:
    """Return the page of a run's repository, with the tags by which `open_runs` finds it."""
    members, to = card.members, Invitation.to(repository, card)
    who = "Everybody may take part."
    if members is not None:
        who = "Volunteers need an access token of its organiser."
        if members.organization:
            joins = f", which one joins at <{members.invitation}>" if members.invitation else ""
            who = f"Members of {members.organization} may take part{joins}."
    return f"""---
library_name: dalle-lib
pipeline_tag: text-to-image
tags:
- {TAG}
---
# {card.name}

A text-to-image model that volunteers train together over the internet with [dalle-lib]({project_page()}).
`{CARD}` is its card: what all peers share. {who}

To take part, open [this notebook]({NOTEBOOK}) on [Kaggle]({to.kaggle}) or [Colab]({to.colab}):
it says where a peer may run. Or install the kit and type

```
{to.line}
```

Whether the run is open, paused or finished stands in the card; `dalle-lib runs` lists all runs.
"""
