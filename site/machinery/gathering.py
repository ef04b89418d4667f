"""The pages of the site in one folder: those that are written, and those that are made; and what is built of them."""

import os
import shutil
from pathlib import Path


def gather(site: Path, made: Path, pages: Path) -> None:
    """Put the written pages of `site` and the made ones into `pages`, the folder that Sphinx reads.

    Files that have not changed keep their time, so that Sphinx reads only what has.
    """
    wanted = {page.relative_to(site): page for page in written_pages(site)}
    for file in (made / "pages").rglob("*"):
        if file.is_file():
            name = file.relative_to(made / "pages")
            if name in wanted:
                raise FileExistsError(f"expected each page once, but {file} and {wanted[name]} are both {name}.")
            wanted[name] = file
    for old in [file for file in pages.rglob("*") if file.is_file() and file.relative_to(pages) not in wanted]:
        old.unlink()
    for name, file in wanted.items():
        copy = pages / name
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    (pages / "_made").unlink(missing_ok=True)
    (pages / "_made").symlink_to(os.path.relpath(made, pages), target_is_directory=True)


def put_in_place(begun: Path, html: Path) -> None:
    """Let the folder `begun` be `html`, which is whole at any moment: what it was before is renamed, then removed."""
    old = html.with_name("old")
    shutil.rmtree(old, ignore_errors=True)  # of a build that was killed here
    if html.exists():
        html.rename(old)
    begun.rename(html)
    shutil.rmtree(old, ignore_errors=True)


def written_pages(site: Path) -> list[Path]:
    """Return the pages of `site` that are kept in git: markdown outside of folders for something else."""
    aside = ("making", "machinery", "executed", "drawings")
    pages = [page for page in site.rglob("*.md") if not page.relative_to(site).parts[0].startswith(("_", *aside))]
    return sorted(pages)
