"""Publish the built site as a static Space on the Hub: `python scripts/publish_site.py` after `make site`.

All that the Space held before is replaced, in one commit. The Hub token is that of HF_TOKEN or `hf auth login`, and
must be allowed to write for the owner of the Space, which has the name of the repository unless it is told another.
"""

import json
import re
from pathlib import Path

import tyro
from filelock import FileLock, Timeout
from huggingface_hub import HfApi
from publish import ROOT, Repository

from dalle_lib.hub_http import httpx
from dalle_lib.one_line import in_one_line

BUILT = ROOT / "site" / "_build" / "html"
PAGE = "index.html"
RUNTIME = "_static/draw/ort-wasm-simd-threaded.wasm"
"""Without it, the site cannot draw."""
NOT_SENT = (".*", "**/.*", "*.pickle", "objects.inv.txt")
"""What Sphinx leaves beside the pages for itself."""
README = """\
---
title: {title}
emoji: 🎨
colorFrom: blue
colorTo: yellow
sdk: static
app_file: index.html
pinned: false
license: apache-2.0
short_description: {about}
---

Made from [{slug}](https://github.com/{slug}/tree/{ref}) by `make site` and `scripts/publish_site.py`.
"""
ABOUT = "Train one text-to-image model together, and draw with it"
"""At most 60 letters, as the Hub asks."""


def space_readme(repository: Repository) -> str:
    """Return the README.md by which the Hub knows the Space: front matter, and where it comes from."""
    name = repository.slug.partition("/")[2]
    return README.format(title=json.dumps(name), about=ABOUT, slug=repository.slug, ref=repository.ref)


def publish_site(space: str, built: Path, repository: Repository, token: str | None = None) -> str:
    """Send a built site to a Space, made if it is new, in the place of all that it holds, and return its address.

    Raises ValueError if nothing was built, not all of it, or a build is at it, or `space` is no name, and
    HfHubHTTPError if the Hub refuses.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", space):
        raise ValueError(f"expected a Space as owner/name, but got {space!r}.")
    if not (built / PAGE).is_file():
        raise ValueError(f"expected a built site, but there is no {built / PAGE}: run `make site` first.")
    if not (built / RUNTIME).is_file():
        raise ValueError(
            f"expected a site that draws, but there is no {built / RUNTIME}: npm was missing or failed. Run `make "
            "site` with npm and a network."
        )
    api = HfApi(token=token)
    try:
        with FileLock(built.parent / "lock", timeout=0):  # the build's
            (built / "README.md").write_text(space_readme(repository), encoding="utf-8")
            api.create_repo(space, repo_type="space", space_sdk="static", exist_ok=True)
            api.upload_folder(
                repo_id=space, repo_type="space", folder_path=built, commit_message=f"Site of {repository.slug}",
                ignore_patterns=list(NOT_SENT), delete_patterns="*",
            )  # fmt: skip
    except Timeout:
        raise ValueError(
            f"expected a site that stays while it is sent, but another process builds or sends {built}: wait until it "
            "has ended."
        ) from None
    return f"{api.endpoint}/spaces/{space}"


def main(space: str | None = None, built: Path = BUILT) -> None:
    """Publish the built site as the static Space owner/name; without one, it is called as the repository is."""
    repository = Repository.read()
    try:
        print(publish_site(space or repository.slug, built, repository))
    except ValueError as error:
        raise SystemExit(f"publish_site: {error}") from None
    except (OSError, httpx.HTTPError) as error:
        remedy = "check the network, and that the token of HF_TOKEN or `hf auth login` may write for the Space's owner"
        raise SystemExit(f"publish_site: the Hub did not take the site: {in_one_line(error)}: {remedy}.") from None


if __name__ == "__main__":
    tyro.cli(main)
