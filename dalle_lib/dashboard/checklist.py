"""The checks of this machine as a table with a tick or a cross in each row."""

from html import escape

import pandas as pd
from IPython.display import HTML

from dalle_lib.dashboard.charts import SERIES
from dalle_lib.dashboard.tables import table_html

GREEN, RED = SERIES[2], SERIES[5]


def checklist(checks: pd.DataFrame) -> HTML:
    """Return the table of `preflight` or `doctor` for a notebook: a tick or a cross, what is here, what is needed.

    Below what is here stands what to do about it, where there is something to do.
    """
    rows = [
        [_mark(row.ok), escape(row.what), _here(row.here, row.remedy), escape(row.needed)]
        for row in checks.reset_index().itertuples()
    ]
    return HTML(table_html(["", "what", "here", "needed"], rows, is_words=True))


def _mark(ok: bool) -> str:
    colour, mark, word = (GREEN, "✓", "yes") if ok else (RED, "✗", "no")
    return f'<b style="color:{colour}" role="img" aria-label="{word}">{mark}</b>'


def _here(here: str, remedy: str) -> str:
    return escape(here) + (f"<br>→ {escape(remedy)}" if remedy else "")
