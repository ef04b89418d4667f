"""What the documents name is there, and what they show works."""

import re

import pytest
from checkout import ROOT

DOCUMENTS = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "colab_badges.md")]
    + list((ROOT / "docs").rglob("*.md"))
    + [ROOT / "benchmarks/README.md", ROOT / "dev/DECISIONS.md"]
)
TREE = (ROOT / "docs/architecture.md").read_text().split("```")[1]


def tree_paths(tree: str) -> dict[str, str]:
    """Return what a drawn tree says of each path; two spaces are one folder deeper."""
    folders, told = [], {}
    for line in filter(str.strip, tree.splitlines()):
        name, _, about = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name.rstrip("/")]
        told["/".join(folders)] = about.strip()
    return told


def test_every_module_of_the_package_is_in_the_tree_with_a_word_about_it_and_nothing_else():
    told = tree_paths(TREE)
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "dalle_lib").rglob("*.py") if file.name != "__init__.py"}
    assert {path for path in told if path.endswith(".py")} == modules
    assert not [path for path in told if not (ROOT / path).exists()]
    assert not [path for path, about in told.items() if not about and path != "dalle_lib"]


def test_the_entries_of_the_decisions_are_whole_and_apart():
    text = (ROOT / "dev/DECISIONS.md").read_text()
    paragraphs = text.strip().split("\n\n")
    assert not [each[:60] for each in paragraphs if each[0].islower()], "an entry is torn"
    assert sum(each.startswith("**20") for each in paragraphs) == len(re.findall(r"^\*\*20", text, re.MULTILINE))


MADE = ("outputs", "peers", "peer", ".venv", "build", "dist", "pictures", "site/_build")
"""Folders that commands make: what documents name in them is not in the repository."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_path_that_a_document_names_exists(document):
    link, text = re.compile(r"\]\(([^)\s#]+)[^)]*\)"), re.sub(r"https?://[^\s)]+", "#", document.read_text())
    missing = [target for target in link.findall(text) if not (document.parent / target).exists()]
    # The rest is named from the root or, as the package's modules are for short, from inside the package.
    named = re.findall(
        r"(?<![\w./~-])(?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|ipynb|json|png|toml|yml|txt)\b)?", link.sub("]", text)
    )
    tops = {path.name for path in (*ROOT.iterdir(), *(ROOT / "dalle_lib").iterdir())}
    for path in sorted(set(named)):
        top = path.split("/")[0]
        if not path.startswith(tuple(f"{made}/" for made in MADE)) and (top in tops or not path.endswith("/")):
            missing += [] if (ROOT / path).exists() or (ROOT / "dalle_lib" / path).exists() else [path]
    assert not missing


def test_the_map_has_an_entry_for_each_of_its_links():
    text = (ROOT / "docs/architecture.md").read_text()
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_functions_and_classes_that_the_map_names_are_where_it_says():
    """A name in backticks that stands before a module's path in a cell is defined in that module."""
    text = (ROOT / "docs/architecture.md").read_text()
    pairs = re.findall(r"`([A-Za-z_][\w.]*)`(?: in|,| by)? `(dalle_lib/[\w/]+\.py)`", text)
    assert len(pairs) > 10
    for name, path in pairs:
        source = (ROOT / path).read_text()
        for part in name.split("."):
            assert re.search(rf"^\s*(?:async def|def|class) {part}\b|^{part}\b.*=", source, re.M), f"{name} in {path}"
