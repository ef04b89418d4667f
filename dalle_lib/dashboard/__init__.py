"""What a run looks like: the same charts in notebooks, in the demo and on pages."""

from dalle_lib.dashboard.charts import run_chart, to_png, to_svg
from dalle_lib.dashboard.panel import panel_html, terminal_display, watch

__all__ = ["panel_html", "run_chart", "terminal_display", "to_png", "to_svg", "watch"]
