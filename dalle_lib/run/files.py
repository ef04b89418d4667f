"""Where a run's files are: the embedded runs' in the package, any other's in a folder or on the Hub."""

from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "assets"
EMBEDDED_RUNS = ("emoji", "emoji-mini")
"""A finished model that draws hundreds of emoji, and a young one of a few that trains in minutes."""
CARD = "run.json"


def download(repository: str, name: str, token: str | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repository, name, token=token))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        # The Hub's own answer: the other error advises to check the connection even where the Hub said 403.
        cause = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error
        is_hidden = isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403, 404)
        advice = "Is the name right? A private one needs a Hugging Face token that can read it. " if is_hidden else ""
        raise ValueError(
            f"no run {repository!r}: expected an embedded run ({', '.join(EMBEDDED_RUNS)}), a folder with {CARD}, or a "
            f"model repository on the Hub. {advice}{type(cause).__name__}: {cause}"
        ) from error
