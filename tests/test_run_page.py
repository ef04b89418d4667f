"""The page of a run: what is written, and what none of its files does."""

import json
import logging
import re
from pathlib import Path

import pytest
from checkout import ROOT
from told_runs import history, status, write_told

from dalle_lib.cli.demo import Demo
from dalle_lib.dashboard import run_page
from dalle_lib.dashboard.run_page import (
    ASSETS,
    CHARTS,
    DATA,
    PAGE,
    SCRIPTS,
    VEGA,
    page_files,
    write_own_page,
    write_run_page,
)
from dalle_lib.files import BrokenFile
from dalle_lib.run.newest import TEAM_COLUMNS, USER_COLUMNS
from dalle_lib.swarm import Crew, LocalSwarm, Peer
from dalle_lib.swarm.process.local import MONITOR

OURS = sorted(ASSETS.glob("*.*"))


def parsed(script: Path, name: str) -> object:
    """Return what a script sets as `dalle.name`."""
    match = re.fullmatch(rf"globalThis.dalle = .*;\ndalle.{name} = JSON.parse\((.*)\);\n", script.read_text())
    return json.loads(json.loads(match[1]))


def swarm_in(folder: Path) -> LocalSwarm:
    """Return a swarm on this machine that has ended."""
    return LocalSwarm(folder, "run", bootstrap=Peer(folder / "bootstrap"))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = write_told(tmp_path_factory.mktemp("monitor"))
    return write_run_page(folder, tmp_path_factory.mktemp("out") / "dashboard")


def test_the_page_has_all_that_it_loads(page):
    text = page.read_text()
    assert re.findall(r'<script defer src="([^"]+)"></script>', text) == [DATA, *SCRIPTS]
    for name in re.findall(r'(?:src|href)="(?!data:)([^"]+)"', text):
        assert (page.parent / name).stat().st_size > 0, name
    charts = parsed(page.parent / CHARTS, "charts")
    assert all(chart.keys() >= {"title", "alt", "table", "spec"} for chart in charts.values())
    assert "window.vegaEmbed" in (page.parent / VEGA).read_text()


def test_the_page_holds_what_the_monitor_has_told_and_the_pictures(page):
    data = parsed(page.parent / DATA, "data")
    assert (data["status"], data["history"]) == (status(), history())
    assert {prompt for prompts in data["prompts"].values() for prompt in prompts} >= {"red fish", "purple monkey face"}
    shown = {name for kind in ("first", "best") for name in history()["pictures"][kind] if name}
    assert len(shown) == 5
    assert {f"{file.parent.name}/{file.name}" for file in page.parent.rglob("*.webp")} == shown


def test_only_pictures_of_the_monitor_are_taken(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.png").write_text("mine")
    folder = write_told(tmp_path / "monitor")
    names = ["../secret/key.png", str(tmp_path / "secret" / "key.png"), "pictures/../../secret/key.png", "status.json",
             "pictures/none.webp", 7, None, ["best"], "pictures/epoch-0000044.webp"]  # fmt: skip
    table = {"epoch": [*range(9)], "first": names, "best": "none"}
    (folder / "history.json").write_text(json.dumps(history(pictures=table)))
    out = tmp_path / "out"
    page = write_run_page(folder, out)
    kept = parsed(page.parent / DATA, "data")["history"]["pictures"]
    assert kept == {"epoch": [8], "first": ["pictures/epoch-0000044.webp"], "best": [None]}
    assert [file.name for file in out.rglob("*") if file.suffix in (".png", ".webp")] == ["epoch-0000044.webp"]


def test_a_picture_that_is_a_link_out_of_the_folder_or_endless_is_not_copied(tmp_path, monkeypatch):
    folder, out = write_told(tmp_path / "monitor"), tmp_path / "out"
    (tmp_path / "key.webp").write_text("mine")
    newest, older = (folder / "pictures" / f"epoch-{epoch:07}.webp" for epoch in (44, 20))
    newest.unlink()
    newest.symlink_to(tmp_path / "key.webp")
    older.write_bytes(bytes(20_000))
    monkeypatch.setattr(run_page, "MAX_TOLD_BYTES", 15_000)
    write_run_page(folder, out)
    assert [file.name for file in (out / "pictures").iterdir()] == ["epoch-0000000.webp"]


def test_a_page_written_again_shows_what_is_there_now(tmp_path):
    folder, out = write_told(tmp_path / "monitor"), tmp_path / "out"
    write_run_page(folder, out)
    table = {"epoch": [20], "first": ["pictures/epoch-0000020.webp"], "best": [None]}
    (folder / "history.json").write_text(json.dumps(history(pictures=table)))
    (folder / "status.json").write_text(json.dumps(status(epoch=50)))
    page = write_run_page(folder, out)
    assert parsed(page.parent / DATA, "data")["status"]["epoch"] == 50
    assert [file.name for file in (out / "pictures").iterdir()] == ["epoch-0000020.webp"]


def test_a_monitor_without_history_or_pictures_has_a_page_too(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps(status()))
    data = parsed(write_run_page(tmp_path, tmp_path / "out").parent / DATA, "data")
    assert (data["history"], data["prompts"]) == ({"pictures": {}}, {})


def test_what_is_no_number_becomes_null_and_keys_stay_keys(tmp_path):
    told = '{"loss": NaN, "left_s": 1e999, "epoch_s": -Infinity, "__proto__": {"state": "open"}, "run": "a\\u2028b"}'
    (tmp_path / "status.json").write_text(told)
    data = parsed(write_run_page(tmp_path, tmp_path / "out").parent / DATA, "data")
    assert data["status"] == {
        "loss": None, "left_s": None, "epoch_s": None, "__proto__": {"state": "open"}, "run": "a\u2028b",
    }  # fmt: skip


@pytest.mark.parametrize("broken", [b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_a_broken_status_is_told_and_nothing_is_written(tmp_path, broken):
    (tmp_path / "status.json").write_bytes(broken)
    with pytest.raises(BrokenFile, match=r"status.json cannot be read"):
        write_run_page(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_monitor_that_has_told_nothing_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="the run's monitor has told nothing yet"):
        write_run_page(tmp_path, tmp_path / "out")


def test_without_the_packages_for_charts_the_page_goes_without(monkeypatch):
    monkeypatch.setattr(run_page, "find_spec", lambda name: None if name == "vl_convert" else object())
    written = page_files()
    assert VEGA not in written
    assert written[CHARTS].endswith(b"dalle.charts = null;\n")
    assert set(written) == {"dashboard.css", *SCRIPTS}


def test_the_demo_writes_its_page_and_names_it_last(tmp_path, monkeypatch, capsys):
    write_told(tmp_path / "swarm" / MONITOR)
    page = write_own_page(swarm_in(tmp_path / "swarm"), tmp_path)
    assert page == tmp_path / "dashboard" / PAGE
    summary = {"epochs": 1, "seconds": 2.0, "share_of_samples": {}}
    monkeypatch.setattr("dalle_lib.demo.run_demo", lambda *_: summary)
    Demo(out=tmp_path).run()
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(page))


def test_a_swarm_whose_monitor_told_nothing_has_no_page_of_before_either(tmp_path, caplog):
    (tmp_path / "dashboard").mkdir()
    (tmp_path / "dashboard" / PAGE).write_text("of an earlier demo")
    with caplog.at_level(logging.WARNING):
        assert write_own_page(swarm_in(tmp_path / "swarm"), tmp_path) is None
    assert "there is no dashboard: " in caplog.text
    assert not (tmp_path / "dashboard").exists()


def test_peers_in_a_run_of_others_get_no_page(tmp_path):
    assert write_own_page(Crew(tmp_path, "org/run"), tmp_path) is None


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_our_files_are_short_and_never_make_markup_or_code_of_text(file):
    text = file.read_text()
    lines = text.splitlines()
    assert len(lines) <= 300
    if file.suffix != ".html":
        assert max(map(len, lines)) <= 120
    if file.suffix == ".js":
        assert '"use strict";' in lines[:3]
        makes = r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTML|DOMParser|document\.write"
        runs = r"\beval\b|new Function|\bFunction\(|set(?:Timeout|Interval)\(\s*[\"'`]|javascript:|\bimport\("
        assert not re.findall(f"{makes}|{runs}", text)
        assert not re.findall(r"https?://(?!huggingface\.co\b)\w", text), "addresses of other hosts"


def test_the_page_of_its_own_allows_no_script_but_its_files():
    text = (ASSETS / PAGE).read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == "'self' file:"
    assert rules["default-src"] == rules["base-uri"] == "'none'"
    assert "unsafe-eval" not in policy
    assert not re.findall(r"<script|\son\w+=|style=", text)


def test_every_script_is_listed_once_and_in_the_site_too():
    assert sorted(SCRIPTS) == sorted([file.name for file in OURS if file.suffix == ".js"] + [CHARTS])
    front = (ROOT / "site" / "dashboard.md").read_text().split("---")[1]
    assert re.findall(r"dashboard/([\w.]+)", front) == list(SCRIPTS)


def test_the_page_knows_the_columns_of_users_and_teams():
    text = (ASSETS / "reading.js").read_text()
    for name, columns in ("USER_COLUMNS", USER_COLUMNS), ("TEAM_COLUMNS", TEAM_COLUMNS):
        told = re.search(rf"{name} = \[([^\]]+)\]", text)[1]
        assert tuple(re.findall(r'"(\w+)"', told)) == columns
