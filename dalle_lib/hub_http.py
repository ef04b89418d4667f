"""The HTTP client of huggingface_hub, whose errors it passes on: httpx2 since its version 2, httpx before."""

from dalle_lib.one_line import in_one_line

try:
    from huggingface_hub.utils import httpx
except ImportError:
    import httpx

__all__ = ["httpx", "require_here_or_hub", "require_hub"]

HUB_TIMEOUT_S = 5.0
"""Seconds in which the Hub must begin to answer to anything."""


def require_hub(asked: str, remedy: str) -> None:
    """Raise ConnectionError if the Hub does not answer: that it cannot be asked what is `asked`, why, and the remedy.

    Call this before huggingface_hub, which tries for half a minute or waits without an end before it says so.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"the Hub cannot be asked {asked} ({in_one_line(error)}): {remedy}.") from error


def require_here_or_hub(repository: str, file: str, remedy: str, revision: str | None = None) -> None:
    """Raise ConnectionError, with the remedy, if a repository's file is not on this machine and the Hub is silent."""
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(repository, file, revision=revision), str):
        require_hub(f"for {repository}, which is not on this machine", remedy)
