"""Tables of a page, in its own colours, with lines that wrap: the panel's, the preflight's and the scores'."""

from collections.abc import Iterable, Sequence
from html import escape

from IPython.display import HTML

from dalle_lib.dashboard.scrolling import scrolling

_STYLE = """
<style>
table.dalle-table { border-collapse: collapse; table-layout: auto; width: auto; max-width: 860px; margin: 8px 0; }
table.dalle-table th, table.dalle-table td { text-align: right; vertical-align: top; padding: 3px 6px; border: none;
  max-width: none; white-space: normal; overflow-wrap: break-word; background: transparent; }
table.dalle-table th:first-child, table.dalle-table td:first-child { text-align: left; }
table.dalle-table td:not(:first-child) { white-space: nowrap; }
table.dalle-table.words th, table.dalle-table.words td { text-align: left; }
table.dalle-table.words td:nth-child(3) { white-space: normal; }
table.dalle-table tr { border-bottom: 1px solid rgba(128,128,128,0.4); background: transparent; }
</style>
"""


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], *, is_words: bool = False) -> str:
    """Return a table as HTML; `header` is text, the cells of `rows` are HTML.

    Columns after the first are aligned to the right, as numbers are read; with `is_words` all are aligned to the left.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "dalle-table words" if is_words else "dalle-table"
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return _STYLE + scrolling(table)


def sentence(text: str) -> HTML:
    """Return plain text as a paragraph of a notebook: what a cell shows where it has no picture to show."""
    return HTML(f"<p>{escape(text)}</p>")
