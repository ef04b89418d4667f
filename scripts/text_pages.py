"""Records of prose from documentation that Debian ships under free licences, one for each section."""

import gzip
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

from bs4 import BeautifulSoup, Comment, NavigableString, Tag


@dataclass(frozen=True)
class Source:
    """The pages of one Debian package."""

    package: str
    folder: str
    """The folder of the pages inside the package."""
    url: str
    """The address of the same pages on the web."""
    left_out: str
    """A pattern of the names of pages to leave out, because they hold no prose or have other authors."""
    body: tuple[str, dict]
    """The element of a page that holds the text: its name and attributes."""


DATABASES = (
    Source(
        "sqlite3-doc",
        "usr/share/doc/sqlite3",
        "https://www.sqlite.org/",
        r"releaselog/|c3ref/(?!intro)|session/(?!intro)|doc_|keyword_|requirements|sitemap|toc|index|search|books|code"
        r"of|copyright|consortium|pressrelease|prosupport|famous|news|chronology|changes|crew|hp1|th3|support|oldnews",
        ("body", {}),
    ),
    Source(
        "postgresql-doc-15",
        "usr/share/doc/postgresql-doc-15/html",
        "https://www.postgresql.org/docs/15/",
        r"release|legalnotice|bookindex|biblio|acronyms|errcodes|features|sql-keywords|contributors|bug-report|plpython",
        ("body", {}),
    ),
)
PYTHON = (
    Source(
        "python3.11-doc",
        "usr/share/doc/python3.11/html",
        "https://docs.python.org/3.11/",
        r"genindex|py-modindex|license|copyright|about|bugs|contents|download|search|index\.html|c-api/|distutils/|whatsn"
        r"ew/|install/|distributing/|_|glossary|library/sqlite3|library/security_warnings",
        ("div", {"role": "main"}),
    ),
)
BLOCKS = {
    *("p", "div", "li", "ul", "ol", "dl", "dd", "section", "article", "blockquote", "center"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "hr", "body", "pre", "table", "dt"),
}
DROPPED = {
    *("script", "style", "pre", "table", "nav", "dt", "figure", "button", "form", "svg", "head", "title"),
    *("h4", "h5", "h6", "sup"),
}
DROPPED_CLASSES = re.compile(
    r"\b(navheader|navfooter|toc|menu|nosearch|fancy_toc|codeblock|imgcontainer|headerlink|footnote\w*|versionadded"
    r"|deprecated|versionchanged|admonition-title|title|sphinxsidebar|titlepage|todo|hatnote|sig|field-list|refsynopsisdiv)\b"
)


def record_texts(page: Tag) -> list[str]:
    """Return the prose of a page, one text for each section; a short section is joined to the next.

    Pages leave paragraphs unclosed, so each block element begins a new paragraph, wherever it is.
    """
    sections: list[list[str]] = [[]]
    pieces: list[str] = []

    def flush() -> None:
        paragraph = " ".join("".join(pieces).split())
        pieces.clear()
        if is_prose(paragraph):
            sections[-1].append(paragraph)

    def walk(node: Tag) -> None:
        for child in node.children:
            if isinstance(child, NavigableString):
                if not isinstance(child, Comment):
                    pieces.append(str(child))
            elif child.name in ("h1", "h2", "h3"):
                flush()
                if sum(map(len, sections[-1])) > 1000:
                    sections.append([])
            elif child.name in DROPPED or DROPPED_CLASSES.search(" ".join(child.get("class") or [])):
                if child.name in BLOCKS:
                    flush()
            elif child.name in BLOCKS:
                flush()
                walk(child)
                flush()
            else:
                walk(child)
                if child.name == "br":
                    pieces.append(" ")

    walk(page)
    flush()
    return ["\n".join(section) for section in sections]


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph consists of English sentences, and is no heading, signature or row of symbols."""
    words = paragraph.split()
    letters = sum(c.isalpha() or c.isspace() for c in paragraph)
    return (
        len(words) >= 8
        and len(paragraph) >= 60
        and paragraph[0].isupper()
        and paragraph[-1] in ".!?"
        and letters > 0.88 * len(paragraph)
        and not paragraph.startswith(("This page last modified", "Source code", "Copyright"))
    )


def download(source: Source, work: Path) -> Path:
    """Return the folder of an unpacked package, which is downloaded unless an earlier run has left it."""
    folder = work / source.package
    if not (folder / source.folder).is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", source.package], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")).name, "."], cwd=folder, check=True)
    return folder


def made_at(source: Source, work: Path) -> str:
    """Return the time of the package's last change, from its change log, in C4's format."""
    log = gzip.decompress((work / source.package / f"usr/share/doc/{source.package}/changelog.Debian.gz").read_bytes())
    made = parsedate_to_datetime(re.search(r"^ -- .*>  (.*)$", log.decode(), re.MULTILINE)[1])
    return made.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_records(sources: tuple[Source, ...], work: Path, shortest: int = 300) -> list[dict]:
    """Return the records of some packages with the fields of C4; each paragraph occurs once.

    Records of fewer than `shortest` characters are left out.
    """
    records, seen = [], set()
    for source in sources:
        top = download(source, work) / source.folder
        timestamp = made_at(source, work)
        for file in sorted(top.rglob("*.html")):
            name = file.relative_to(top).as_posix()
            if re.match(source.left_out, name):
                continue
            page = BeautifulSoup(file.read_text(encoding="utf-8", errors="replace"), "html.parser")
            body = page.find(source.body[0], source.body[1])
            for text in record_texts(body) if body is not None else []:
                fresh = [paragraph for paragraph in text.split("\n") if paragraph not in seen]
                seen.update(fresh)
                if len(text := "\n".join(fresh).replace("¶", "").replace("\ufffd", "")) >= shortest:
                    records.append({"text": text, "timestamp": timestamp, "url": source.url + name})
    return records
