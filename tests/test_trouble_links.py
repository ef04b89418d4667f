"""What shows a trouble links to its entry in docs/troubleshooting.md: panel, terminal, status, report, checklist."""

import io
import json
import sys

import pytest
from peer_files import BEGINNING, epoch, peer_with

from dalle_lib.checks.preflight import Check, table
from dalle_lib.checks.report import report_lines
from dalle_lib.cli import main
from dalle_lib.dashboard.checklist import checklist
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.terminal import Lines
from dalle_lib.one_line import MAX_TOLD
from dalle_lib.troubles import TROUBLES, trouble_in

REFUSED = {"event": "problem", "peer": "QmOther", "problem": "its tensors were refused: <b>too long</b>"}
CRASHED = {"event": "failed", "error": "OutOfMemoryError: CUDA out of memory"}
LACKING = Check("free memory", "3.0 GB", "1.0 GB", False, "close other programs")
LINKS = {trouble.name: trouble.link for trouble in TROUBLES}
TENSORS, MEMORY, ROOM = (LINKS[name] for name in ("tensors-refused", "out-of-memory", "not-enough-room"))


@pytest.fixture
def peer(mini, tmp_path):
    return peer_with(tmp_path / "peers" / "ada", [*BEGINNING, *epoch(10), REFUSED, REFUSED, CRASHED], mini)


def test_the_panel_links_each_message_and_its_state(peer):
    html = panel_html(peer)
    assert html.count(f'<a href="{MEMORY}"') == 1
    assert html.count(f'<a href="{TENSORS}"') == 2
    assert "<b>too long" not in html


def test_a_terminal_is_told_each_link_once_below_its_message(peer):
    file = io.StringIO()
    Lines(file)(peer)
    lines = file.getvalue().splitlines()
    (at,) = [number for number, line in enumerate(lines) if TENSORS in line]
    assert "its tensors were refused" in lines[at - 1]


def test_status_tells_what_is_wrong_with_links_in_words_and_in_json(peer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "status", "--folder", str(peer.folder.parent)])
    main()
    told = capsys.readouterr().out
    assert [told.count(link) for link in (MEMORY, TENSORS)] == [1, 1]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--json"])
    main()
    (told,) = json.loads(capsys.readouterr().out)
    assert told["links"] == [MEMORY, TENSORS]
    assert len(told["troubles"]) == 2
    (peer.folder / "settings.json").write_text("broken")
    main()
    (told,) = json.loads(capsys.readouterr().out)
    assert told["links"] == [LINKS["file-broken"]]


def test_the_report_links_checks_that_failed_and_what_the_peer_told(peer):
    (peer.folder / "peer.log").write_text("WARNING averaging parameters failed: nobody came\n")
    report = "\n".join(report_lines(peer, [LACKING, Check("clock", "right", "right", True)]))
    for link in (ROOM, TENSORS, MEMORY, LINKS["averaging-failed"]):
        assert report.count(link) == 1
    assert "#clock" not in report
    assert f'href="{ROOM}"' in checklist(table([LACKING])).data
    assert "href" not in checklist(table([Check("clock", "right", "right", True)])).data


def test_of_a_long_text_the_beginning_counts_in_lines_of_any_width():
    assert trouble_in("its tensors\n   were refused: too long") is not None
    assert trouble_in(f"{'x' * MAX_TOLD} its tensors were refused") is None
