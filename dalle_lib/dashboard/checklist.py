"""The checks of this machine as a table with a tick or a cross in each row."""

from html import escape

import pandas as pd
from IPython.display import HTML

from dalle_lib.dashboard.charts import SERIES
from dalle_lib.dashboard.tables import table_html
from dalle_lib.troubles import trouble_in

GREEN, RED = SERIES[2], SERIES[5]


def checklist(checks: pd.DataFrame) -> HTML:
    """Return the table of `preflight` or `doctor` for a notebook: a tick or a cross, what is here, what is needed.

    Below what is here stands what to do about it, where there is something to do, and for a cross what it means.
    """
    rows = [
        [_mark(row.ok), escape(row.what), _here(row), escape(row.needed)] for row in checks.reset_index().itertuples()
    ]
    return HTML(table_html(["", "what", "here", "needed"], rows, is_words=True))


def _mark(ok: bool) -> str:
    colour, mark, word = (GREEN, "✓", "yes") if ok else (RED, "✗", "no")
    return f'<b style="color:{colour}" role="img" aria-label="{word}">{mark}</b>'


def _here(row) -> str:
    told = escape(row.here) + (f"<br>→ {escape(row.remedy)}" if row.remedy else "")
    trouble = None if row.ok else trouble_in(f"FAILED {row.what} {row.here} → {row.remedy}")
    return told + (f'<br><a href="{escape(trouble.link)}" target="_blank">What it means</a>' if trouble else "")
