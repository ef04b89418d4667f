"""Scripts that one page alone loads: its front matter names them, as in `scripts: [calculator.js]`."""

from typing import Any

from docutils.nodes import document
from sphinx.application import Sphinx


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None) -> None:
    """Add the scripts that a page's front matter names, relative to `_static/`, in their order, deferred."""
    for name in (app.env.metadata.get(page) or {}).get("scripts") or []:
        app.add_js_file(name, loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
