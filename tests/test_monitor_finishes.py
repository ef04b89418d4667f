"""A monitor finishes its run at the last epoch: once, with the last state, and it says what it cannot do."""

import json
import math
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from statuses import peer_status
from test_monitor import Clock, snapshot

from dalle_lib.checkpoint import save_model, save_tensors
from dalle_lib.files import sha256_of
from dalle_lib.monitor import steward as stewarding
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.monitor import Monitor, Watch
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.own_problems import OwnProblems
from dalle_lib.monitor.steward import LAST_STATE_S, Steward
from dalle_lib.organizing import finishing
from dalle_lib.organizing.editing import edit_run
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard, initial_model
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.swarm.averaging.donors import Line
from dalle_lib.swarm.peer import last_state, pulling
from dalle_lib.swarm.peer.last_state import LONGEST_S, STAY_S, give_last_state
from dalle_lib.swarm.peer.pulling import Pulled, Puller
from dalle_lib.swarm.process.events import EVENTS, STAYING, EventLog, read_events
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import SwarmStatus

RUN, TOKEN = "crew/photos", "hf_ada"
FIGURES = json.dumps({"held_out_loss": 3.25, "half_width": 0.05, "rows": 9})


def swarm_at(epoch: int, now: float, total: int = 60) -> SwarmStatus:
    ada = peer_status("A", "ada", epoch=epoch, started_at=1.7e9, compute_s=20.0 * epoch, counted=96.0 * epoch)
    return SwarmStatus(
        time=now, epoch=epoch, total_epochs=total, samples_in_epoch=None, target_batch_size=192, peers=[ada]
    )


@pytest.fixture
def watched(mini, tmp_path, monkeypatch):
    """The folder of a run, and the data base of its monitor, which has seen all epochs and has the last state."""
    monkeypatch.setattr(Steward, "_run", lambda self: None)
    run, place = tmp_path / "run", tmp_path / "monitor"
    card = mini.with_changes(name="photos", checkpoint=None)
    card.save(run)
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        observer, now = Observer(database), time.time()
        observer.note(swarm_at(1, now - 1400))
        observer.note(swarm_at(60, now - 60))
        folder_of(place, 60).mkdir(parents=True)
        save_model(folder_of(place, 60) / MODEL, initial_model(mini), 60)
        save_tensors(folder_of(place, 60) / OPTIMIZER, {}, {"epoch": "60"})
        assert note_new(place, database) == [60]
        database.change("UPDATE checkpoints SET figures = :figures", figures=FIGURES)
        yield run, database


def steward_of(run, folder, token=None, **options) -> Steward:
    return Steward(
        RunCard.load(run, token), str(run), folder, folder / "monitor", folder / "monitor.sqlite", token, **options
    )  # fmt: skip


def test_a_run_on_the_hub_is_finished_once_when_the_hub_answers(watched, hub, tmp_path, monkeypatch):
    folder, database = watched
    hub.users[TOKEN] = User("ada", {"crew": "write"})
    publish_run(folder, RUN, TOKEN)
    told = []
    steward = steward_of(RUN, tmp_path, TOKEN, licence="cc-by-4.0", say=told.append)
    with hub.away():
        steward.look(database)
    assert (steward.card.state, told) == ("open", [])
    assert f"It is tried again; its organiser can finish it: dalle-lib run finish {RUN}" in steward.problem
    steward.look(database)
    assert steward.card.state == "open", "the Hub is not asked again and again"
    steward = steward_of(RUN, tmp_path, TOKEN, licence="cc-by-4.0", say=told.append)  # started again
    steward.look(database)
    steward.look(database)
    assert len(told) == 1
    assert (steward.card.state, steward.problem) == ("finished", "")
    card = RunCard.load(RUN, TOKEN)
    assert card.state == "finished"
    assert sha256_of(card.path(card.checkpoint)) == sha256_of(folder_of(tmp_path / "monitor", 60) / MODEL)
    commits = hub.store.repositories[RUN]["commits"]
    assert [commit["title"] for commit in commits][-1] == "The run photos is finished"
    page = hub.store.blob(commits[-1]["files"]["README.md"]["sha256"]).read_text()
    for words in "after 60 of 60 epochs", "| `ada` | 0.3 | 100.0% |", "| 60 | 3.250 ± 0.050 |", "license: cc-by-4.0":
        assert words in page
    monkeypatch.setattr(stewarding, "CARD_EVERY_S", 0.0)
    edit_run(RUN, TOKEN, state="open")
    steward.look(database)
    steward.look(database)
    assert steward.card.state == "open", "its organiser has opened it again"


def test_a_monitor_that_may_not_write_there_says_what_its_organiser_types(watched, hub, tmp_path):
    folder, database = watched
    hub.users |= {TOKEN: User("ada", {"crew": "write"}), "hf_bob": User("bob", {"crew": "read"})}
    publish_run(folder, RUN, TOKEN)
    steward = steward_of(RUN, tmp_path, "hf_bob")
    steward.look(database)
    assert "the Hub did not take the change" in steward.problem
    assert f"dalle-lib run finish {RUN}" in steward.problem
    edit_run(RUN, TOKEN, state="finished")
    steward._next_try = -math.inf
    steward.look(database)
    steward.look(database)
    assert (steward.card.state, steward.problem) == ("finished", ""), "its organiser has done it"


def test_a_folder_is_finished_also_after_a_stop_in_between(watched, tmp_path, monkeypatch):
    run, database = watched
    with monkeypatch.context() as stopped:
        stopped.setattr(finishing, "change_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            steward_of(run, tmp_path).look(database)
    assert (RunCard.load(run).state, (run / MODEL).exists()) == ("open", True)
    steward_of(run, tmp_path).look(database)
    card = RunCard.load(run)
    assert card.state == "finished"
    assert card.path(card.checkpoint).samefile(run / MODEL)
    assert "volunteers have trained together" in (run / "README.md").read_text()


def test_a_crowd_that_claims_the_last_epoch_for_a_while_ends_no_run(watched, tmp_path):
    run, database = watched
    database.change("UPDATE epochs SET ended = :at", at=time.time() - 59 * 3.0 + 120)
    steward = steward_of(run, tmp_path)
    steward.look(database)
    assert (RunCard.load(run).state, steward.problem) == ("open", "")
    database.change("UPDATE epochs SET ended = :at", at=time.time() - 59 * 3.0)
    steward.look(database)
    assert RunCard.load(run).state == "finished"


@pytest.mark.parametrize(("figures", "told"), [(None, "nobody has given its state"), ("{}", "checkpoint is broken")])
def test_without_a_last_state_nothing_ends_and_it_is_told(watched, tmp_path, figures, told):
    run, database = watched
    database.change("UPDATE checkpoints SET figures = :figures, epoch = :epoch", figures=figures,
                    epoch=60 if figures else 50)  # fmt: skip
    database.change("UPDATE epochs SET ended = ended - :wait", wait=LAST_STATE_S)
    steward = steward_of(run, tmp_path)
    steward.look(database)
    assert told in steward.problem
    assert f"dalle-lib run finish {run} --model" in steward.problem
    assert RunCard.load(run).state == "open"


def test_in_a_run_that_is_over_nobody_is_missed(watched, tmp_path):
    run, database = watched
    place, told, began = tmp_path / "monitor", [], time.time()
    monitor, steward = Monitor(str(run), tmp_path, lambda: None, say=told.append), steward_of(run, tmp_path)
    watch = Watch(Peer(place), database, Observer(database), OwnProblems(place), steward)

    def misses_them(minutes: range) -> bool:
        for minute in minutes:
            replace(swarm_at(60, began + 60 * minute), peers=[]).write(place)
            monitor._look(watch)
        return "Problem: nobody trains." in told

    steward.look(database)
    assert not misses_them(range(20))
    steward.card = steward.card.with_changes(state="open")
    assert misses_them(range(20, 22))


def test_the_last_state_is_taken_at_once_whatever_the_schedule(tmp_path, monkeypatch):
    clock, asked = Clock(100), []
    monkeypatch.setattr(pulling, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    swarm_at(5, 1.7e9, total=9).write(tmp_path)
    puller = object.__new__(Puller)

    def pull(earliest, latest):
        asked.append((clock.now_s, earliest, latest))
        swarm_at(9, 1.7e9, total=9).write(tmp_path)
        return Pulled(snapshot(5 if len(asked) == 1 else 9, 1.0), ("A", "B"), 0.0)

    puller.pull, puller.write = pull, lambda _pulled, folder, _aside: folder
    pulling._take_states(puller, PeerSettings(run="x", state_every_s=1800.0), tmp_path, EventLog(tmp_path), clock)
    assert asked == [(1.0, 0, 9), (2.0, 9, 9)]


def test_a_peer_stays_after_the_last_epoch_while_its_state_is_taken(mini, tmp_path, monkeypatch):
    events = EventLog(tmp_path)

    def stayed(card, taken_s=0.0, deadline=math.inf) -> float:
        clock, line = Clock(math.inf), Line()
        now = SimpleNamespace(monotonic=lambda: clock.now_s, time=lambda: clock.now_s)
        monkeypatch.setattr(last_state, "time", now)
        monkeypatch.setattr(Line, "length", property(lambda _: int(clock.now_s < taken_s)))
        give_last_state(card, line, clock, deadline, events)
        return clock.now_s

    kept = mini.with_changes(checkpoints="crew/kept")
    assert stayed(mini) == 0
    assert not (tmp_path / EVENTS).exists()
    assert stayed(kept) == STAY_S + 1
    assert [event["event"] for event in read_events(tmp_path)] == [STAYING]
    assert stayed(kept, taken_s=700) == 700
    assert stayed(kept, taken_s=math.inf) == LONGEST_S
    assert stayed(kept, deadline=20) == 20


def test_a_line_of_newcomers_has_a_length():
    line, newcomer = Line(), PeerID(b"newcomer")
    lengths = [line.length, line.join(newcomer) and line.length, line.leave(newcomer) or line.length]
    assert lengths == [0, 1, 0]
