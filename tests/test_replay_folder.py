"""A replay empties no folder but a replay's and follows no link out of it; no monitor goes on in such a folder."""

import threading

import pytest
from filelock import FileLock

from dalle_lib.monitor.anonymous import KEY, key_in
from dalle_lib.monitor.monitor import LOCK, Monitor
from dalle_lib.monitor.recording import REPLAYED
from dalle_lib.replay import RECORDING, Replay


def played(folder) -> None:
    Replay(RECORDING, folder).play(minutes=0.1)


def test_a_monitor_does_not_go_on_with_what_a_replay_has_written(tmp_path):
    folder, started = tmp_path / "monitor", []
    played(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match=r"expected a folder for a monitor, but .* is that of a replay"):
        Monitor("emoji-mini", folder, lambda: started.append(1)).follow(threading.Event())
    assert sorted(folder.iterdir()) == before
    assert not started


def test_a_replay_does_not_empty_the_folder_of_a_monitor_even_if_a_replay_was_there_before(tmp_path):
    folder = tmp_path / "monitor"
    played(folder)
    key_in(folder)  # as each monitor makes it when it starts
    with pytest.raises(ValueError, match="is a monitor's: name another"):
        played(folder)
    assert (folder / KEY).exists()


def test_two_replays_do_not_write_into_one_folder_at_a_time(tmp_path):
    folder = tmp_path / "replay"
    played(folder)
    before = (folder / "status.json").stat()
    with FileLock(folder / LOCK), pytest.raises(ValueError, match=r"another replay writes into .*: wait until"):
        played(folder)
    assert (folder / "status.json").stat() == before
    played(folder)
    assert (folder / "status.json").stat().st_mtime_ns > before.st_mtime_ns


@pytest.mark.parametrize("target", ["precious.txt", "none.txt"])
def test_a_mark_that_is_a_link_makes_no_folder_a_replays(tmp_path, target):
    folder, precious = tmp_path / "unpacked", tmp_path / "precious.txt"
    precious.write_text("precious")
    folder.mkdir()
    (folder / REPLAYED).symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match="holds other files: name another"):
        played(folder)
    assert precious.read_text() == "precious"
    assert not (tmp_path / "none.txt").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    folder, precious = tmp_path / "unpacked", tmp_path / "precious.txt"
    precious.write_text("precious")
    played(folder)
    (folder / LOCK).unlink()
    (folder / LOCK).symlink_to(precious)
    played(folder)
    assert precious.read_text() == "precious"
    assert not (folder / LOCK).is_symlink()
