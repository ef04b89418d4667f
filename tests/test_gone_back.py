"""Where the side that gives way after a cut was ahead, the run goes back: so do its checkpoints, and nothing else."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from statuses import peer_status
from test_monitor_killed import place, puller, state_of  # noqa: F401  (fixtures)
from test_monitor_uploads import checkpoint, monitored, named, uploader  # noqa: F401  (a fixture)

from dalle_lib.monitor.checkpoints import found_in, note_new
from dalle_lib.monitor.drawings import PICTURES, drawings
from dalle_lib.monitor.going_back import go_back
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.own_problems import OwnProblems
from dalle_lib.monitor.published import status_of
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer import pulling
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.peer.taken import go_on, set_aside
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.gone_back import BACK_S, GoneBack, asides_in, place_aside
from dalle_lib.swarm.process.status import SwarmStatus, median_epoch

TOTAL, EPOCH_S = 99, 250
Epochs = Callable[[int], dict[str, int]]
"""The epoch of each peer after so many seconds."""


class Run(threading.Event):
    """A run in seconds that pass as fast as they are waited for: what its peers tell, and the states that they give."""

    def __init__(self, folder, epochs: Epochs, donors: dict[str, float], until_s: int) -> None:
        """The parameters of each of the `donors` all have this value."""
        super().__init__()
        self.folder, self.epochs, self.donors, self.until_s = folder, epochs, donors, until_s
        self.now_s, self.local_epoch, self.main_parameters, self.held = 0, 0, [], None

    def wait(self, timeout):
        self.now_s += int(timeout)
        peers = [peer_status(peer, peer, epoch=epoch) for peer, epoch in self.epochs(self.now_s).items()]
        SwarmStatus(
            time=self.now_s, epoch=median_epoch(peers, {}, TOTAL), total_epochs=TOTAL, samples_in_epoch=None,
            target_batch_size=8, peers=peers,
        ).write(self.folder)  # fmt: skip
        return self.now_s > self.until_s

    def load_state_from_peers(self, _timeout, max_epoch, without):
        offers = {peer: self.epochs(self.now_s)[peer] for peer in self.donors if peer not in without}
        for peer in sorted(offers, key=offers.get, reverse=True):
            if self.local_epoch <= offers[peer] <= max_epoch:
                parameters = [torch.full_like(each, self.donors[peer]) for each in self.main_parameters]
                self.held = Snapshot(offers[peer], parameters, self.statistics)
                return peer
        return None


@pytest.fixture
def take(puller, place, monkeypatch):  # noqa: F811
    """Let an observer that has checkpoints of these epochs take states of a run; return what it has told."""

    def take(written: list[int], epochs: Epochs, donors: dict[str, float], until_s: int = 2 * EPOCH_S) -> list[dict]:
        for epoch in written:
            puller.write(state_of(puller, epoch), place)
        run = Run(place, epochs, donors, until_s)
        run.main_parameters, run.statistics = puller.averager.main_parameters, state_of(puller, 0).snapshot.statistics
        puller.averager, puller.trust = run, Trust()
        monkeypatch.setattr(pulling, "take_snapshot", lambda averager: averager.held)
        monkeypatch.setattr(pulling, "time", SimpleNamespace(monotonic=lambda: run.now_s))
        pulling._take_states(puller, PeerSettings(run="x", state_every_s=1e6), place, EventLog(place), run)
        return read_events(place)

    return take


def at(epoch: int, *peers: str) -> Epochs:
    """Return peers that are all in an epoch, and go on from there."""
    return lambda now_s: dict.fromkeys(peers, epoch + now_s // EPOCH_S)


def test_checkpoints_of_the_side_that_gave_way_are_set_aside_once_the_other_side_goes_on(take, place):  # noqa: F811
    told = take([7, 10, 12], at(8, "ada", "bob", "cem"), {"ada": 1.0, "bob": 1.0})
    assert [(event["event"], event["epoch"]) for event in told] == [("checkpoint", 9)]
    (aside,) = asides_in(place)
    assert told[0]["aside"] == aside.name
    assert list(found_in(place)) == [7, 9]
    assert sorted(each.name for each in aside.iterdir()) == ["epoch-0000010", "epoch-0000012"]
    assert all((each / name).is_file() for each in aside.iterdir() for name in (MODEL, OPTIMIZER)), "nothing is lost"
    assert go_on(place) == 9
    assert all((place / name).samefile(found_in(place)[9] / name) for name in (MODEL, OPTIMIZER))


def test_a_checkpoint_of_the_same_epoch_is_set_aside_and_not_overwritten(take, place):  # noqa: F811
    take([9, 12], at(8, "ada", "bob", "cem"), {"ada": 1.0, "bob": 1.0})
    (aside,) = asides_in(place)
    assert sorted(each.name for each in aside.iterdir()) == ["epoch-0000009", "epoch-0000012"]
    assert list(found_in(place)) == [9]


@pytest.mark.parametrize("claimed", [8, 80], ids=["low", "high"])
def test_two_of_five_users_who_lie_and_give_a_state_set_nothing_aside(take, place, claimed):  # noqa: F811
    def epochs(now_s: int) -> dict[str, int]:
        return at(12, "ada", "bob", "cem")(now_s) | at(claimed, "eve", "mallory")(now_s)

    told = take([10, 12], epochs, {"ada": 1.0, "bob": 1.0, "eve": 2.0, "mallory": 2.0}, until_s=4 * EPOCH_S)
    assert [(event["event"], event["epoch"]) for event in told] == [("checkpoint", 13)]
    assert not asides_in(place)
    assert list(found_in(place)) == [10, 12, 13]


def test_half_of_the_users_who_lie_set_nothing_aside(take, place):  # noqa: F811
    def epochs(now_s: int) -> dict[str, int]:
        return at(20, "ada", "bob")(now_s) | at(8, "eve", "mallory")(now_s)

    assert not take([20], epochs, {"ada": 1.0, "bob": 1.0, "eve": 2.0, "mallory": 2.0})
    assert list(found_in(place)) == [20]


@pytest.mark.parametrize(
    "donors", [{}, {"ada": 1.0}, {"ada": 1.0, "bob": 2.0}], ids=["nobody", "one alone", "two unlike ones"]
)
def test_without_two_donors_who_agree_the_last_checkpoint_stays_and_that_is_told(take, place, donors):  # noqa: F811
    told = take([12], at(8, "ada", "bob", "cem"), donors)
    assert told
    assert all("of epoch 12, which stays, as no two users" in event.get("problem", "") for event in told)
    assert list(found_in(place)) == [12]
    assert not asides_in(place)


@pytest.mark.parametrize("ahead", [4, 3], ids=["at the last checkpoint", "before it"])
def test_a_run_goes_back_to_a_state_of_its_most_users_and_of_no_others(take, place, ahead):  # noqa: F811
    def epochs(now_s: int) -> dict[str, int]:
        return at(8, "ada", "bob", "cem")(now_s) | dict.fromkeys(("deb", "eli"), 8 + ahead)

    told = take([12], epochs, {"ada": 1.0, "bob": 1.0, "deb": 2.0, "eli": 2.0})
    assert [(event["event"], event["epoch"]) for event in told] == [("checkpoint", 9)]


def test_where_honest_peers_are_beyond_the_last_checkpoint_theirs_is_taken(take, place):  # noqa: F811
    def epochs(now_s: int) -> dict[str, int]:  # three slow users, as the median says, and two fast ones
        return at(8, "ada", "bob", "cem")(now_s) | at(12, "deb", "eli")(now_s)

    take([12], epochs, dict.fromkeys(("ada", "bob", "deb", "eli"), 1.0))
    assert list(found_in(place)) == [12, 13]
    assert not asides_in(place)


def test_a_run_goes_back_only_where_it_stays_behind_and_goes_on_there():
    def looks(*epochs: int) -> list[bool]:
        gone_back = GoneBack()
        return [gone_back.look(epoch, 12, number * BACK_S / 2) for number, epoch in enumerate(epochs)]

    assert looks(8, 8, 9, 9) == [False, False, True, True]
    assert not any(looks(8, 8, 8, 8)), "records of the dead, or peers that wait for a state"
    assert not any(looks(8, 8, 11, 8, 9)), "it came back meanwhile"
    assert not any(looks(11, 11, 11, 11)), "the donor of the last one was an epoch ahead"
    assert looks(8, 7, 8, 8) == [False, False, False, True], "whose epoch falls does not go on"


def drop_to(place, epoch: int, database) -> None:  # noqa: F811
    """Do what the monitor's peer does when its run goes back to an epoch."""
    set_aside(place, epoch, place_aside(place, epoch))
    folder = place / "checkpoints" / f"epoch-{epoch:07}"
    folder.mkdir()
    for file in (MODEL, OPTIMIZER):
        (folder / file).write_bytes((next(iter(found_in(place).values())) / file).read_bytes())


def test_the_hub_is_told_of_the_checkpoint_of_the_side_that_goes_on(monitored, hub, monkeypatch):  # noqa: F811
    folder, place, database = monitored  # noqa: F811
    sends = uploader(folder, place, database, monkeypatch)
    (folder / PICTURES).mkdir()
    for epoch in 7, 9, 12:
        checkpoint(place, database, epoch, age_s=2 * BACK_S)
        (folder / PICTURES / f"epoch-{epoch:07}.webp").write_bytes(b"-")
        sends.send(database)
    assert named(hub) == 12
    assert not go_back(folder, place, database)
    drop_to(place, 9, database)
    assert go_back(folder, place, database)
    assert note_new(place, database) == [9]
    sends.send(database)
    assert named(hub) == 9
    assert list(drawings(folder)) == [7]
    assert not go_back(folder, place, database), "what came since is not forgotten"
    checkpoint(place, database, 12)
    sends.send(database)
    assert named(hub) == 12


def test_a_checkpoint_that_was_not_moved_when_the_peer_was_ended_stays_known(monitored):  # noqa: F811
    folder, place, database = monitored  # noqa: F811
    for epoch in 9, 12:
        checkpoint(place, database, epoch, age_s=2 * BACK_S)
    made = found_in(place)[12].stat().st_mtime
    database.change("UPDATE checkpoints SET made = :made WHERE epoch = 12", made=made)
    aside = place / "checkpoints" / f"aside-0000009-{int(time.time() + BACK_S)}"
    aside.mkdir()
    found_in(place)[9].rename(aside / "epoch-0000009")
    assert go_back(folder, place, database)
    assert note_new(place, database) == []
    assert not go_back(folder, place, database)


def test_a_monitor_tells_where_the_run_is_and_compares_no_claims_of_two_parts(monitored, mini):  # noqa: F811
    folder, place, database = monitored  # noqa: F811
    observer, began = Observer(database), time.time() - 20 * BACK_S

    def look(number: int, epoch: int) -> None:
        told = {"epoch": epoch, "counted": 10.0 * number, "samples": 10 * number, "compute_s": 20.0 * number}
        peers = [peer_status(each, each, started_at=began, **told) for each in ("ada", "bob", "cem")]
        observer.note(
            SwarmStatus(
                time=began + 60 * number, epoch=epoch, total_epochs=TOTAL, samples_in_epoch=None,
                target_batch_size=100, peers=peers,
            )
        )  # fmt: skip

    for epoch in range(1, 13):
        look(epoch, epoch)
    for epoch in 7, 12:
        checkpoint(place, database, epoch, age_s=2 * BACK_S)
    look(13, 8)
    look(14, 9)
    assert status_of(mini, database, time.time())["epoch"] == 12
    drop_to(place, 9, database)
    EventLog(place).write("checkpoint", epoch=9, folder="x", donors=["A"], difference=0.0, refused=[], aside="aside-x")
    (problem,) = OwnProblems(place)._checkpoints(database)
    assert (problem.kind, "gone back to epoch 9" in problem.told, "aside-x" in problem.told) == ("back", True, True)
    credits = [tuple(row) for row in database.rows("SELECT * FROM credits")]
    assert go_back(folder, place, database)
    assert [tuple(row) for row in database.rows("SELECT * FROM credits")] == credits
    note_new(place, database)
    look(15, 9)
    told = status_of(mini, database, time.time())
    assert told["epoch"] == 9
    assert [each["epoch"] for each in told["checkpoints"]] == [9, 7]
    assert {row["run_epoch"] for row in database.rows("SELECT run_epoch FROM starts")} == {9}
    look(16, 10)
    assert {row["rounds"] for row in database.rows("SELECT rounds FROM claims WHERE epoch = 10")} == {1}
