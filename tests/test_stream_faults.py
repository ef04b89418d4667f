"""A stream from the Hub goes on through faults of the network: no row is repeated, none is lost in silence.

What is away for a minute elsewhere is away for a second here: the reader's patience is shortened in proportion.
"""

import contextlib
import logging
import subprocess
import sys
import threading
from collections import Counter

import pytest
import served_codes
from served_codes import KEY, TOTAL, WHERE, numbers, passes, rest_of_pass, wait_for_late_answers

from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.streaming.fetch import MAX_RETRY_AFTER_S, Refused, _retry_after

reader, serve, shards = served_codes.reader, served_codes.serve, served_codes.shards
TOKEN = "hf_madeUpForThisTest"


def away(hub, seconds: float) -> None:
    """Let the server refuse connections for a while."""
    (absence := hub.away()).__enter__()
    threading.Timer(seconds, absence.__exit__, (None, None, None)).start()


NETWORK = {
    "503 for a while": lambda: Fault(times=8, status=503),
    "500, from the storage": lambda: Fault("_cdn", times=4, status=500),
    "too many requests": lambda: Fault(times=2, status=429, retry_after=0),
    "no answer": lambda: Fault(times=4, silent=True),
    "silence": lambda: Fault(times=1, delay_s=1),
    "cut": lambda: Fault("_cdn", times=5, cut_after=3000),
    "cut before it begins": lambda: Fault("_cdn", times=4, cut_after=0),
    "short": lambda: Fault("_cdn", times=3, drop_last=100),
    "trickle": lambda: Fault("_cdn", times=2, rate=4000),
    "expired addresses": lambda: Fault("_cdn", times=3, status=403),
}


@pytest.mark.parametrize("name", ["away", *NETWORK])
def test_a_fault_of_the_network_costs_no_row(hub, serve, shards, reader, monkeypatch, name):
    monkeypatch.setattr("dalle_lib.rehearsal.hub.wire.PIECE_BYTES", 500)
    manifest = serve(shards)

    def fault():
        if name == "away":
            away(hub, 0.7)
        else:
            hub.faults = [NETWORK[name]()]

    drawn, left_out = passes(reader, fault, manifest=manifest.sha256)
    assert (sorted(drawn), left_out) == (list(range(TOTAL)), Counter())
    assert name == "away" or hub.faults[0].times <= 0


def test_faults_are_outlasted_when_a_stream_is_opened(hub, serve, shards, reader):
    manifest = serve(shards)
    hub.faults = [Fault(times=3, status=503), Fault(times=2, silent=True), Fault(times=2, status=429, retry_after=0)]
    assert len(rest_of_pass(reader(manifest=manifest.sha256))[0]) == TOTAL
    away(hub, 0.7)
    assert len(rest_of_pass(reader(manifest=manifest.sha256))[0]) == TOTAL


def test_what_was_cut_goes_on_where_it_broke(hub, serve, shards, reader, monkeypatch):
    monkeypatch.setattr("dalle_lib.rehearsal.hub.wire.PIECE_BYTES", 500)
    wait_for_late_answers(monkeypatch)
    serve(shards)
    rest_of_pass(reader())
    whole = sum(request.sent for request in hub.log)
    hub.log.clear()
    hub.faults = [Fault("_cdn", times=40, cut_after=2500)]
    stream = reader()
    assert len(rest_of_pass(stream)[0]) == TOTAL
    stream.close()
    assert hub.faults[0].times <= 0
    assert sum(request.sent for request in hub.log) < 1.1 * whole


def test_a_server_that_names_a_wait_gets_it(hub, serve, shards, reader, monkeypatch):
    wait_for_late_answers(monkeypatch)
    serve(shards)
    stream, waits = reader(), []
    monkeypatch.setattr(stream.data.files._closed, "wait", waits.append)
    hub.faults = [Fault("1.parquet", times=2, status=429, retry_after=7), Fault("1.parquet", times=1, status=503)]
    assert len(rest_of_pass(stream)[0]) == TOTAL
    assert waits[:2] == [7, 7]
    assert 0.5 <= waits[2] <= 1.5 or waits[2] <= 0.1
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("told", "expected"),
    [("7", 7), ("9" * 400, MAX_RETRY_AFTER_S), ("soon", None), (None, None), ("-1", None),
     ("Mon, 01 Jan 2001 00:00:00 GMT", 0), ("Mon, 01 Jan 9999 00:00:00 GMT", MAX_RETRY_AFTER_S),
     (f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", None)],
)  # fmt: skip
def test_a_wait_is_bounded_whatever_is_told(told, expected):
    assert _retry_after(told) == expected


def test_addresses_that_expire_at_once_end_the_stream_with_a_hint(hub, serve, shards, reader, monkeypatch):
    wait_for_late_answers(monkeypatch)
    serve(shards)
    stream, hub.signed_s = reader(), -1
    with pytest.raises(Refused, match=r"parquet cannot be read: the signed address .* Is this machine's clock right"):
        next(stream)
    assert len(hub.requests("resolve.*parquet")) == len(hub.requests("_cdn")) == 4
    hub.signed_s = 60
    assert len(rest_of_pass(stream)[0]) == TOTAL


def test_patience_ends_and_the_stream_can_go_on_later(hub, serve, shards, reader, monkeypatch):
    serve(shards)
    stream = reader()
    first = numbers([next(stream) for _ in range(30)])
    monkeypatch.setattr("dalle_lib.streaming.fetch.PATIENCE_S", 1)
    hub.faults = [Fault("parquet", status=503)]
    drawn = []
    with pytest.raises(ConnectionError, match=r"online.*start again later"):
        drawn.extend(stream)
    hub.faults = []
    assert sorted(first + numbers(drawn) + rest_of_pass(stream)[0]) == list(range(TOTAL))


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("when", ["opening", "reading"])
def test_a_refusal_stops_at_once_and_says_what_to_do(hub, serve, shards, reader, monkeypatch, caplog, status, when):
    caplog.set_level(logging.DEBUG)
    wait_for_late_answers(monkeypatch)
    serve(shards)
    hub.users[TOKEN] = User("owner")
    stream = reader(token=TOKEN) if when == "reading" else None
    if status == 404:  # the repository is gone: without it, no file is only missing
        hub.store.repositories.pop(KEY)
    else:
        hub.faults = [Fault("resolve", status=status)]
    hub.log.clear()
    with pytest.raises(Refused, match=rf"{status} .*Is the name right\? .*Hub token") as refused:
        next(stream or reader(token=TOKEN))
    assert len(hub.log) == 1
    assert TOKEN not in str(refused.value) + caplog.text


def test_a_server_that_sends_only_whole_files_is_refused(hub, serve, shards, reader):
    serve(shards)
    stream, app = reader(), hub.app

    async def whole(scope, receive, send):
        await app(scope | {"headers": [pair for pair in scope["headers"] if pair[0] != b"range"]}, receive, send)

    hub.app = whole
    hub.log.clear()
    for failing in lambda: next(stream), reader:
        with pytest.raises(Refused, match=r"does not send parts of files .* put the data on the Hub, or download"):
            failing()


LEAVING = """
import logging, sys, threading, time
from dalle_lib.streaming import fetch, stream_codes

logging.disable()
fetch.SILENCE_S = 1.0
stream = stream_codes(sys.argv[1], seed=1)
if sys.argv[2] == "ahead":
    stream.prefetch()
next(stream)
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "closed":
    threading.Timer(0.5, stream.close).start()
    print(len(list(stream)) >= 19)
else:
    threading.Thread(target=list, args=[stream], daemon=True).start()
    time.sleep(0.5)
sys.exit()
"""


@pytest.mark.parametrize("is_away", [False, True], ids=["slow", "away"])
@pytest.mark.parametrize("how", ["ahead", "waiting", "closed"])
def test_a_program_ends_cleanly_while_its_stream_waits_for_the_network(hub, serve, shards, how, is_away):
    serve(shards)
    leaving = subprocess.Popen(
        [sys.executable, "-c", LEAVING, WHERE, how], stdin=-1, stdout=-1, stderr=-1, text=True
    )  # fmt: skip
    with leaving, contextlib.ExitStack() as after:
        after.callback(leaving.kill)
        assert leaving.stdout.readline() == "ready\n"
        hub.faults = [Fault(delay_s=600)]
        if is_away:
            after.enter_context(hub.away())
        out, err = leaving.communicate("\n", timeout=300)
    assert (leaving.returncode, err) == (0, "")
    assert out == ("True\n" if how == "closed" else "")
