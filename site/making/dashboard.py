"""The dashboard's style, scripts, charts and Vega, as every copy of the page has them."""

from pathlib import Path

from dalle_lib.dashboard.run_page import page_files


def make(made: Path) -> None:
    """Write them into `made`, as static files of the site."""
    folder = made / "static" / "dashboard"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in page_files().items():
        (folder / name).write_bytes(data)
