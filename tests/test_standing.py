"""How a peer stands, by the files in its folder: its state, time left, and totals over all its starts."""

import contextlib
import io
import json
import time

import pytest
from peer_files import BEGINNING, CONNECTED, LEFT, LEFT_OUT, LOADED, STARTED, epoch, peer_with, running, seen
from rich.console import Console

from dalle_lib.amounts import duration, moment
from dalle_lib.auth.proof_time import note_proof
from dalle_lib.cli.status import describe_peer
from dalle_lib.dashboard.cards import cards_html
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.terminal import Lines, panel
from dalle_lib.dashboard.words import helped_line, line_of, state_in_words, totals_in_words
from dalle_lib.swarm.process.events import HUB, EventLog
from dalle_lib.swarm.process.standing import OLD_LOOK_S, Standing

TAKING = {"event": "taking", "source": "Qm...", "place": None, "wait_s": 0.0, "share": 0.0}
BROKE = {"event": "failed", "error": "its GPU broke"}


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    """All of a test happens in one moment, however long a busy machine takes for it."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.mark.parametrize(
    ("events", "is_running", "state", "words"),
    [
        ([STARTED], True, "starting", "loading the model"),
        ([STARTED, LOADED], True, "looking", "Looking for the other peers"),
        ([STARTED, LOADED, CONNECTED], True, "catching up", "Connected: taking over the others' progress"),
        ([STARTED, TAKING | {"source": HUB, "share": 0.34}], True, "starting", "newest checkpoint: 34% is here"),
        (
            [*BEGINNING[:-1], TAKING | {"place": 3, "wait_s": 40.0}],
            True,
            "catching up",
            "place 3 in its line, about 40 s",
        ),
        ([*BEGINNING[:-1], TAKING | {"place": 0}], True, "catching up", "which averages with the others"),
        ([*BEGINNING[:-1], TAKING | {"share": 0.5}], True, "catching up", "state of another peer: 50% is here"),
        ([*BEGINNING, TAKING, LEFT], True, "left", "saved at epoch 12"),
        (BEGINNING, True, "training", "Training with the others"),
        ([*BEGINNING, *epoch(10), LEFT_OUT | {"is_waiting": True}], True, "waiting", "Waiting for the others' next"),
        ([*BEGINNING, LEFT_OUT | {"is_waiting": True}, *epoch(10)], True, "training", "Training"),
        ([*BEGINNING, {"event": "leaving", "epoch": 9}], True, "leaving", "Leaving: saving"),
        ([*BEGINNING, LEFT], True, "left", "saved at epoch 12"),
        ([*BEGINNING, LEFT, {"event": "ended", "exit_code": 0}], False, "left", "saved at epoch 12"),
        ([*BEGINNING, LEFT | {"epoch": 60}], False, "complete", "The run is complete at epoch 60"),
        ([*BEGINNING, BROKE], False, "failed", "error: its GPU broke"),
        ([*BEGINNING, BROKE, BROKE | {"error": "exit code 1"}], False, "failed", "error: its GPU broke"),
        (BEGINNING, False, "killed", "Ended without saving"),
        (BEGINNING, False, "killed", "or its disk took no more events"),
        ([STARTED, {"event": "ended", "exit_code": 0}], False, "ended", "Stopped, with nothing to save"),
    ],
)
def test_each_state_has_plain_words(mini, tmp_path, events, is_running, state, words):
    peer = peer_with(tmp_path, events, mini)
    if is_running:
        with running(peer):
            standing = Standing.of(peer)
    else:
        standing = Standing.of(peer)
    assert standing.state == state
    assert words in state_in_words(standing)


def test_a_peer_that_is_to_start_later_waits_and_a_bootstrap_peer_helps(tmp_path):
    with running(peer_with(tmp_path / "late", [STARTED], start_after_s=600.0)) as peer:
        assert Standing.of(peer).state == "postponed"
    again = {"event": "again", "reason": "memory ran out", "until": 1e9}
    with running(peer_with(tmp_path / "again", [*BEGINNING, *epoch(3), LEFT, again])) as peer:
        assert Standing.of(peer).state == "postponed", "its supervisor waits"
    with running(peer_with(tmp_path / "bootstrap", [STARTED, CONNECTED], role="bootstrap")) as peer:
        assert Standing.of(peer).state == "helping"
        seen(tmp_path / "bootstrap", None, at_epoch=12)
        assert state_in_words(Standing.of(peer)) == "Helping 3 trainers and newcomers to find each other"
        assert line_of(Standing.of(peer)) == "12/60 · 3 peers"


def test_an_epoch_whose_samples_are_all_computed_is_averaged(mini, tmp_path):
    with running(peer_with(tmp_path, [*BEGINNING, *epoch(10)], mini)) as peer:
        seen(tmp_path, 192, at_epoch=10)
        assert Standing.of(peer).state == "averaging"
        seen(tmp_path, 192, at_epoch=9)  # what it saw before the epoch ended
        assert Standing.of(peer).state == "training"
        seen(tmp_path, 48, at_epoch=10)
        assert Standing.of(peer).done == 0.25


def test_the_line_says_epoch_loss_peers_share_samples_and_time_left(mini, tmp_path):
    earlier = [*BEGINNING, *epoch(3, samples=1500), LEFT | {"samples": 1904}]
    with running(peer_with(tmp_path, [*earlier, *BEGINNING, *epoch(10), *epoch(11), *epoch(12)], mini)) as peer:
        standing = Standing.of(peer)
        assert line_of(standing) == "12/60 · loss 1.43 · 3 peers · yours 31% · 2,192 samples · 5 min left"
    assert "left" not in line_of(Standing.of(peer)), "it does not run any more"


def test_an_update_that_was_not_averaged_raises_nobodys_share(mini, tmp_path):
    alone = [epoch(13)[0] | {"shares": {"id0": 1.0}, "counted": {"id0": 31.0}, "error": "nobody came"}, epoch(13)[1]]
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(12), *alone], mini)
    assert line_of(Standing.of(peer)) == "13/60 · loss 1.43 · 3 peers · yours – (not averaged) · 192 samples"
    assert "The update of epoch 12 holds your gradient alone." in panel_html(peer)
    assert "Yours were 31% of the averages" in cards_html(peer, mini)
    assert "yours" not in line_of(Standing.of(peer_with(tmp_path / "new", BEGINNING, mini))), "it has made none"


def test_there_is_no_time_left_at_the_end_and_a_limit_of_ones_own_comes_first(mini, tmp_path):
    done = [*BEGINNING, *epoch(59), *epoch(60)]
    for number, (events, is_running) in enumerate([(done, True), ([*done, LEFT | {"epoch": 60}], False)]):
        peer = peer_with(tmp_path / str(number), events, mini)
        if is_running:
            with running(peer):
                assert Standing.of(peer).seconds_left is None
        assert "left" not in line_of(Standing.of(peer))
    with running(peer_with(tmp_path / "limited", [*BEGINNING, *epoch(10), *epoch(11)], mini, max_minutes=3.0)) as peer:
        assert Standing.of(peer).seconds_left == pytest.approx(60 * 3 - 57)


def test_totals_are_over_all_starts_of_a_folder(mini, tmp_path):
    first = [*BEGINNING, *epoch(10, 100), *epoch(11, 100), LEFT | {"samples": 230}, {"event": "ended", "exit_code": 0}]
    killed = [*BEGINNING, *epoch(12, 50)]
    with running(peer_with(tmp_path, [*first, *killed, *BEGINNING, *epoch(13, 7)], mini, ago_s=25.0)) as peer:
        totals = Standing.of(peer).totals
        assert (totals.starts, totals.samples, totals.epochs) == (3, 230 + 50 + 7, 4)
        assert totals.seconds == pytest.approx(6 + 2 + 25 - 19)
        assert totals_in_words(Standing.of(peer)).startswith("287 samples, 4 epochs, ")
        assert totals_in_words(Standing.of(peer)).endswith("in 3 starts")


def test_samples_of_the_epoch_under_way_count_as_the_peer_last_told_them(mini, tmp_path):
    with running(peer_with(tmp_path, [*BEGINNING, *epoch(10, 100), LEFT, *BEGINNING], mini)) as peer:
        for started_at, samples in (time.time() - 3600, 300), (time.time(), 348):  # the first is of the start before
            seen(tmp_path, 48, at_epoch=12, told={"samples": 48, "compute_s": 31.0, "started_at": started_at})
            assert Standing.of(peer).totals.samples == samples
            assert f"<b>{samples}</b>your samples" in panel_html(peer)
        assert Standing.of(peer).totals.compute_s == 31.0
        with open(tmp_path / "events.jsonl", "a") as file:
            file.writelines(json.dumps({"time": time.time(), **event}) + "\n" for event in epoch(13, 40))
        assert [each.totals.samples for each in Standing.after_epochs(peer)] == [340], "a line is of its epoch's end"
        assert Standing.of(peer).totals.samples == 348
    assert Standing.of(peer).totals.samples == 340, "it ended without saving"
    done = Standing.of(peer_with(tmp_path, [*BEGINNING, LEFT | {"compute_s": 31.0}], mini)).totals
    assert (done.samples, done.compute_s) == (300, 31.0)


def test_samples_that_are_in_no_update_are_told_apart(mini, tmp_path):
    lost, kept = LEFT_OUT | {"samples": 96}, LEFT_OUT | {"samples": 40, "counts_in": 11}
    peer = peer_with(
        tmp_path, [*BEGINNING, *epoch(10, 100), lost, *epoch(11, 100), kept, LEFT | {"samples": 200}], mini
    )
    assert totals_in_words(Standing.of(peer)).startswith(
        "200 samples (96 of them in no update of the others), 2 epochs"
    )


@pytest.mark.parametrize("is_running", [True, False])
def test_a_clock_that_was_set_back_hides_nothing_and_makes_no_time_negative(mini, tmp_path, is_running):
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(10)], mini, ago_s=-3600.0)
    log = EventLog(tmp_path)
    for event in epoch(11):
        log.write(**event)  # an hour before the peer joined, by the clock
    seen(tmp_path, 48, at_epoch=11)
    with running(peer) if is_running else contextlib.nullcontext():
        standing = Standing.of(peer)
        assert (standing.epoch, standing.swarm.epoch) == (11, 11)
        assert standing.totals.seconds == 0.0
        assert totals_in_words(standing) == "192 samples, 2 epochs, 0 s"
        assert standing.done == (0.25 if is_running else None)


def test_what_was_seen_long_ago_is_not_told_as_if_it_were_so_now(mini, tmp_path):
    helper = peer_with(tmp_path / "helper", [STARTED, CONNECTED], mini, role="bootstrap", ago_s=900.0)
    trainer = peer_with(tmp_path / "ada", [*BEGINNING, *epoch(10)], mini, ago_s=900.0)
    file, now, looked = io.StringIO(), time.time(), "Last looked for the others 2 min ago"
    lines = Lines(file)
    with running(helper), running(trainer):
        for age, is_old in (5.0, False), (OLD_LOOK_S - 5, False), (120.0, True), (1.0, False):
            seen(helper.folder, None, at_epoch=12, time=now - age)
            seen(trainer.folder, 48, at_epoch=10, time=now - age)
            lines(helper)
            standing = Standing.of(helper)
            assert (state_in_words(standing) == looked) == is_old
            assert ("ada, bob, eve" in helped_line(standing)) != is_old
            for each in helper, trainer:
                console = Console(width=90, file=io.StringIO(), record=True)
                console.print(panel(Standing.of(each)))
                shown = console.export_text()
                assert shown.count(looked) == is_old
                assert ("ada, bob, eve" in shown) != is_old
                assert panel_html(each).count(looked) == is_old
    told = "12/60 · 3 peers · together 21 samples a second: ada, bob, eve"
    assert file.getvalue().splitlines()[1:] == [told, f"12/60 · 3 peers · {looked}", told]
    assert looked not in state_in_words(Standing.of(trainer)), "it has ended"


def test_a_peer_that_runs_tells_until_when_its_volunteers_proof_of_identity_counts(mini, tmp_path):
    peer, file = peer_with(tmp_path, [*BEGINNING, *epoch(10)], mini), io.StringIO()
    told = f"Your proof of identity counts until {moment(time.time() + 7 * 86_400)}; then the peer leaves"
    for until in None, time.time() + 7 * 86_400:
        note_proof(tmp_path, until)
        is_told = until is not None
        with running(peer):
            Console(width=90, file=file).print(panel(Standing.of(peer)))
            shown = panel_html(peer), file.getvalue(), describe_peer(peer)
            assert [told in each for each in shown] == [is_told] * 3
    assert told not in describe_peer(peer), "it has ended"


def test_times_are_rounded_to_what_matters():
    seconds = 0.4, 59.4, 59.6, 299, 3599, 3 * 3600 + 61, 26 * 3600, 75 * 3600
    told = "0 s", "59 s", "1 min", "5 min", "1 h 0 min", "3 h 1 min", "1 day 2 h", "3 days 3 h"
    assert tuple(map(duration, seconds)) == told
