"""The Hub away for an hour, a full disk, a flood: the monitor goes on, makes it good, and says what happened."""

import threading
from contextlib import closing

import pytest
import torch
from full_disk import full_disk
from statuses import peer_status

from dalle_lib.checkpoint import save_tensors
from dalle_lib.files import MAX_RECORD_BYTES
from dalle_lib.monitor import own_problems
from dalle_lib.monitor.alarms import MAX_APART, note, problems
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.crediting import MAX_STARTS_OF_ONE
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.monitor import Monitor, Watch
from dalle_lib.monitor.observing import MAX_STARTS, Observer
from dalle_lib.monitor.own_problems import OwnProblems
from dalle_lib.monitor.published import fitted, publish, status_of
from dalle_lib.monitor.steward import Steward
from dalle_lib.monitor.uploading import Uploader
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run.newest import LATEST, STATUS
from dalle_lib.swarm.peer.looks import shown
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.status import MAX_SHOWN, SwarmStatus

BEGAN = 1_790_000_000.0


def status_at(second, peers, **told):
    return SwarmStatus(
        time=BEGAN + second, epoch=5, total_epochs=99, samples_in_epoch=None, target_batch_size=96, peers=peers, **told
    )


@pytest.fixture
def database(tmp_path):
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as opened:
        yield opened


def alarms(mini, database) -> dict[str, tuple[str, bool]]:
    """Return what is told of each kind of problem, and whether it is over."""
    told = status_of(mini, database, BEGAN)["alarms"]
    return {alarm["kind"]: (alarm["told"], alarm["until"] is not None) for alarm in told}


class Hour(threading.Event):
    """Waits for nothing, and tells `passed` how long it has waited in all."""

    def __init__(self, passed) -> None:
        super().__init__()
        self.waited_s, self.passed = 0.0, passed

    def wait(self, timeout):
        self.waited_s += timeout
        self.passed(self.waited_s)


def test_what_came_while_the_hub_was_away_for_an_hour_is_there_afterwards(mini, hub, tmp_path, monkeypatch):
    hub.users["hf_ada"] = User("ada", {"crew": "write"})
    run, told, tries = Uploader._run, [], []
    monkeypatch.setattr(Uploader, "_run", lambda self: None)
    folder, file = tmp_path / "monitor", tmp_path / "monitor.sqlite"
    with closing(MonitorDatabase(file)) as database:
        sends = Uploader("crew/kept", tmp_path, folder, file, "hf_ada", say=told.append)
        own = OwnProblems(folder)

        def make(epoch):
            folder_of(folder, epoch).mkdir(parents=True)
            for name in "model", "optimizer":
                save_tensors(
                    folder_of(folder, epoch) / f"{name}.safetensors", {"a": torch.full((9,), float(epoch))}, {}
                )
            note_new(folder, database)

        def passed(waited_s):
            tries.append(waited_s)
            note(own.now(None, database, sends.problem), database, BEGAN + waited_s)
            if waited_s < 3600:
                assert alarms(mini, database)["upload"][0].startswith("not sent to the Hub: ")
                make(100 + len(tries))
            elif away:
                away.pop().__exit__(None, None, None)
            else:
                sends._stop.set()

        make(100)
        away = [hub.away()]
        away[0].__enter__()
        sends._stop = Hour(passed)
        run(sends)
        assert database.count("SELECT COUNT(*) FROM checkpoints WHERE revision IS NULL") == 0
        files = hub.store.repositories["crew/kept"]["commits"][-1]["files"]
        newest = max(row["epoch"] for row in database.rows("SELECT epoch FROM checkpoints"))
        assert f'"epoch": {newest}' in hub.store.blob(files[LATEST]["sha256"]).read_text()
        assert sum(name.endswith("model.safetensors") for name in files) == newest - 99
        assert alarms(mini, database)["upload"][1], "it is over"
    assert len(tries) < 12, "who is away is not asked again and again"
    assert sum("tried again" in line for line in told) == 1


def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again(mini, database, tmp_path, monkeypatch):
    told, peer = [], Peer(tmp_path / "monitor")
    peer.folder.mkdir()
    monitor = Monitor("emoji-mini", tmp_path, lambda: peer, say=told.append)
    monkeypatch.setattr(Steward, "_run", lambda self: None)
    steward = Steward(mini, "emoji-mini", tmp_path, peer.folder, tmp_path / "monitor.sqlite")
    watch = Watch(peer, database, Observer(database), OwnProblems(peer.folder), steward)

    def look(second, may_write=True):
        if may_write:
            ada = peer_status("A", "ada", started_at=BEGAN, compute_s=float(second))
            status_at(second, [ada]).write(peer.folder)
        monitor._look(watch)
        monitor._publish(watch, is_history_due=True)

    look(60)
    before = (tmp_path / STATUS).read_text()
    status_at(120, [peer_status("A", "ada", started_at=BEGAN, compute_s=120.0)]).write(peer.folder)
    with full_disk():
        look(120, may_write=False)
        look(120, may_write=False)
    assert (tmp_path / STATUS).read_text() == before, "whole, and the last that could be written"
    assert len(told) == 1
    assert told[0].startswith("Problem: the monitor cannot write: ")
    look(180)
    assert not alarms(mini, database)["disk"][1]
    assert database.row("SELECT SUM(compute_s) AS s FROM credits")["s"] == 180
    monkeypatch.setattr(own_problems, "CALM_S", 0.0)
    look(240)
    assert alarms(mini, database)["disk"][1], "it is over, and still told"
    assert len(told) == 1


def test_little_room_is_told_while_that_can_still_be_written(database, tmp_path, monkeypatch):
    (tmp_path / "monitor").mkdir()
    own = OwnProblems(tmp_path / "monitor")
    assert own.now(None, database, "") == []
    database.insert("checkpoints", epoch=5, made=BEGAN, bytes=10**18)
    (problem,) = own.now(None, database, "")
    assert problem.kind == "disk"
    assert "needs 2,000,000,000,000" in problem.told


def test_why_no_checkpoint_is_taken_and_who_lied_is_told_until_the_next_one(database, tmp_path):
    log, own = EventLog(tmp_path), OwnProblems(tmp_path)

    def told():
        return [(problem.kind, problem.subject, problem.told) for problem in own.now(None, database, "")]

    log.write("problem", peer="", kind="state", problem="no peer gave a state")
    assert told() == [], "a donor may just have left"
    log.write("problem", peer="", kind="state", problem="no peer gave a state")
    assert told() == [("state", "", "no peer gave a state")]
    log.write("problem", peer="", kind="donors", problem="the states of the donors are apart")
    assert told() == [("donors", "", "the states of the donors are apart")]
    log.write("problem", peer="Qm", problem="it sends noise")
    log.write("checkpoint", epoch=7, folder="epoch-0000007", donors=["A", "B"], difference=0.01, refused=["M"])
    ((kind, subject, words),) = told()
    assert (kind, subject) == ("donors", "M")
    assert "epoch 7" in words
    log.write("checkpoint", epoch=8, folder="epoch-0000008", donors=["A", "B"], difference=0.01, refused=[])
    assert told() == []


def crowd(count, hour=0):
    """Return peers that nobody has seen before, with the longest names, all far apart."""
    return [
        peer_status(
            f"{hour}-{number:0120}", "𝒳" * 58 + f"{number:06}", epoch=9 * number, team="𝒳" * 40, hardware="𝒳" * 60,
            started_at=BEGAN + number, compute_s=1e9,
        )
        for number in range(count)
    ]  # fmt: skip


def test_of_a_flood_a_bounded_part_is_looked_at_and_who_was_there_stays(tmp_path):
    honest = [peer_status(f"zz{i}", f"zz{i}") for i in range(40)]
    seen = shown(honest, frozenset())
    assert seen == honest
    seen = shown([*crowd(10_000), *honest], frozenset(peer.peer_id for peer in seen))
    assert len(seen) == MAX_SHOWN
    assert seen[-40:] == honest
    status_at(0, seen, not_shown=9_040).write(tmp_path)
    assert (tmp_path / STATUS).stat().st_size < MAX_RECORD_BYTES / 4
    assert SwarmStatus.read(tmp_path).not_shown == 9_040


def test_a_flood_fills_neither_data_base_nor_status_nor_alarms(mini, database, tmp_path):
    observer, told = Observer(database), []
    for look in range(2):
        status = status_at(60 * look, shown(crowd(5000, look), frozenset()), not_shown=4000)
        observer.note(status)
        told += note(list(problems(status, database)), database, status.time)
    assert database.count("SELECT COUNT(*) FROM starts") == MAX_STARTS
    assert publish(tmp_path, STATUS, fitted(status_of(mini, database, status.time))) < 200_000
    assert {"flood", "split"} <= {problem.kind for problem in told}
    assert len(told) <= 2 + MAX_APART
    later = status_at(7200, [peer_status("A", "ada", started_at=BEGAN + second) for second in range(99)])
    observer.note(later)
    assert database.count("SELECT COUNT(*) FROM starts WHERE peer = 'A'") == MAX_STARTS_OF_ONE
