"""Where this repository lies, here and published."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SLUG: str = _PROJECT["project"]["urls"]["Repository"].removeprefix("https://github.com/")
"""owner/name on GitHub."""
REF: str = _PROJECT["tool"]["dalle-lib"]["ref"]
"""The branch or tag that links to files name."""


def address_of(path: Path) -> str:
    """Return the published address of a file or folder of this repository."""
    if not path.exists():
        raise FileNotFoundError(f"expected a file of the repository, but {path} is not there: mend the link to it.")
    kind = "tree" if path.is_dir() else "blob"
    return f"https://github.com/{SLUG}/{kind}/{REF}/{path.relative_to(ROOT).as_posix()}"
