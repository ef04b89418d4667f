"""The charts of a run show what its monitor tells, in notebooks, and in pages without Python."""

import json
import re
from contextlib import closing

import pytest
from checkout import load_script

from dalle_lib.dashboard.charts import to_html
from dalle_lib.dashboard.run_charts import BARS, CHARTS, X_AXIS, chart_specs, rows_of
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.published import HISTORY
from dalle_lib.run.newest import STATUS, USER_COLUMNS

simulated = load_script("benchmarks/simulated_run")


@pytest.fixture(scope="session")
def simulated_folder(tmp_path_factory):
    """A monitor's folder of a run of two days that eight users have trained."""
    folder = tmp_path_factory.mktemp("simulated")
    simulated.simulate(simulated.Simulation(out=folder, days=2.0, epochs=120, users=8, every=4))
    return folder


@pytest.fixture(scope="session")
def tables(simulated_folder):
    """The rows of each table, by its name."""
    history, status = (json.loads((simulated_folder / name).read_text()) for name in (HISTORY, STATUS))
    return {name: rows_of(table) for name, table in history.items()} | {
        "users": [dict(zip(USER_COLUMNS, row, strict=True)) for row in status["users"]]
    }


def drawn(name: str, rows: list[dict], **signals) -> str:
    """Return a compiled chart, filled as a page fills it, as SVG."""
    import vl_convert

    spec = json.loads(json.dumps(chart_specs()[name]["spec"]))
    (source,) = [data for data in spec["data"] if data["name"] == "rows"]
    assert not source.get("values"), "the page has other rows"
    source["values"] = rows
    for signal in spec["signals"]:
        if signal["name"] in ("width", *signals):
            signal.update({"value": 500, "width": 500} | {"value": signals.get(signal["name"], 500)})
            signal.pop("init", None)
            signal.pop("on", None)
    return vl_convert.vega_to_svg(spec)


def lines_in(svg: str) -> list[str]:
    """Return the paths of the lines of a chart that have more than a point."""
    return [path for path in re.findall(r'class="mark-line [^>]*><path[^>]* d="([^"]+)"', svg) if "L" in path]


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_shows_the_rows_of_its_table(name, tables):
    svg = drawn(name, tables[CHARTS[name].table])
    if name == "leaderboard":
        assert svg.count('aria-roledescription="bar"') == min(BARS, len(tables["users"]))
        assert "1. volunteer-" in svg
    else:
        assert lines_in(svg), "no line"
    assert "NaN" not in svg
    empty = drawn(name, [])
    assert not lines_in(empty)
    assert "NaN" not in re.sub(r'aria-label="[^"]*"', "", empty), "an axis without a time says so to nobody"


def test_the_objective_goes_over_epochs_time_or_samples(tables):
    labels = {axis: re.findall(r">([^<>]+)</text>", drawn("objective", tables["epochs"], **{X_AXIS: axis}))
              for axis in ("epoch", "time", "samples")}  # fmt: skip
    assert "100" in labels["epoch"]
    assert any(re.fullmatch(r"\d\d:\d\d", label) for label in labels["time"])
    assert any(label.endswith("k") for label in labels["samples"])


def test_values_that_are_missing_break_no_chart_and_are_not_taken_for_zero(tables):
    rows = [row | {"loss": None} if place % 3 else row for place, row in enumerate(tables["epochs"])]
    (path,) = lines_in(drawn("objective", rows))
    assert path.count("L") == len(rows[::3]) - 1
    assert not lines_in(drawn("bandwidth", [row | {"up_mbps": None, "down_mbps": None} for row in tables["hours"]]))
    assert not lines_in(drawn("rank", [{"epoch": 1, "loss": 2.0}]))


def test_a_line_of_few_points_has_dots_and_a_line_of_many_has_none(tables):
    few, many = tables["epochs"][:20], [row | {"epoch": n} for n in range(9) for row in tables["epochs"]]
    dots = [drawn("objective", rows).count('aria-roledescription="circle"') for rows in (few, many)]
    assert dots == [20, 0]


def test_a_line_of_many_points_has_their_mean_above_it(tables):
    many = [row | {"epoch": 30 * n + place} for n in range(20) for place, row in enumerate(tables["epochs"][:30])]
    raw, mean = lines_in(drawn("objective", many))
    assert raw.count("L") == mean.count("L") == 599
    heights = [[float(y) for y in re.findall(r"[ML][\d.]+,([\d.]+)", path)] for path in (raw, mean)]
    assert max(heights[1]) - min(heights[1]) < max(heights[0]) - min(heights[0])
    assert min(heights[0]) <= min(heights[1])


def test_every_chart_says_in_words_what_it_shows():
    specs = chart_specs()
    assert list(specs) == list(CHARTS)
    for each in specs.values():
        assert each["alt"].endswith(".")
        assert each["title"]
        assert each["table"] in ("epochs", "hours", "evaluations", "users")
    assert len(json.dumps(specs)) < 200_000


def test_charts_of_a_notebook_have_the_pages_text_colour(tables):
    html = to_html(CHARTS["objective"].of(tables["epochs"]).properties(width=400))
    assert "currentColor" in html
    assert "<script" not in html


def test_a_simulated_run_of_the_papers_size_takes_little_room(tmp_path):
    # All that grows with a run's length is bounded: here so much of it that the bounds are reached.
    folder = tmp_path / "long"
    run = simulated.Simulation(out=folder, days=75.0, epochs=31_250, users=2, every=4000)
    simulated.simulate(run)
    with closing(MonitorDatabase(folder / simulated.DATABASE)) as database, database.writing():
        began = int(run.began // 60)
        for epoch in range(1, run.epochs, 3):
            database.insert(
                "epochs", epoch=epoch, ended=run.began + epoch * run.epoch_s, seconds=207.36, peers=31, loss=3.14159,
                samples_per_s=19.753, counted_share=0.9712, up_mbps=7.123, down_mbps=7.345,
            )  # fmt: skip
        for minute in range(0, 75 * 24 * 60, 10):
            database.insert("moments", minute=began + minute, epoch=1, peers=31, users=29)
        card = simulated.RunCard.load("emoji")
        history = simulated.history_of(card, database, folder)
    assert len(history["epochs"]["epoch"]) > 1000
    assert len(history["hours"]["hour"]) > 1500
    assert simulated.publish(folder, HISTORY, history) < 400_000
