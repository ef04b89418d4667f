"""A monitor that is killed loses no checkpoint, takes none that is half written, and sends none twice."""

import json
import os
import signal
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from full_disk import full_disk
from PIL import Image

from dalle_lib.checkpoint import save_tensors
from dalle_lib.files import is_disk_full, sha256_of
from dalle_lib.monitor import evaluating, uploading
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import PICTURES
from dalle_lib.monitor.evaluating import Examiner, Figures, Pictures
from dalle_lib.monitor.uploading import Uploader
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run import initial_model
from dalle_lib.run.files import CHECKPOINTS, MODEL, OPTIMIZER
from dalle_lib.run.newest import LATEST
from dalle_lib.swarm.peer import state
from dalle_lib.swarm.peer.build import _lamb
from dalle_lib.swarm.peer.pulling import Pulled, Puller
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.peer.taken import go_on

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12

REPOSITORY, TOKEN = "crew/photos-checkpoints", "hf_ada"


def die(*_args, **_options) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(act) -> int:
    """Begin something in a process of its own, and return the id of that."""
    if (process := os.fork()) == 0:
        try:
            torch.set_num_threads(1)
            act()
        finally:
            os._exit(1)
    return process


def killed(process: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


@pytest.fixture
def puller(mini) -> Puller:
    """What takes states, without peers to take them from."""
    made = object.__new__(Puller)
    made.card, made.model = mini, initial_model(mini)
    made.averager = SimpleNamespace(main_parameters=list(made.model.parameters()))
    return made


def state_of(puller: Puller, epoch: int) -> Pulled:
    parameters = list(puller.model.parameters())
    groups = [{"params": parameters, "weight_decay": 0.0}]
    copies = [torch.full_like(parameter, float(epoch)) for parameter in parameters]
    return Pulled(Snapshot(epoch, copies, _lamb(puller.card, groups).state_dict()), ("ada",), None)


@pytest.fixture
def place(tmp_path):
    """The folder of the monitor's peer."""
    (tmp_path / "monitor").mkdir()
    return tmp_path / "monitor"


def noted(place) -> list[int]:
    with closing(MonitorDatabase(place.parent / "monitor.sqlite")) as database:
        return note_new(place, database)


def test_what_was_half_written_is_never_taken_and_goes(puller, place, monkeypatch):
    puller.write(state_of(puller, 5), place)
    with monkeypatch.context() as dying:
        dying.setattr(state, "save_tensors", die)  # after the model, before the optimizer's state
        assert killed(in_a_process(lambda: puller.write(state_of(puller, 7), place)))
    assert [path.name for path in (place / CHECKPOINTS / ".epoch-0000007").iterdir()] == [MODEL]
    assert noted(place) == [5]
    assert go_on(place) == 5
    assert [path.name for path in (place / CHECKPOINTS).iterdir()] == ["epoch-0000005"]
    puller.write(state_of(puller, 7), place)
    assert noted(place) == [7]


@pytest.mark.parametrize("file", [MODEL, OPTIMIZER])
def test_what_was_whole_before_anybody_knew_is_taken_once(puller, place, file, monkeypatch):
    puller.write(state_of(puller, 5), place)
    replace = type(place).replace

    def dies_at(path, target):
        return die() if path.name == f".{file}" else replace(path, target)

    with monkeypatch.context() as dying:
        dying.setattr(type(place), "replace", dies_at)
        assert killed(in_a_process(lambda: puller.write(state_of(puller, 7), place)))
    assert go_on(place) == 7, "so it is not taken from the peers again"
    for name in MODEL, OPTIMIZER:  # with which others draw: both are of one epoch again
        assert (place / name).samefile(folder_of(place, 7) / name)
    assert noted(place) == [5, 7]
    assert noted(place) == []


def test_a_broken_checkpoint_does_not_count_as_the_newest(puller, place):
    for epoch in 5, 7:
        puller.write(state_of(puller, epoch), place)
    broken = folder_of(place, 7) / OPTIMIZER
    broken.write_bytes(broken.read_bytes()[:-10])
    assert go_on(place) == 5
    puller.write(state_of(puller, 7), place)
    assert go_on(place) == 7


def test_where_the_disk_has_no_links_others_draw_with_a_copy(puller, place, monkeypatch):
    def refuse(*_args):
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(type(place), "hardlink_to", refuse)
    puller.write(state_of(puller, 5), place)
    assert sha256_of(place / MODEL) == sha256_of(folder_of(place, 5) / MODEL)
    assert go_on(place) == 5


def test_a_state_for_which_there_is_no_room_leaves_nothing_behind(puller, place):
    pulled = state_of(puller, 5)
    with full_disk(), pytest.raises(OSError, match="File too large") as refused:
        puller.write(pulled, place)
    assert is_disk_full(refused.value)
    assert list((place / "checkpoints").iterdir()) == []
    assert puller.write(pulled, place).name == "epoch-0000005"


def test_what_was_being_examined_is_examined_again(mini, puller, place, monkeypatch):
    class Killing(Image.Image):
        def save(self, file, *_args, **_options):
            file.write_bytes(b"half of a picture")
            die()

    puller.write(state_of(puller, 5), place)
    noted(place)
    found = Figures(held_out_loss=3.0, half_width=0.1, rows=9)
    monkeypatch.setattr(Examiner, "_run", lambda self: None)
    usual = SimpleNamespace(card=mini, examine=lambda _: found, seen=["a"], unseen=["b"])
    monkeypatch.setattr(evaluating, "Evaluator", lambda *_: usual)
    database = place.parent / "monitor.sqlite"
    examiner = Examiner(mini, place.parent, place, database)

    def examine(drawn):
        examiner.evaluator.draw = lambda _model: (Pictures(first=drawn), None)
        with closing(MonitorDatabase(database)) as opened:
            examiner.look(opened)
            return json.loads(opened.row("SELECT figures FROM checkpoints")["figures"])

    assert killed(in_a_process(lambda: examine(Killing())))
    assert examine(Image.new("RGB", (8, 8)))["held_out_loss"] == 3.0
    (picture,) = (place.parent / PICTURES).glob("*.webp")
    with Image.open(picture) as whole:
        assert whole.size == (8, 8)


@pytest.fixture
def sends(place, hub, monkeypatch):
    """An uploader whose thread does nothing, with a checkpoint to send."""
    hub.users[TOKEN] = User("ada", {"crew": "write"})
    folder_of(place, 5).mkdir(parents=True)
    for number, name in enumerate((MODEL, OPTIMIZER)):
        save_tensors(folder_of(place, 5) / name, {"a": torch.full((9,), float(number))}, {})
    noted(place)
    monkeypatch.setattr(Uploader, "_run", lambda self: None)
    return Uploader(REPOSITORY, place.parent, place, place.parent / "monitor.sqlite", TOKEN)


def send(sends) -> bool:
    with closing(MonitorDatabase(sends.folder / "monitor.sqlite")) as database:
        return sends.send(database)


def require_sent_once(hub, place) -> None:
    files = hub.store.repositories[REPOSITORY]["commits"][-1]["files"]
    latest = json.loads(hub.store.blob(files[LATEST]["sha256"]).read_text())
    assert latest["epoch"] == 5
    for name in MODEL, OPTIMIZER:
        uploaded = files[f"{CHECKPOINTS}/epoch-0000005/{name}"]["lfs"]["sha256"]
        assert uploaded == latest["files"][name]["sha256"] == sha256_of(folder_of(place, 5) / name)
        assert len(hub.requests(f"PUT /_lfs/{uploaded}")) == 1
    with closing(MonitorDatabase(place.parent / "monitor.sqlite")) as database:
        assert database.count("SELECT COUNT(*) FROM checkpoints WHERE revision IS NULL") == 0


def test_what_was_sent_in_part_is_gone_on_with(sends, place, hub):
    hub.faults.append(Fault("POST .*/commit/", delay_s=600))
    process, deadline = in_a_process(lambda: send(sends)), time.monotonic() + 60
    while not hub.requests("POST .*/commit/"):  # both files are there by then
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    assert killed(process)
    hub.faults.clear()
    assert not send(sends)
    require_sent_once(hub, place)


def test_what_was_sent_before_it_was_noted_is_not_sent_again(sends, place, hub, monkeypatch):
    commit = uploading.commit
    with monkeypatch.context() as dying:
        dying.setattr(uploading, "commit", lambda *args: die(commit(*args)))
        assert killed(in_a_process(lambda: send(sends)))
    assert not send(sends)  # what names it is signed anew
    require_sent_once(hub, place)
