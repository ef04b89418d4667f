"""Run a notebook from a terminal, and keep it as a page that opens without a network."""

import asyncio
import errno
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

from dalle_lib.dashboard.scrolling import scrolling_style
from dalle_lib.files import reading, small_text


def execute(notebook: Path, page: Path, folder: Path, while_running: Callable[[], None]) -> None:
    """Execute `notebook` in `folder`, and write it with its outputs to `page`.

    `while_running` is called once a second. If a cell fails, the page ends with its error, which is raised, too.
    Raises BrokenFile if it is no notebook.
    """
    with reading(notebook, "a notebook"):
        nb = nbformat.reads(small_text(notebook), as_version=4)
    with tempfile.TemporaryDirectory() as sockets:
        config = _connection(Path(sockets))
        client = NotebookClient(nb, timeout=None, resources={"metadata": {"path": str(folder)}}, config=config)
        log = logging.getLogger("tornado.general")
        log.addFilter(_is_no_closed_socket)
        try:
            asyncio.run(_watched(client, while_running))
        finally:
            log.removeFilter(_is_no_closed_socket)
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(to_html(nb), encoding="utf-8")


def _is_no_closed_socket(record: logging.LogRecord) -> bool:
    """Return False for what pyzmq says, with a traceback, if a kernel's socket is closed before its last message."""
    error = record.exc_info and record.exc_info[1]
    return getattr(error, "errno", None) != errno.ENOTSOCK


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
_SCROLLING = ".jp-OutputArea-child .jp-OutputArea-output, .jp-InputArea .jp-InputArea-editor, .jp-MarkdownOutput"
"""The blocks of a page that scroll by themselves where they are wider than it: see `scrolling_style`."""
_NARROW = """\
<style>
.jp-InputArea, .jp-InputArea-editor, .jp-MarkdownOutput, .jp-OutputArea-child,
.jp-OutputArea-child .jp-OutputArea-output { display: block; box-sizing: border-box; min-width: 0; margin-left: 0; }
.jp-OutputArea-output pre, .jp-MarkdownOutput code { word-break: normal; overflow-wrap: anywhere; }
.jp-OutputArea-output .dataframe td { white-space: nowrap; }
@media (max-width: 760px) {
  .jp-Notebook { padding: 4px; }
  .jp-Cell { padding: 4px 0; }
  .jp-OutputArea-child .jp-OutputArea-output { padding: 0; }
}
</style>
"""
"""Blocks are never wider than the page, words and the figures of a table stay whole, and a phone has narrow margins."""


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
    page, style = exporter.from_notebook_node(notebook)[0], scrolling_style(_SCROLLING) + _NARROW
    return page.replace("</head>", f"{style}</head>", 1)
