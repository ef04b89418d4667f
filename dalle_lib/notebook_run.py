"""Run a notebook from a terminal, and keep it as a page that opens without a network."""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config


def execute(notebook: Path, page: Path, folder: Path, while_running: Callable[[], None]) -> None:
    """Execute `notebook` in `folder`, and write it with its outputs to `page`.

    `while_running` is called once a second. If a cell fails, the page ends with its error, which is raised, too.
    """
    nb = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as sockets:
        config = _connection(Path(sockets))
        client = NotebookClient(nb, timeout=None, resources={"metadata": {"path": str(folder)}}, config=config)
        try:
            asyncio.run(_watched(client, while_running))
        finally:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(to_html(nb), encoding="utf-8")


async def _watched(client: NotebookClient, while_running: Callable[[], None]) -> None:
    execution = asyncio.ensure_future(client.async_execute())
    while not execution.done():
        await asyncio.wait({execution}, timeout=1.0)
        while_running()
    await execution


def _connection(folder: Path) -> Config:
    """Return how a kernel is connected: by sockets in `folder`, which other users cannot read, unlike TCP.

    The path of a socket must be short: `folder` should be a temporary one. Windows has no such sockets.
    """
    if sys.platform == "win32":
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "connection_file": str(folder / "kernel.json")}})


_FOLDING = """\
{% extends "lab/index.html.j2" %}
{% block input %}
{% if cell.metadata.get("jupyter", {}).get("source_hidden") %}
{% set title = cell.source.split("\\n")[0].removeprefix("# @title").split("{")[0] %}
<details><summary style="font-family:sans-serif">{{ title | e }}</summary>
{{ super() }}</details>
{% else %}{{ super() }}{% endif %}
{% endblock %}
"""
"""nbconvert's page, with the code that Jupyter folds away folded below its title."""
_SCROLLING = """\
<style>
.jp-OutputArea-child { display: block; }
.jp-OutputArea-child .jp-OutputArea-output { display: block; box-sizing: border-box; margin-left: 0; overflow-x: auto; }
.jp-InputArea, .jp-CodeMirrorEditor, .jp-Editor { overflow-x: auto !important; }
</style>
"""
"""On a narrow page what is wider scrolls by itself, in place of being cut off."""


def to_html(notebook: nbformat.NotebookNode) -> str:
    """Return a notebook as a page that holds its pictures, and loads no script or style from elsewhere."""
    # A widget needs a running notebook; what it shows as HTML beside itself does not.
    config = Config({"NbConvertBase": {"display_data_priority": ["text/html", "image/png", "text/plain"]}})
    exporter = HTMLExporter(
        config=config, embed_images=True, mathjax_url="", require_js_url="", jquery_url="", raw_template=_FOLDING
    )
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    # With the widgets' state the page would load their scripts.
    metadata = {key: value for key, value in notebook.metadata.items() if key != "widgets"}
    notebook = nbformat.NotebookNode(notebook, metadata=nbformat.from_dict(metadata))
    return exporter.from_notebook_node(notebook)[0].replace("</head>", f"{_SCROLLING}</head>", 1)
