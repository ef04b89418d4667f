"""Running a notebook from a terminal, and keeping it as a page that opens without a network."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter


def execute(notebook: Path, page: Path, folder: Path, while_running: Callable[[], None]) -> None:
    """Execute `notebook` in `folder` and write it to `page`, also when a cell fails; the failure is raised then.

    `while_running` is called once a second.
    """
    nb = nbformat.read(notebook, as_version=4)
    client = NotebookClient(nb, timeout=None, resources={"metadata": {"path": str(folder)}})

    async def run() -> None:
        execution = asyncio.ensure_future(client.async_execute())
        while not execution.done():
            await asyncio.wait({execution}, timeout=1.0)
            while_running()
        await execution

    try:
        asyncio.run(run())
    finally:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(to_html(nb), encoding="utf-8")


def to_html(notebook: nbformat.NotebookNode) -> str:
    """Return a page with pictures inside and no script or style from elsewhere."""
    exporter = HTMLExporter(embed_images=True, mathjax_url="", require_js_url="", jquery_url="")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    return exporter.from_notebook_node(notebook)[0]
