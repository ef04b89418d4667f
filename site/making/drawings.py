"""The drawings of the site as HTML, for pages to include."""

from pathlib import Path

from drawings import DRAWINGS


def make(made: Path) -> None:
    """Write each drawing to `made/drawings/NAME.html`."""
    folder = made / "drawings"
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in DRAWINGS.items():
        (folder / f"{name}.html").write_text(drawing().figure(name), encoding="utf-8")
