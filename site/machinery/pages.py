"""What a page's head says: its scripts, and the policy that keeps every other script away."""

import json
from typing import Any

from docutils.nodes import document
from sphinx.application import Sphinx

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "media-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
}
"""What a page may load, and from where. Nothing comes from elsewhere, and no script stands in a page.

Styles do, since charts and notebooks bring them. A page's front matter may widen what it itself may load, as in
`policy: {connect-src: "'self' https:"}`."""


def set_head(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None) -> None:
    """Set a page's scripts, all from files and deferred, and its Content-Security-Policy."""
    front = {name: _value(text) for name, text in (app.env.metadata.get(page) or {}).items()}
    for name in front.get("scripts", []):
        app.add_js_file(name)
    for name in front.get("styles", []):
        app.add_css_file(name)
    for script in context["script_files"]:
        if getattr(script, "filename", None):
            script.attributes["defer"] = "defer"
    context["script_files"] = [script for script in context["script_files"] if getattr(script, "filename", None)]
    policy = "; ".join(f"{name} {sources}" for name, sources in (POLICY | front.get("policy", {})).items())
    tag = f'\n    <meta http-equiv="Content-Security-Policy" content="{policy}" />'
    context["metatags"] = context.get("metatags", "") + tag


def _value(text: Any) -> Any:
    """Return a value of the front matter; MyST keeps lists and tables as JSON."""
    return json.loads(text) if isinstance(text, str) and text[:1] in ("[", "{") else text


def setup(app: Sphinx) -> dict[str, bool]:
    for name in ("searchtools.js", "language_data.js", "search.js"):
        app.add_js_file(name, priority=600)
    app.connect("html-page-context", set_head, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
