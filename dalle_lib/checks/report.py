"""The report of a failure: one block of text to copy, and where to send it."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from importlib import metadata

import pandas as pd

from dalle_lib.checks.doctor import doctor_checks
from dalle_lib.checks.preflight import Check, in_words, preflight_checks
from dalle_lib.checks.secrets import without_secrets
from dalle_lib.run import EMBEDDED_RUNS, hub_token_for
from dalle_lib.swarm.process.join import SETTINGS, Peer
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.troubles import Trouble, trouble_in
from dalle_lib.version import project_page

PACKAGE = "dalle-lib"
PACKAGES = (
    PACKAGE, "torch", "numpy", "hivemind", "protobuf", "grpcio", "pyarrow", "pandas", "huggingface-hub",
    "transformers", "bitsandbytes", "datasets", "ipywidgets", "ipykernel", "altair",
)  # fmt: skip
"""Packages whose versions decide whether a notebook works."""
LOG_LINES = 20
TOLD = ("error", "problem", "reason")
"""Fields of a peer's events with what went wrong."""


def versions() -> pd.Series:
    """Return the versions of Python and of the packages that matter; "–" for what is not installed."""
    return pd.Series(
        {"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES}, name="version"
    )


def problem_report(peer: Peer | None = None, run: str | None = None) -> str:
    """Return a text that helps to understand a failure: versions, checks, the end of the peer's log; without secrets.

    The checks are those of `doctor` without its forecasts, network included, for a peer that failed, and else those of
    `preflight`, of `run` or the peer's run. What is broken on this machine appears in the text and raises no error.
    """
    return "\n".join(report_lines(peer, _checks(peer, run)))


def report_lines(peer: Peer | None, checks: Iterable[Check]) -> Iterator[str]:
    """Yield the report of `problem_report` with these checks, piece by piece, each check as soon as it is done."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    yield without_secrets(f"```\n{platform.platform()}\n{found}\n")
    try:
        for check in checks:
            yield without_secrets(in_words(check))
    except Exception as error:  # whatever is broken, the rest of the report is needed
        yield without_secrets(f"the checks failed: {type(error).__name__}: {error}")
    if peer is not None:
        log = f"\nThe last {LOG_LINES} lines of the peer's log:\n{peer.log_tail(LOG_LINES)}"
        yield without_secrets(log.rstrip())
        if found := _troubles(peer):
            yield "\n".join(["\nWhat its messages mean:", *(f"{trouble.title}: {trouble.link}" for trouble in found)])
    yield f"```\nTo ask for help, copy the block above into a new issue at {issues_page()}"


def show_report(peer: Peer | None = None, run: str | None = None):
    """Return `problem_report` for a notebook: HTML that unfolds on a click."""
    from IPython.display import HTML

    page, block = issues_page(), problem_report(peer, run).rsplit("\n", 1)[0]
    return HTML(
        "<details><summary>Copy this into a new issue</summary>"
        f"<p><a href='{page}' target='_blank'>Open a new issue</a></p>"
        f"<pre style='font-family:monospace;user-select:all'>{escape(block)}</pre></details>"
    )


def issues_page() -> str:
    """Return the address at which problems are reported."""
    return f"{project_page()}/issues/new"


def _troubles(peer: Peer) -> list[Trouble]:
    """Return what the messages of a peer's last start, and the end of its log, are about; each once."""
    told = [event[name] for event in peer.events() for name in TOLD if isinstance(event.get(name), str)]
    found = map(trouble_in, [*told, *peer.log_tail(LOG_LINES).splitlines()])
    return list(dict.fromkeys(trouble for trouble in found if trouble is not None))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "–"


def _checks(peer: Peer | None, run: str | None) -> Iterator[Check]:
    """Yield the checks of `problem_report`."""
    settings = PeerSettings.load(peer.folder / SETTINGS) if peer else None
    run = run or (settings.run if settings else EMBEDDED_RUNS[-1])
    settings, token = replace(settings, run=run) if settings else PeerSettings(run=run), hub_token_for(run)
    if peer and any(event["event"] == "failed" for event in peer.events()):
        # Its GPU may be full, and other programs there at work: nothing is computed to see how fast it is.
        yield from doctor_checks(settings, peer.folder, token, forecasts=False)
    else:
        yield from preflight_checks(settings, peer.folder if peer else ".", token)
