"""When it fails: one block of text to copy, and where to send it."""

import platform
import re
from html import escape
from importlib import metadata

import pandas as pd

from dalle_lib.checks.preflight import in_words, preflight
from dalle_lib.machine import hub_token
from dalle_lib.run import EMBEDDED_RUNS
from dalle_lib.swarm.process.join import SETTINGS, Peer
from dalle_lib.swarm.process.settings import PeerSettings

PACKAGE = "dalle-lib"
PACKAGES = (
    PACKAGE, "torch", "numpy", "hivemind", "protobuf", "grpcio", "pyarrow", "pandas", "huggingface-hub",
    "transformers", "bitsandbytes", "datasets", "ipywidgets", "ipykernel", "altair",
)  # fmt: skip
"""What decides whether a notebook works."""
LOG_LINES = 20
_SECRETS = (
    (r"(?i)\b(hf_|kgat_|gh[a-z]_|github_pat_|glpat-|api_org_)[a-z0-9_]*\d[a-z0-9_]{6,}", "<token>"),
    (r"\bhf_[A-Za-z]{30,}", "<token>"),
    (r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(bearer|basic)?|bearer)\s+[^\s\"',;<]+", r"\1 <removed>"),
    (r"(?i)(?<![a-z])((?:access_|api[_-]?|secret_?|private_?|hf_)?(?:token|key|secret)|passw(?:or)?d|pwd)"
     r"([\"']?\s*[=:]\s*)(\"[^\"]{6,}\"|'[^']{6,}'|(?![/\\])(?=[^\s\"',;()<]*\d)[^\s\"',;()<]{8,})", r"\1\2<removed>"),
    (r"(?i)(passw(?:or)?d|pwd)([\"']?\s*[=:]\s*)[^\s\"',;()<]{4,}", r"\1\2<removed>"),
    (r"(?i)([?&][\w-]*(?:signature|policy|credential|token|key-pair-id)=)[^&\s\"']+", r"\1<removed>"),
    (r"-----BEGIN [A-Z ]+-----[\s\S]*?(-----END [A-Z ]+-----|\Z)", "<key>"),
    (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+", "<token>"),
    (r"(\b[a-z][a-z0-9+]*://)[^/\s:@]*:[^/\s@]+@", r"\1<removed>@"),
    (r"(/ip4/)(?!127\.|0\.0)[\d.]+", r"\1<address>"),
    (r"(/dns[46]?/|/dnsaddr/)[^/\s]+", r"\1<address>"),
    (r"\b(?!127\.|0\.0)\d{1,3}(\.\d{1,3}){3}(?=:\d)", "<address>"),
    (r"/ip6/(?!::1/)[0-9a-fA-F:]+", "/ip6/<address>"),
    (r"\[(?!::1\])[0-9a-fA-F:]*:[0-9a-fA-F:]+\](?=:\d)", "[<address>]"),
    (r"([\\/](?:home|Users)[\\/])[^\\/\s]+", r"\1<you>"),
)  # fmt: skip


def versions() -> pd.Series:
    """Return the versions of Python and of the packages that matter; "–" for what is not installed."""
    return pd.Series(
        {"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES}, name="version"
    )


def problem_report(peer: Peer | None = None, run: str | None = None, checks: pd.DataFrame | None = None) -> str:
    """Return what helps to understand a failure, without secrets: versions, checks for a run, the peer's last words.

    The run is the peer's, unless named; without `checks` they are those of `preflight`. It never raises because
    something is broken; it says so instead.
    """
    log = "" if peer is None else f"\nThe last {LOG_LINES} lines of the peer's log:\n{peer.log_tail(LOG_LINES)}"
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    told = _checks(peer, run) if checks is None else in_words(checks)
    block = without_secrets(f"{platform.platform()}\n{found}\n\n{told}\n{log}".rstrip())
    return f"Copy this block into a new issue at {issues_page()}\n```\n{block}\n```"


def show_report(peer: Peer | None = None, run: str | None = None):
    """Return `problem_report` for a notebook, as HTML that a click unfolds."""
    from IPython.display import HTML

    page, block = issues_page(), problem_report(peer, run).split("\n", 1)[1]
    return HTML(
        f"<details><summary>Copy this into <a href='{page}' target='_blank'>a new issue</a></summary>"
        f"<pre style='font-family:monospace;user-select:all'>{escape(block)}</pre></details>"
    )


def without_secrets(text: str) -> str:
    """Return `text` without tokens, keys, passwords, other people's addresses and the user's name in paths."""
    for pattern, replacement in _SECRETS:
        text = re.sub(pattern, replacement, text)
    return text


def issues_page() -> str:
    """Return where problems are reported."""
    (repository,) = (
        url.split(", ", 1)[1] for url in metadata.metadata(PACKAGE).get_all("Project-URL") if "Repository" in url
    )
    return f"{repository}/issues/new"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "–"


def _checks(peer: Peer | None, run: str | None) -> str:
    try:
        run = run or (PeerSettings.load(peer.folder / SETTINGS).run if peer else EMBEDDED_RUNS[-1])
        token = None if run in EMBEDDED_RUNS else hub_token()
        return in_words(preflight(run, peer.folder if peer else ".", token))
    except Exception as error:  # whatever is broken, the rest of the report is needed all the more
        return f"no checks: {type(error).__name__}: {error}"
