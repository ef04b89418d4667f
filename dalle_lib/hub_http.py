"""The HTTP client of huggingface_hub, whose errors it passes on: httpx2 since its version 2, httpx before."""

from dalle_lib.one_line import in_one_line

try:
    from huggingface_hub.utils import httpx
except ImportError:
    import httpx

__all__ = ["httpx", "why_silent"]

HUB_TIMEOUT_S = 5.0
"""Seconds in which the Hub must begin to answer when a file that is not here yet is asked for."""


def why_silent() -> str | None:
    """Return why the Hub cannot be reached, in one line; None if it answers.

    Ask this before hf_hub_download, which would try for half a minute before it says so.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except (httpx.HTTPError, OSError) as error:
        return in_one_line(error)
    return None
