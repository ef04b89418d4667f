"""Whoever holds or serves training data cannot end, hold up or fill a reader: rows are left out, or it says why.

`test_stream_faults.py` has an unlucky network, `test_stream_damage.py` broken shards.
"""

import errno
import json
import math
import os
from dataclasses import replace

import huggingface_hub
import pytest
import served_codes
from served_codes import FORMAT, TOTAL, WHERE, numbers, rest_of_pass, wait_for_late_answers

from dalle_lib.files import BrokenFile
from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.streaming import CaptionTokenizer, Manifest, Receipt, read_codes, stream_codes
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.streaming.fetch import Closed, Refused, WebFiles
from dalle_lib.streaming.pages import MAX_PAGES, decoded_bytes

reader, serve, shards = served_codes.reader, served_codes.serve, served_codes.shards


def leads_to(hub, address: bytes, times: int) -> None:
    """Let the next requests for a shard be answered by an address that is elsewhere."""
    app, left = hub.app, [times]

    async def elsewhere(scope, receive, send):
        if left[0] <= 0 or not scope["path"].endswith(".parquet"):
            await app(scope, receive, send)
            return
        left[0] -= 1
        headers = [(b"location", address), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 302, "headers": headers})
        await send({"type": "http.response.body"})

    hub.app = elsewhere


@pytest.mark.parametrize(
    "address",
    [b"javascript:alert(1)", b"http://[::1", b"file:///etc/passwd", b"http://..../"],
)
def test_a_server_that_leads_to_no_address_costs_no_row(hub, serve, shards, reader, address):
    manifest = serve(shards)
    stream = reader(manifest=manifest.sha256)
    leads_to(hub, address, times=3)
    drawn, left_out = rest_of_pass(stream)
    assert (sorted(drawn), left_out.total()) == (list(range(TOTAL)), 0)


def test_cookies_are_neither_kept_nor_sent_back(hub, serve, shards, reader):
    """A server that sets 60 kB of others in each answer took 60 kB of memory, and of the next request, each time."""
    serve(shards)
    app, came = hub.app, []

    async def with_cookies(scope, receive, send):
        came.extend(value for name, value in scope["headers"] if name == b"cookie")

        async def add(message):
            if message["type"] == "http.response.start":
                cookies = [(b"set-cookie", b"c%d=%b" % (len(hub.log), b"a" * 3000))]
                message = {**message, "headers": [*message["headers"], *cookies]}
            await send(message)

        await app(scope, receive, add)

    hub.app = with_cookies
    assert len(rest_of_pass(reader())[0]) == TOTAL
    assert (came, len(huggingface_hub.get_session().cookies)) == ([], 0)


def test_a_part_that_trickles_ends_with_the_patience(hub, serve, shards, reader, monkeypatch):
    """At a speed just above the slowest, a row group of 128 MiB would take 18 hours."""
    serve(shards)
    stream = reader()
    wait_for_late_answers(monkeypatch)
    monkeypatch.setattr("dalle_lib.rehearsal.hub.wire.PIECE_BYTES", 100)
    for name, value in {"SLOW_BYTES_PER_S": 500, "PATIENCE_S": 0.6}.items():
        monkeypatch.setattr(f"dalle_lib.streaming.fetch.{name}", value)
    hub.faults = [Fault("_cdn", rate=2000)]
    with pytest.raises(ConnectionError, match=r"only [\d,]+ of [\d,]+ bytes came"):
        next(stream)


def test_a_server_that_wants_to_be_asked_at_once_is_not_asked_without_end(hub, serve, shards, reader, monkeypatch):
    serve(shards)
    stream = reader()
    wait_for_late_answers(monkeypatch)
    monkeypatch.setattr("dalle_lib.streaming.fetch.PATIENCE_S", 0.5)
    hub.faults = [Fault(status=503, retry_after=0)]
    hub.log.clear()
    with pytest.raises(ConnectionError, match="503"):
        next(stream)
    assert len(hub.log) <= 11


def test_an_address_without_a_manifest_is_refused(hub):
    with pytest.raises(Refused, match=r"has no manifest\.json, which a data set at an address needs"):
        stream_codes(f"{hub.url}/nothing", seed=1)


@pytest.mark.parametrize("address", ["http://[::1/x", "http://host:port/", "http://a\nb/"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(Refused, match=r"is no address .* Is it right\?"):
        stream_codes(address, seed=1)


def test_a_size_of_5000_digits_is_refused():
    with pytest.raises(Refused, match="does not say how long its files are"):
        WebFiles("http://host")._total({"content-range": f"bytes 0-0/{'9' * 5000}"})


def test_who_asked_to_stay_offline_does_not_wait(hub, serve, shards, reader, monkeypatch):
    serve(shards)
    stream = reader()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        list(stream)


def test_files_that_cannot_be_listed_are_an_error_of_the_network(hub, serve, shards, monkeypatch):
    def cut(*_, **__):
        yield from ()
        raise httpx.ConnectError("cut")

    serve(shards, with_manifest=False)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", cut)
    with pytest.raises(ConnectionError, match=r"files cannot be listed: .* online\? Start again later"):
        stream_codes(WHERE, seed=1)


@pytest.fixture
def folder(shards, tmp_path):
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    Manifest.of_folder(tmp_path, FORMAT).save(tmp_path)
    return tmp_path


def instead(file) -> dict:
    return {
        "a pipe": lambda: os.mkfifo(file),
        "a folder": file.mkdir,
        "a device": lambda: file.symlink_to("/dev/zero"),
        "a link to itself": lambda: file.symlink_to(file),
    }


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device", "a link to itself"])
def test_what_stands_in_a_local_shards_place_costs_its_rows(folder, what):
    (folder / "1.parquet").unlink()
    instead(folder / "1.parquet")[what]()
    drawn, left_out = rest_of_pass(stream_codes(str(folder), seed=1))
    assert (sorted(drawn), left_out.total()) == ([*range(60), *range(120, 180)], 60)


def test_a_shard_that_the_disk_does_not_give_costs_its_rows(folder, monkeypatch):
    def broken(file, mode):
        if file.name == "1.parquet":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open(file, mode)

    stream = stream_codes(str(folder), seed=1)
    monkeypatch.setattr("dalle_lib.streaming.local_files.open", broken, raising=False)
    drawn, left_out = rest_of_pass(stream)
    assert (sorted(drawn), left_out) == ([*range(60), *range(120, 180)], {"row group damaged": 60})


def test_a_manifest_cannot_name_another_machine(folder):
    """In Windows two backslashes do so, and opening the file would tell that machine who this is."""
    manifest = Manifest.parse((folder / "manifest.json").read_bytes(), "")
    replace(manifest, files=(replace(manifest.files[0], name=r"\\host\share\0.parquet"),)).save(folder)
    with pytest.raises(ValueError, match="name of a file in the manifest's folder"):
        stream_codes(str(folder), seed=1)


@pytest.mark.parametrize(
    "wrong",
    [{"position": math.inf}, {"position": 10**400}, {"position": 1.5}, {"position": "3"}, {"drawn": -1},
     {"left_out": {"row group damaged": "x"}}, {"left_out": "abc"}, {"left_out": [["a"]]}],
)  # fmt: skip
def test_a_state_of_nonsense_is_refused_whole(folder, wrong):
    stream = stream_codes(str(folder), seed=1)
    state = stream.state_dict()
    with pytest.raises(ValueError, match=r"expected what CodeStream\.state_dict returned"):
        stream.load_state_dict({**state, **wrong})
    assert stream.state_dict() == state


@pytest.mark.parametrize("wrong", [{"start": -5}, {"start": 9}, {"stop": 2**63}, {"stop": 10**400}])
def test_a_receipt_of_nonsense_is_refused(folder, wrong):
    stream = stream_codes(str(folder), seed=1)
    receipt = Receipt(stream.data.manifest.sha256, 1, (0, 1), 0, 5)
    assert len(list(stream.draw(receipt))) == 5
    with pytest.raises(ValueError, match="expected the receipt of a stream"):
        next(stream.draw(replace(receipt, **wrong)))


def test_a_receipt_without_end_of_rows_that_are_gone_ends(folder):
    stream = stream_codes(str(folder), seed=1)
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(ValueError, match="no readable row in a whole pass"):
        list(stream.draw(Receipt(stream.data.manifest.sha256, 1, (0, 1), 0, 2**62)))
    with pytest.raises(ValueError, match="no readable row in a whole pass"):
        next(stream)


def test_a_stream_goes_on_at_the_last_row_of_a_pass_and_after_2_to_the_62_rows(folder):
    stream = stream_codes(str(folder), seed=1)
    for start in TOTAL - 1, TOTAL * 2**54 - 1:
        stream.load_state_dict({**stream.state_dict(), "position": start})
        last, rest = numbers([next(stream)]), numbers([next(stream) for _ in range(TOTAL)])
        assert sorted(rest) == list(range(TOTAL))
        receipt = stream.receipt(start)
        assert numbers(list(stream.draw(receipt))) == last + rest
        assert json.loads(json.dumps(stream.state_dict()))["position"] == receipt.stop


def test_a_stream_without_its_thread_says_so(folder):
    """A process that is forked after `prefetch` has no such thread, and waited for it without an end."""
    stream = stream_codes(str(folder), seed=1)
    stream.prefetch()
    next(stream)
    stream._ahead._asked.put(None)  # the thread ends, as in a fork
    with pytest.raises(ValueError, match="call prefetch after forking"):
        list(stream)


@pytest.mark.parametrize("how", ["closed", "network"])
def test_rows_of_a_batch_that_was_not_made_come_again(folder, mini, monkeypatch, how):
    """A trainer that is stopped while it waits for rows saves its place, and would skip those that it already had."""

    def batches():
        rows, tokenizer = stream_codes(str(folder), seed=1), CaptionTokenizer(mini.path(mini.tokenizer), 4)
        options = {"batch_size": 50, "codebook_size": 2**16, "code_corruption": 0.1, "caption_dropout": 0.1}
        return TrainingBatches(rows, tokenizer, **options)

    def read(group):
        if stopped.rows.position >= 80:
            stopped.close()
            raise Closed if how == "closed" else ConnectionError
        return fetch(group)

    whole, stopped, again = batches(), batches(), batches()
    fetch = stopped.rows.data.fetch
    monkeypatch.setattr(stopped.rows.data, "fetch", read)
    next(stopped)
    with pytest.raises((StopIteration, ConnectionError)):
        next(stopped)
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    expected = [next(whole) for _ in range(3)]
    for batch in expected[1:]:
        assert next(again).codes.equal(batch.codes)
    assert again.state_dict() == whole.state_dict()


PAGE = bytes([0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 0, 0x15, 0, 0, 0])
"""The header of an empty page of plain values."""


def test_the_headers_of_millions_of_pages_are_not_read():
    """A row group of 128 MiB of them took 75 s to look through, and a window holds up to 16."""
    assert decoded_bytes(PAGE * MAX_PAGES) == 0
    with pytest.raises(ValueError, match="at most 16,384 pages in a column"):
        decoded_bytes(PAGE * (MAX_PAGES + 1))


def test_a_file_of_many_columns_is_not_given_to_arrow(folder, monkeypatch):
    monkeypatch.setattr("dalle_lib.streaming.footer.MAX_COLUMNS", 2)
    with pytest.raises(BrokenFile, match="more than 2 columns"):
        read_codes(folder / "1.parquet")


def test_files_without_a_manifest_have_no_more_row_groups_than_one_may_name(folder, monkeypatch):
    (folder / "manifest.json").unlink()
    monkeypatch.setattr("dalle_lib.streaming.manifest.MAX_GROUPS", 8)
    with pytest.raises(ValueError, match="more than 8 row groups"):
        stream_codes(str(folder), seed=1)
