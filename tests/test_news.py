"""What is told of a peer in lines: where it listens, whom it found or looks for, its epochs, its troubles."""

import contextlib
import io
import sys

import pytest
from peer_files import BEGINNING, CONNECTED, JOINED, LEFT_OUT, LOADED, STARTED, epoch, peer_with, running, seen

from dalle_lib.dashboard import watching
from dalle_lib.dashboard.lately import troubles
from dalle_lib.dashboard.terminal import Lines
from dalle_lib.dashboard.words import news, state_in_words
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.averaging.complaints import RUN
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.standing import Standing


def test_what_was_left_out_of_the_data_is_told_as_it_is_now():
    told = [{"event": "data", "left_out": f"{count} of 900 rows left out ({count} no caption)"} for count in (3, 7)]
    assert troubles([*BEGINNING, *told, *epoch(10)]) == ["Data: 7 of 900 rows left out (7 no caption)."]


def test_coming_back_and_a_first_gradient_that_counts_later_are_no_trouble_and_lost_samples_are():
    away = LEFT_OUT | {"reason": "the others are at epoch 30: took over their state"}
    late = LEFT_OUT | {"samples": 32, "counts_in": 10}
    assert troubles([*BEGINNING, away, late, *epoch(10)]) == []
    (lost,) = troubles([*BEGINNING, away | {"samples": 32}, *epoch(10)])
    assert lost.startswith("32 samples of yours are not in the others' update of epoch 9: the others are at epoch 30")


def test_whose_part_of_the_run_gave_way_is_told_what_is_lost_and_where_it_goes_on_also_if_nothing_of_its_own_is():
    gave_way = LEFT_OUT | {"epoch": 7, "samples": 12, "gave_way": [5, 6], "reason": "it trained apart"}
    cases = {
        "12 of your samples (epochs 5 to 7) are lost. Your peer took over the others' state of epoch 6 and goes on": {},
        "1 of your samples (epoch 7) is lost. Your peer took over the others' state of epoch 6 and goes on":
            {"samples": 1, "gave_way": [7, 6]},
        "none of your samples is lost. Your peer took over the others' state of epoch 6 and goes on": {"samples": 0},
        "none of your samples is lost. Your peer waits to average its parameters with the others', who are in epoch 6":
            {"samples": 0, "is_waiting": True},
    }  # fmt: skip
    for told, change in cases.items():
        (line,) = troubles([*BEGINNING, gave_way | change, *epoch(7)])
        assert line == f"Your part of the run gave way: {told}."


def test_a_computer_that_slept_is_told_so_and_that_its_peer_goes_on():
    woke = {"event": "woke", "time": 1e9, "seconds": 2 * 3600.0 + 1}
    (slept,) = troubles([*BEGINNING, woke, *epoch(10)])
    assert slept.endswith(": this computer slept for 2 h 0 min, or its clock was set. Your peer goes on by itself.")
    (set_back,) = troubles([*BEGINNING, woke | {"seconds": 0.0}])
    assert "this computer had its clock set back" in set_back


def test_who_caused_a_problem_is_named_as_in_the_table_of_peers_and_oneself_as_this_peer_and_the_run_not(
    mini, tmp_path
):
    lies = {"event": "problem", "peer": "id1", "problem": "lies"}
    events = [*BEGINNING, *(lies | {"peer": peer} for peer in ("", "id0", "id1", "id9", RUN))]
    peer = peer_with(tmp_path, events, mini)
    seen(tmp_path, 96, at_epoch=10)
    assert troubles(events, Standing.of(peer).swarm) == [
        "This peer: lies.", "This peer: lies.", "Peer bob (…id1): lies.", "Peer (…id9): lies.",
        "lies.",
    ]  # fmt: skip


COMMANDS = "\x1b]0;named\x07 \x1b[2J\n\x1b]52;c;aGk=\x07\x9b31mred\u202e"


def test_no_text_of_another_peer_commands_the_terminal(mini, tmp_path):
    error = {"event": "failed", "error": f"failed {COMMANDS}"}
    lost = LEFT_OUT | {"samples": 32, "reason": f"late {COMMANDS}"}
    problem = {"event": "problem", "peer": f"peer {COMMANDS}", "problem": f"lies {COMMANDS}"}
    averaged, ended = epoch(10)
    told = troubles([*BEGINNING, averaged | {"error": f"broke {COMMANDS}"}, ended, lost, problem])
    assert len(told) == 3
    told.append(state_in_words(Standing.of(peer_with(tmp_path, [*BEGINNING, error], mini))))
    for line, word in zip(told, ("broke", "late", "lies", "failed"), strict=True):
        assert line.isprintable(), line
        assert rf"{word} \x1b]0;named\x07 \x1b[2J \x1b]52;c;aGk=\x07\x9b31mred\u202e" in line
    assert in_one_line(ValueError(f"no {COMMANDS}")).isprintable()
    assert in_one_line(ValueError("größer · 字 – ok")) == "größer · 字 – ok"


COMPUTING = {
    "event": "computing", "told": "float32, 8 samples at a time",
    "why": "memory ran out with 16 at a time",
}  # fmt: skip


def test_lines_are_printed_once_one_an_epoch(mini, tmp_path):
    file = io.StringIO()
    show = Lines(file)
    peer, log = peer_with(tmp_path, BEGINNING, mini), EventLog(tmp_path)
    with running(peer):
        for new in [], [COMPUTING, *epoch(10), *epoch(11)], [*epoch(60), {"event": "staying"}]:
            for event in new:
                log.write(**event)
            show(peer, "Ctrl+C leaves and saves.")
            show(peer, "Ctrl+C leaves and saves.")
    assert file.getvalue().splitlines() == [
        "Listening on 127.0.0.1:4321, 192.0.2.1:4321.",
        "Joined at epoch 9, found 2 other peers. Computing on cpu.",
        "Ctrl+C leaves and saves.",
        "From start to the first counted gradient: 1 min",
        "Computing on cpu: float32, 8 samples at a time (memory ran out with 16 at a time)",
        "What it means: https://github.com/dalle-lib/dalle-lib/blob/main/docs/troubleshooting.md#fewer-at-a-time",
        "10/60 · loss 1.43 · 3 peers · yours 31% · 96 samples",
        "11/60 · loss 1.43 · 3 peers · yours 31% · 192 samples · 5 min left",
        "60/60 · loss 1.43 · 3 peers · yours 31% · 288 samples",
        "The run is complete; staying until its monitor has the last state.",
    ]


def test_news_tell_who_is_alone_and_who_accepts_no_connections():
    listening, joined = news([CONNECTED | {"addresses": []}, JOINED | {"peers": 1, "device": "cuda:0, cuda:1"}])
    assert listening == "Connecting out only, accepting no connections."
    assert "no other peer is there yet" in joined
    assert "Computing on cuda:0, cuda:1." in joined
    assert "say that this run is complete" in news([JOINED | {"peers": 1, "said_complete": True}])[-1]
    assert len(news([JOINED | {"peers": 1, "said_complete": False}])) == 1


def test_who_trains_alone_in_a_run_that_others_have_begun_is_told_what_that_may_mean():
    def trained(*peers: int) -> list[dict]:
        return [CONNECTED, JOINED | {"peers": 1}, *(epoch(10)[1] | {"peers": count} for count in peers)]

    assert "a peer of another run" in news(trained(1, 1, 1), expects_others=True)[-1]
    for events, expects_others in (trained(1, 1), True), (trained(1, 2, 1), True), (trained(1, 1, 1), False):
        assert "another run" not in "".join(news(events, expects_others=expects_others))


def test_who_looks_for_the_others_is_told_so_and_for_how_long(mini, tmp_path):
    file = io.StringIO()
    show, peer, log = Lines(file), peer_with(tmp_path, [STARTED, LOADED], mini), EventLog(tmp_path)
    with running(peer):
        show(peer)
        assert file.getvalue() == "Looking for the other peers, for at most 60 s.\n"
        log.write(**CONNECTED)
        show(peer)
    assert file.getvalue().count("Looking") == 1
    assert news([STARTED, LOADED], expects_others=False) == []


class Screen(io.StringIO):
    """A terminal, as far as a program asks."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("progress", [io.StringIO(), Screen()], ids=["file", "terminal"])
def test_the_line_for_friends_is_on_standard_output_once_and_progress_is_not(
    progress, mini, tmp_path, monkeypatch, capsys
):
    shown = []
    monkeypatch.setattr(sys, "stderr", progress)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("dalle_lib.dashboard.terminal._no_sign_of_ctrl_c", contextlib.nullcontext)
    monkeypatch.setattr(watching.time, "sleep", lambda _: shown.append(1) or (len(shown) > 2 and stop.close()))
    with contextlib.ExitStack() as stop:
        peer = stop.enter_context(running(peer_with(tmp_path, BEGINNING, mini)))
        watching.watch(peer, invite=lambda addresses: f"Friends: {addresses[0]}")
    assert capsys.readouterr().out == "Friends: /ip4/192.0.2.1/tcp/4321/p2p/id0\n"
    assert ("Friends" in progress.getvalue()) == progress.isatty(), "who looks at a panel sees no file"
    assert "Joined at epoch 9" in progress.getvalue()


def test_a_peer_that_was_started_again_tells_its_epochs_and_what_is_wrong_anew(mini, tmp_path):
    problem = {"event": "problem", "peer": "", "problem": "it was started again"}
    peer, file = peer_with(tmp_path, [*BEGINNING, problem, *epoch(1), *epoch(2)], mini), io.StringIO()
    lines = Lines(file)
    with running(peer):
        for last in 2, 3:
            lines(peer)
            told = file.getvalue()
            assert (told.count(f"\n{last}/60"), told.count("it was started again")) == (1, last - 1)
            EventLog(tmp_path).write("started", pid=1)
            for event in problem, *epoch(3):
                EventLog(tmp_path).write(**event)
