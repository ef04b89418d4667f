"""Commits to a run's repository on the Hub, each on top of the one that was looked at."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dalle_lib.hub_http import httpx, require_hub
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard

_ADVICE = {
    401: "Log in with `hf auth login`, with a Hub token that may write.",
    403: "Take a Hub token that may write there, or name a repository of your own as OWNER/NAME.",
    404: "Is the name right, and may your Hub token see the repository?",
}


class Overtaken(RuntimeError):
    """Somebody else has committed since the repository was looked at. Nothing was changed."""


def head_of(repository: str, token: str | None, *, private: bool | None = None) -> str:
    """Return the newest commit of a model repository; with `private`, the repository is made if it is new.

    Raises ValueError if it is to be private, and is there already for everybody to see; PermissionError if the Hub
    refuses; and ConnectionError if it does not answer.
    """
    from huggingface_hub import HfApi

    require_hub(f"for {repository}", "nothing was changed, try again later")
    api = HfApi(token=token)
    with _told(repository):
        if private is not None:
            api.create_repo(repository, private=private, exist_ok=True)
        found = api.model_info(repository)
    if private and not found.private:
        raise ValueError(
            f"expected a private repository, but {repository} is there already, and everybody sees it: make it private "
            "in its settings, or name another. Nothing was sent."
        )
    return found.sha


def card_at(repository: str, head: str, token: str | None) -> RunCard:
    """Return the card of a run as of its newest commit, `head`.

    Raises Overtaken if another one came: a newer one, or the copy on this machine, which is taken where the Hub answers
    for a part only.
    """
    card = RunCard.load(repository, token)
    if card.commit != head:
        raise Overtaken(
            f"expected the card of {repository} as of its newest commit, {head:.8}, but got that of {card.commit:.8}. "
            "Nothing was changed: try again later."
        )
    return card


def commit(
    repository: str,
    files: Mapping[str, Path | bytes],
    message: str,
    parent: str,
    token: str | None,
    remove: Iterable[str] = (),
) -> str:
    """Put files, by their names there, into a repository as one commit, and return its hash; `remove` names folders.

    Raises Overtaken if `parent` is not the newest commit any more, and else the errors of `head_of`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    operations = [
        *(CommitOperationAdd(name, file if isinstance(file, bytes) else str(file)) for name, file in files.items()),
        *(CommitOperationDelete(f"{folder}/", is_folder=True) for folder in remove),
    ]
    with _told(repository, "Whether it was changed is not known"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")  # the run's own
        api = HfApi(token=token)
        return api.create_commit(repository, operations, commit_message=message, parent_commit=parent).oid


@contextmanager
def _told(repository: str, silent: str = "Nothing was changed") -> Iterator[None]:
    """Turn the errors of huggingface_hub into those that the functions above raise.

    `silent` says what is known where no answer came: a commit may have been made before the connection ended.
    """
    try:
        yield
    except (httpx.HTTPError, OSError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        # What httpx adds to a status is a page about that status in general.
        reason = re.sub(r" For more information check: \S+", "", in_one_line(error)).rstrip(".")
        why = f"the Hub did not take the change of {repository}: {reason:.300}"
        if status == 412:
            raise Overtaken(f"{why}. Somebody else has changed it: look again.") from error
        if isinstance(error, ValueError) or (status is not None and status < 500 and status not in (408, 429)):
            raise PermissionError(f"{why}. {_ADVICE.get(status, 'Nothing was changed.')}") from error
        raise ConnectionError(f"{why}. {silent}: try again later.") from error
