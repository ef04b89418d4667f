"""The steps from a peer's start to its first gradient that counts, of events as real peers have written them."""

import io

import pytest
from peer_files import CONNECTED, JOINED, LEFT, LOADED, STARTED, peer_with, running, seen
from rich.console import Console
from rich.live import Live

from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.start import TITLE, start_lines
from dalle_lib.dashboard.terminal import Lines, LivePanel
from dalle_lib.swarm.process.starting import STEPS, seconds_to_count, steps_seen

AVERAGED = {"event": "averaged", "epoch": 9, "shares": {"id0": 0.5, "id1": 0.5}, "peers": 2, "error": None}
AVERAGED |= {"seconds": 2.7, "counted": {"id0": 112.0, "id1": 112.0}}
ALONE = AVERAGED | {"shares": {"id0": 1.0}, "peers": 1}
OTHERS = AVERAGED | {"shares": {"id1": 1.0, "id2": 0.0}}
HELD, GOING_ON = {"event": "held", "reason": "schedule", "until": None, "epoch": 9}, {"event": "going_on", "epoch": 9}
COMPUTING, COMPUTED = {"event": "computing", "told": "bf16"}, {"event": "computed", "samples": 16}
RECORDED = [(0.0, STARTED), (12.1, LOADED), (14.5, CONNECTED), (17.4, JOINED), (23.7, AVERAGED)]
"""Seconds of one of three peers of emoji-mini that shared two cores, by its own log."""
WHOLE = [*RECORDED[:4], (20.5, COMPUTING), (21.0, COMPUTED), (30.0, ALONE), (33.0, OTHERS), (39.5, AVERAGED)]


def at(times: list[tuple[float, dict]], start: float = 1e9) -> list[dict]:
    return [{**event, "time": start + seconds} for seconds, event in times]


def took(events: list[dict], **options) -> dict[str, float | None]:
    return {each.step.ends_with: each.seconds for each in steps_seen([events], **options)}


def test_each_step_takes_the_time_until_its_event_and_all_together_the_whole():
    seconds = took(at(WHOLE))
    expected = {"loaded": 12.1, "connected": 2.4, "joined": 2.9, "computing": 3.1, "computed": 0.5, "averaged": 18.5}
    assert seconds == pytest.approx(expected)
    assert seconds_to_count([at(WHOLE)]) == pytest.approx(39.5)
    assert seconds_to_count([at(WHOLE)], waits_s=10.0) == pytest.approx(29.5), "it was told to wait"
    assert seconds_to_count([at(WHOLE[:-1])]) is None, "neither a round alone counts, nor one without this peer"


def test_a_pause_is_no_part_of_a_step():
    night = 9 * 3600.0
    later = [(seconds + night, event) for seconds, event in WHOLE[4:]]
    events = at([*WHOLE[:4], (17.5, HELD), (3000.0, HELD), (17.5 + night, GOING_ON), *later])
    assert took(events) == pytest.approx(took(at(WHOLE)), abs=0.01)
    assert seconds_to_count([events]) == pytest.approx(39.5, abs=0.01)
    under_way = next(step for step in steps_seen([events[:7]]) if step.seconds is None)
    assert under_way.began == pytest.approx(1e9 + 17.4 + night), "it shows the seconds without the pause"


def test_steps_that_a_peer_does_not_tell_are_left_out():
    assert took(at(RECORDED)) == pytest.approx({"loaded": 12.1, "connected": 2.4, "joined": 2.9, "averaged": 6.3})


def test_one_step_is_under_way_and_begins_where_the_one_before_ended():
    for done in range(1, len(STEPS)):
        steps = steps_seen([at(WHOLE[:done])])
        assert [step.seconds is None for step in steps] == [False] * (done - 1) + [True] * (len(STEPS) - done + 1)
        (under_way,) = (step for step in steps if step.seconds is None and step.began is not None)
        assert under_way.began == 1e9 + WHOLE[done - 1][0]
    assert steps_seen([[]]) == steps_seen([]) == []


def test_what_is_expected_is_what_it_took_last_or_else_what_is_typical():
    first = steps_seen([at(WHOLE[:1])], round_s=77.0)
    assert [each.expected_s for each in first] == [*(step.typical_s for step in STEPS[:-1]), 77.0]
    unknown = steps_seen([at(WHOLE[:1])], round_s=77.0, is_typical=False)
    assert [each.expected_s for each in unknown] == [None] * 5 + [77.0], "as of a large model, or on a GPU"
    again = steps_seen([at(WHOLE), at(RECORDED[:2], 2e9)], round_s=77.0)
    assert [each.expected_s for each in again] == pytest.approx([12.1, 2.4, 2.9, 3.1, 0.5, 18.5])


def test_a_clock_that_is_set_back_takes_no_time_away():
    events = at([(0.0, STARTED), (10.0, LOADED), (4.0, CONNECTED), (12.0, JOINED)])
    assert list(took(events).values())[:3] == [10.0, 0.0, 2.0]


def test_a_terminal_and_a_notebook_show_the_steps_and_then_one_line(mini, tmp_path):
    def shown(events: list[dict]) -> tuple[str, str]:
        peer = peer_with(tmp_path / str(len(events)), events, mini, ago_s=len(events) - 1)
        seen(peer.folder, 96, 9)
        with running(peer):
            return _terminal(peer), panel_html(peer)

    for page in shown([STARTED, LOADED | {"device": "cuda:0, cuda:1"}, CONNECTED]):
        assert f"{TITLE}, on cuda:0, cuda:1:" in page
        assert all(step.name.replace("'", "&#x27;" if "<p>" in page else "'") in page for step in STEPS)
        assert page.count("✓") == 2
        assert page.count("…") == 1
    for page in shown([STARTED, LOADED, CONNECTED, JOINED, COMPUTED, AVERAGED]):
        assert TITLE not in page
        assert page.count("From start to the first counted gradient: 5 s") == 1
    alone = {"event": "epoch", "epoch": 10, "loss": 1.5, "samples": 96, "seconds": 5.0, "peers": 1}
    for page in shown([STARTED, LOADED, CONNECTED, JOINED, COMPUTED, ALONE, alone]):
        assert TITLE not in page, "it trains alone, and nothing of it counts"
        assert "From start" not in page


def test_the_line_is_told_once_in_a_log_and_unfolds_at_the_end(mini, tmp_path):
    peer, file = peer_with(tmp_path, [STARTED, LOADED, CONNECTED, JOINED, COMPUTED, AVERAGED], mini), io.StringIO()
    with running(peer):
        lines = Lines(file)
        lines(peer)
        lines(peer)
    assert file.getvalue().count("From start to the first counted gradient: 5 s\n") == 1
    peer = peer_with(tmp_path, [STARTED, LOADED, CONNECTED, JOINED, COMPUTED, AVERAGED, LEFT], mini)
    folded = panel_html(peer).split("<details>")[1]
    assert "<summary>From start to the first counted gradient: 5 s</summary>" in folded
    assert "average it with the others" in folded


def test_lines_of_a_terminal_fit_its_panel():
    lines = start_lines(steps_seen([at(WHOLE[:3])]), now=1e9 + 16)
    assert max(map(len, lines)) <= 60
    assert lines[2].split() == ["…", "take", "over", "the", "others'", "state", "2", "s", "about", "3", "s"]


def _terminal(peer) -> str:
    console = Console(width=90, file=io.StringIO(), record=True)
    live = Live(console=console, auto_refresh=False)
    LivePanel(live)(peer)
    console.print(live.get_renderable())
    return console.export_text()
