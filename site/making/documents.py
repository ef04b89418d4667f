"""Pages of the documents in `docs/` and of the changelog, which have one source each."""

import re
import shutil
from os.path import relpath
from pathlib import Path

from making.repository import ROOT, address_of

LINK = re.compile(r"\[([^][]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
"""A link or picture of a file, in markdown: its text, its target, and where in it."""
DIAGRAM = re.compile(r"^```mermaid$", re.MULTILINE)
PICTURES = (".png", ".webp", ".gif", ".svg")


def make(made: Path) -> None:
    """Write the documents as pages: their pictures beside them, their links to other files to the repository.

    GitHub draws what is written in mermaid's language; the site shows it as it is written, and says so.
    """
    pages = made / "pages"
    sources = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CHANGELOG.md"]
    on_site = {*sources, *(ROOT / "notebooks").glob("*.ipynb")}
    for source in sources:
        page = pages / page_of(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        told = f"These lines are a diagram in mermaid's language, which [GitHub draws]({address_of(source)}):"
        page.write_text(DIAGRAM.sub(f"{told}\n\n```mermaid", with_links(source, on_site)), encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*"):
        if picture.suffix in PICTURES and any(picture.name in source.read_text(encoding="utf-8") for source in sources):
            shutil.copyfile(picture, pages / picture.relative_to(ROOT))


def page_of(source: Path) -> Path:
    """Return where a file of the repository lies among the pages."""
    return Path("changelog.md") if source.name == "CHANGELOG.md" else source.relative_to(ROOT)


def with_links(source: Path, on_site: set[Path]) -> str:
    """Return the text of `source` with links that hold on the site: to pages, else to the published repository."""

    def mended(link: re.Match) -> str:
        text, target, anchor = link[1], (source.parent / link[2]).resolve(), link[3] or ""
        if target in on_site:
            # Without a text, a link shows the title of its page.
            text = "" if text.strip("`") in (link[2], target.name) else text
            return f"[{text}]({relpath(page_of(target), page_of(source).parent)}{anchor})"
        if target.suffix in PICTURES and target.is_relative_to(ROOT / "docs"):
            return link[0]
        return f"[{text}]({address_of(target)}{anchor})"

    return LINK.sub(mended, source.read_text(encoding="utf-8"))
