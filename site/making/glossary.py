"""The glossary's page, from the table in the map of the code."""

import re
from pathlib import Path

from making.repository import ROOT

ABOUT = """\
# Glossary

The words of the kit, its notebooks and this site. Where several words stand together, the explanation takes them in
the same order.
"""


def make(made: Path) -> None:
    """Write the glossary as a page on which each word can be linked to."""
    entries = sorted(rows(), key=lambda entry: entry[0].lower())
    terms = "\n".join(f"{word}\n  {meaning}\n" for word, meaning in entries)
    page = made / "pages" / "glossary.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{ABOUT}\n```{{glossary}}\n{terms}```\n", encoding="utf-8")


def rows() -> list[tuple[str, str]]:
    """Return the words and meanings of the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (.+?) \| (.+) \|$", text.split("\n## Glossary\n")[1], re.MULTILINE)
    return table[2:]
