"""The order of rows: each once a pass, wherever one begins, mixed across row groups, and the same for ever."""

import json
import signal
import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from dalle_lib.streaming import CodeRow, CodesFormat, Manifest, Receipt, stream_codes, write_codes
from dalle_lib.streaming.order import GROWTH, MAX_GROUPS, Order

FORMAT = CodesFormat(grid=3, codebook_size=50, vqgan_sha256="a" * 64)
GROUPS = [7, 0, 5, 11, 7, 3, 7]


def drawn(order: Order, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the row group, and the row in it, of each place from `start` to `stop`."""
    found, sizes = [], np.asarray(GROUPS)
    for position in range(start, stop):
        window = order.window_at(position)
        place = int(window.rows[position - window.start])
        for group in window.groups:
            if place < sizes[group]:
                found.append((group, place))
                break
            place -= int(sizes[group])
    return found


def test_each_pass_holds_each_row_once_and_begins_anywhere():
    order = Order(GROUPS, 1000, seed=3)
    everything = sorted((group, row) for group, rows in enumerate(GROUPS) for row in range(rows))
    passes = [drawn(order, number * order.rows, (number + 1) * order.rows) for number in range(30)]
    assert all(sorted(one) == everything for one in passes)
    assert passes[0] != passes[1]
    assert drawn(Order(GROUPS, 1000, seed=3), 57, 90) == [row for one in passes for row in one][57:90]
    assert drawn(Order(GROUPS, 1000, seed=4), 0, order.rows) != passes[0]


def test_windows_grow_with_what_was_drawn_and_never_beyond_their_limits():
    order, position = Order([10] * 500, 5000, seed=0), 0
    while position < 15_000:
        window = order.window_at(position)
        assert window.start == position
        assert len(window.groups) == 1 or len(window.rows) <= GROWTH * position
        assert len(window.groups) <= MAX_GROUPS
        position = window.stop
    assert len(order.window_at(10_000).groups) == MAX_GROUPS
    assert len(Order([10] * 500, 500 * 2**24, seed=0).window_at(10_000).groups) == 2


def test_the_order_of_a_seed_is_the_same_for_ever():
    """Receipts name rows by it: where it changes, those of old versions can no longer be checked."""
    assert drawn(Order(GROUPS, 1000, seed=0), 1000, 1008) == ORDER_OF_SEED_0


ORDER_OF_SEED_0 = [(2, 4), (6, 1), (2, 2), (0, 3), (3, 10), (3, 0), (0, 0), (3, 9)]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "codes"
    folder.mkdir()
    for part in range(3):
        rows = [CodeRow(f"{i}", (np.arange(9) + i) % 50) for i in range(40 * part, 40 * part + 40)]
        write_codes(folder / f"{part}.parquet", rows, FORMAT, rows_per_group=9)
    Manifest.of_folder(folder, FORMAT).save(folder)
    return folder


def test_readers_of_parts_share_a_pass_without_a_common_row(source):
    parts = [stream_codes(str(source), seed=reader, part=(reader, 4)) for reader in range(4)]
    passes = [[row.caption for row in islice(part, part._order.rows)] for part in parts]
    assert sorted(caption for one in passes for caption in one) == sorted(map(str, range(120)))
    assert all(passes)
    with pytest.raises(ValueError, match="reader number 0 to 3 of 4, but got 4"):
        stream_codes(str(source), seed=0, part=(4, 4))


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_a_stream_goes_on_from_its_state_and_from_no_other(source, reads_ahead):
    whole = [row.caption for row in islice(stream_codes(str(source), seed=5), 400)]
    for place in (0, 1, 8, 9, 119, 120, 121, 250):
        stream = stream_codes(str(source), seed=5)
        list(islice(stream, place))
        state = json.loads(json.dumps(stream.state_dict()))
        again = stream_codes(str(source), seed=5)
        next(again)
        again.load_state_dict(state)
        if reads_ahead:
            again.prefetch()
        assert [row.caption for row in islice(again, 150)] == whole[place : place + 150]
        again.close()
    for wrong in ({}, {**state, "seed": 6}, {**state, "data": "b" * 64}, {**state, "position": -1}):
        with pytest.raises(ValueError, match=r"state|CodeStream\.state_dict"):
            again.load_state_dict(wrong)


def test_a_receipt_gives_its_rows_again_to_anybody(source):
    stream = stream_codes(str(source), seed=9, part=(1, 2))
    list(islice(stream, 33))
    start = stream.position
    rows = [row.caption for row in islice(stream, 50)]
    receipt = Receipt(**json.loads(json.dumps(vars(stream.receipt(start)))) | {"part": (1, 2)})
    assert receipt == stream.receipt(start)
    other = stream_codes(str(source), seed=1)
    assert [row.caption for row in other.draw(receipt)] == rows
    assert other.position == 0
    halves = (
        Receipt(receipt.data, 9, (1, 2), start, start + 20),
        Receipt(receipt.data, 9, (1, 2), start + 20, receipt.stop),
    )
    assert halves[0].joined(halves[1]) == receipt
    assert halves[1].joined(halves[0]) is None
    with pytest.raises(ValueError, match="one of the data bbbb"):
        next(other.draw(Receipt("b" * 64, 9, (1, 2), 0, 1)))


READER = """
import json, os, signal, sys
from itertools import islice
from dalle_lib.files import replace_file
from dalle_lib.streaming import stream_codes

source, state, kill_after = sys.argv[1:]
stream = stream_codes(source, seed=2)
rows = []
if os.path.exists(state):
    saved = json.load(open(state))
    stream.load_state_dict(saved["stream"])
    rows = saved["rows"]
share = len(rows) + 30 if float(kill_after) >= 0 else None
stream.prefetch()
while len(rows) < 1800:
    rows += [row.caption for row in islice(stream, 3)]
    with replace_file(state) as unfinished:
        unfinished.write_text(json.dumps({"stream": stream.state_dict(), "rows": rows}))
    print(len(rows), flush=True)
    if len(rows) == share:
        signal.pause()  # for who is to kill it, and may come late: the next ones have rows left
"""


def test_a_reader_that_is_killed_50_times_neither_loses_nor_repeats_a_row(source, tmp_path):
    """What it saves, the rows that it has used and its place, is what a trainer saves: its weights and its place."""
    state, expected = tmp_path / "state.json", [row.caption for row in islice(stream_codes(str(source), seed=2), 1800)]
    rng = np.random.default_rng(0)
    killed = _forks_of_a_warm_reader(source, state, kills=50, rng=rng)
    assert killed == 50
    rows = json.loads(state.read_text())["rows"]
    assert rows == expected
    assert set(Counter(rows).values()) == {15}


FORKS = """
import os, signal, sys, time
import dalle_lib.streaming.stream, dalle_lib.files
code, args = sys.argv[1], sys.argv[2:4]
for line in sys.stdin:  # the imports are made once, and each reader is a process of its own
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        sys.argv = ["reader", *args, line]
        exec(code)
        os._exit(0)
    os.close(write)
    kill_after = float(line)
    seen = os.fdopen(read)
    if kill_after >= 0:
        seen.readline()
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    else:
        for _ in seen:
            pass
    print(os.waitpid(child, 0)[1], flush=True)
"""


def _forks_of_a_warm_reader(source, state, kills, rng) -> int:
    """Let readers go on from `state` one after the other; kill the first `kills`, and return how many were killed."""
    delays = [f"{delay}\n" for delay in rng.uniform(0, 0.006, kills)] + ["-1\n"]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, READER, str(source), str(state)],
        input="".join(delays),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    statuses = [int(line) for line in done.stdout.split()]
    assert statuses[-1] == 0, done.stderr
    return sum(status == signal.SIGKILL for status in statuses)
