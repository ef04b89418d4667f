"""What strangers put on the Hub and send to organisers, and what fails while organisers work: nothing is lost by it."""

import contextlib
import json
from dataclasses import asdict

import pytest
from huggingface_hub import HfApi

from dalle_lib.hub_http import httpx
from dalle_lib.machine import NotEnoughRoom
from dalle_lib.organizing.checking import check_run
from dalle_lib.organizing.commits import Overtaken
from dalle_lib.organizing.editing import edit_run
from dalle_lib.organizing.listing import MAX_OF_ONE, MAX_RUNS, list_runs
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.parts import MAX_PROBLEMS

HF_TOKEN = "hf_madeUpForThisTest"


def test_a_card_of_any_size_is_not_fetched(hub):
    hub.add("mallory/huge", {"run.json": b"{}" + b" " * MAX_CARD_BYTES})
    hub.add("mallory/none", {"README.md": b"hi"})
    with pytest.raises(ValueError, match=r"at most 1,048,576 bytes, but mallory/huge has 1,048,578 bytes"):
        RunCard.load("mallory/huge")
    with pytest.raises(ValueError, match=r"mallory/none on the Hub has no run\.json, so it is no run"):
        RunCard.load("mallory/none")
    assert not hub.requests("GET /mallory/huge/resolve"), "it was fetched"


@pytest.mark.parametrize("wrong", [{"initial_peers": [0] * 300_000}, {f"x{i}": 0 for i in range(50_000)}])
def test_a_card_of_many_mistakes_is_refused_in_few_words(mini, tmp_path, wrong):
    (tmp_path / "run.json").write_text(json.dumps(json.loads(mini.as_text()) | wrong, separators=(",", ":")))
    with pytest.raises(ValueError, match="no valid run card") as refused:
        RunCard.load(tmp_path)
    assert len(str(refused.value)) < 1000 + 100 * MAX_PROBLEMS


def test_a_model_beyond_all_sizes_is_refused_in_few_words(mini):
    sizes = {"dim": 2**20, "depth": 4096, "heads": 2**20, "dim_head": 2**20, "text_vocab": 2**20}
    with pytest.raises(ValueError, match="elements of each tensor") as refused:
        check_run(mini.with_changes(model=asdict(mini.model) | sizes))
    assert len(str(refused.value)) < 1000


@pytest.fixture
def run(tmp_path, mini, hub):
    """The folder of a run that is published as crew/icons."""
    hub.users[HF_TOKEN] = User("ada", {"crew": "write"})
    folder = mini.with_changes(name="icons").save(tmp_path / "icons")
    publish_run(folder, "crew/icons", HF_TOKEN)
    return folder


def test_an_old_copy_of_a_card_is_not_taken_for_the_one_on_the_hub(run, hub):
    paused = edit_run("crew/icons", HF_TOKEN, state="paused")
    assert RunCard.load("crew/icons").state == "paused"
    hub.add("crew/icons", {"run.json": paused.with_changes(state="open", message="STOP").as_text().encode()})
    hub.faults.append(Fault("HEAD ", status=503))
    with pytest.raises(ConnectionError, match=r"as of its newest commit, \w{8}, but got that of \w{8}.*try again"):
        edit_run("crew/icons", HF_TOKEN, state="paused")
    edit_run(run, state="paused")
    with pytest.raises(Overtaken, match=r"as of its newest commit"):
        publish_run(run, "crew/icons", HF_TOKEN)
    hub.faults.clear()
    assert (RunCard.load("crew/icons").state, RunCard.load("crew/icons").message) == ("open", "STOP")


def test_a_commit_whose_answer_is_lost_is_not_told_as_none(run, monkeypatch):
    def lost(api, *told, **more):
        made(api, *told, **more)
        raise httpx.ReadTimeout("no answer")

    made = HfApi.create_commit
    monkeypatch.setattr(HfApi, "create_commit", lost)
    with pytest.raises(ConnectionError, match="Whether it was changed is not known"):
        edit_run("crew/icons", HF_TOKEN, state="paused")
    assert RunCard.load("crew/icons").state == "paused"


@pytest.mark.parametrize("where", ["HEAD /crew", "/commit/"])
def test_a_hub_that_hangs_up_is_away_for_all_who_ask_it(run, hub, where):
    hub.faults.append(Fault(where, silent=True))
    card = RunCard.load(run)
    for ask in (
        lambda: RunCard.load("crew/icons"),
        lambda: RunCard.load("crew/icons").data_source(card.data.train),
        lambda: edit_run("crew/icons", HF_TOKEN, state="paused"),
        lambda: publish_run(run, "crew/icons", HF_TOKEN),
        list_runs,
    ):
        with contextlib.suppress(OSError, Overtaken):
            ask()
    hub.faults.clear()
    assert RunCard.load("crew/icons").state == "open"


def test_one_owner_cannot_fill_the_list_of_runs(run, hub):
    for number in range(MAX_RUNS):
        hub.add(f"mallory/{number}", {"README.md": b"---\ntags:\n- dalle-lib-run\n---\n"})
    listed = [each.repository for each in list_runs()]
    assert (listed[0], len(listed)) == ("crew/icons", 1 + MAX_OF_ONE)


def test_a_run_that_the_disk_has_no_room_for_is_not_fetched(run, hub, monkeypatch):
    card = RunCard.load("crew/icons")
    monkeypatch.setattr("dalle_lib.machine.free_disk", lambda _: 10**6)
    with pytest.raises(NotEnoughRoom, match=r"crew/icons needs 0\.0 GB of disk.*Nothing was downloaded"):
        check_run(card)
    assert not hub.requests("GET /_cdn")


def test_a_run_that_is_to_be_private_is_not_sent_where_everybody_sees_it(run, hub):
    commits = len(hub.requests("/commit/"))
    with pytest.raises(ValueError, match="crew/icons is there already, and everybody sees it"):
        publish_run(run, "crew/icons", HF_TOKEN, private=True)
    assert len(hub.requests("/commit/")) == commits
    publish_run(run, "crew/hidden", HF_TOKEN, private=True)
    publish_run(run, "crew/hidden", HF_TOKEN, private=True)


def test_a_hub_that_takes_calls_and_answers_none_holds_nobody(run, hub, monkeypatch):
    monkeypatch.setattr("dalle_lib.hub_http.HUB_TIMEOUT_S", 0.3)
    hub.faults.append(Fault(delay_s=3))
    for ask in list_runs, lambda: edit_run("crew/icons", HF_TOKEN, state="paused"):
        with pytest.raises(ConnectionError, match="the Hub cannot be asked"):
            ask()
