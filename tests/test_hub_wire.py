"""What goes wrong on demand between huggingface_hub and the stand-in for the Hub, and what the log says of it."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session

from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault

WEIGHTS = bytes(range(256)) * 1000


@pytest.fixture
def api(hub, monkeypatch) -> HfApi:
    """The client of ada, which tries again without waiting."""
    hub.users["hf_ada"] = User("ada")
    monkeypatch.setattr("time.sleep", lambda _: None)
    return HfApi(endpoint=hub.url, token="hf_ada")


@pytest.fixture
def link(hub) -> str:
    """The address of a regular file, which is sent without a detour."""
    hub.add("ada/run", {"text.txt": b"0123456789" * 5000})
    return f"{hub.url}/ada/run/resolve/main/text.txt"


@pytest.mark.parametrize("code", [401, 403, 404, 500])
def test_a_fault_is_a_status(hub, link, code):
    hub.faults = [Fault("GET /ada/run/", times=1, status=code)]
    assert get_session().get(link).status_code == code
    assert get_session().get(link).status_code == 200
    assert [request.status for request in hub.requests("text.txt")] == [code, 200]


def test_too_many_requests_and_a_busy_hub_are_tried_again(hub, api):
    hub.add("ada/run", {"a.txt": b"a"})
    hub.faults = [Fault("/tree/", times=1, status=429, retry_after=7), Fault("/tree/", times=2, status=503)]
    assert len(list(api.list_repo_tree("ada/run"))) == 1
    assert [request.status for request in hub.requests("/tree/")] == [429, 503, 503, 200]


def test_a_fault_ends_with_its_seconds(hub, link):
    hub.faults = [Fault(seconds=0, status=500)]
    assert get_session().get(link).status_code == 200


def test_a_download_that_is_cut_goes_on_where_it_was(hub, api, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # what is in hand is lost
    hub.add("ada/run", {"a.bin": WEIGHTS})
    hub.faults = [Fault("GET /_cdn/", times=1, cut_after=100_001)]
    assert Path(hf_hub_download("ada/run", "a.bin")).read_bytes() == WEIGHTS
    first, second = hub.requests("GET /_cdn/")
    assert first.sent == 100_001
    assert second.range == "bytes=100000-"
    assert second.sent == len(WEIGHTS) - 100_000


def test_a_cut_body_is_an_error_of_the_connection(hub, link):
    hub.faults = [Fault(cut_after=10)]
    with pytest.raises(httpx.RemoteProtocolError, match="received 10 bytes, expected 50000"):
        get_session().get(link)


def test_an_upload_that_is_cut_is_sent_again(hub, api):
    api.create_repo("ada/run")
    hub.faults = [Fault("^PUT", times=1, cut_after=1000)]
    api.upload_file(repo_id="ada/run", path_or_fileobj=WEIGHTS, path_in_repo="a.bin")
    assert [request.received for request in hub.requests("^PUT")] == [1000, len(WEIGHTS)]


def test_a_hub_may_close_without_an_answer(hub, link):
    hub.faults = [Fault(times=1, silent=True)]
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        get_session().get(link)
    assert get_session().get(link).status_code == 200


def test_a_link_expires(hub, api):
    hub.add("ada/run", {"a.bin": WEIGHTS})
    hub.signed_s = -1
    with pytest.raises(HfHubHTTPError) as refused:
        hf_hub_download("ada/run", "a.bin")
    assert refused.value.response.status_code == 403
    hub.signed_s = 60
    assert Path(hf_hub_download("ada/run", "a.bin")).read_bytes() == WEIGHTS


def test_a_download_may_be_short_or_damaged(hub, api, link):
    hub.faults = [Fault("^GET", times=1, drop_last=7), Fault("^GET", times=1, damaged=True)]
    with pytest.raises(OSError, match="should be of size 50000 but has size 49993"):
        hf_hub_download("ada/run", "text.txt")
    assert get_session().get(link).content[:1] == bytes([ord("0") ^ 0xFF])


def test_delays_trickles_and_rates_take_their_time(hub, link):
    """The client gives up, which shows that it waited; without a limit it does not."""
    for fault in Fault(delay_s=60), Fault(rate=10):
        hub.faults = [fault]
        with pytest.raises(httpx.TimeoutException):
            get_session().get(link, timeout=0.2)
    hub.faults, hub.rate = [], 10
    with pytest.raises(httpx.TimeoutException):
        get_session().get(link, timeout=0.2)


def test_a_hub_that_is_away_refuses_connections_and_comes_back_with_its_files(hub, api, link):
    with hub.away():
        with pytest.raises(httpx.ConnectError):
            get_session().get(link)
        with pytest.raises(LocalEntryNotFoundError):
            hf_hub_download("ada/run", "text.txt")
    assert Path(hf_hub_download("ada/run", "text.txt")).stat().st_size == 50_000
