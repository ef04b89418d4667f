import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dalle_lib.checkpoint import save_tensors
from dalle_lib.files import MAX_REASON, BrokenFile, read_record, replace_file, sha256_of

KILLED = """
import os, signal, sys
from dalle_lib.files import replace_file
with replace_file(sys.argv[1]) as unfinished:
    unfinished.write_text("half of the new")
    os.kill(os.getpid(), signal.SIGKILL)
"""
FILE_LIMIT_BYTES = 4096
TOO_LARGE = f"""
import sys, torch
from dalle_lib.checkpoint import save_tensors
save_tensors(sys.argv[1], {{"zeros": torch.zeros({FILE_LIMIT_BYTES})}}, {{}})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that holds "old" and is alone in its folder."""
    file = tmp_path / "status.json"
    file.write_text("old")
    return file


def test_readers_find_the_old_file_until_the_new_one_is_whole(file):
    with replace_file(str(file)) as unfinished:
        unfinished.write_text("new")
        assert file.read_text() == "old"
        assert unfinished.parent == file.parent, "a rename between two disks would not be one step"
    assert file.read_text() == "new"
    assert os.listdir(file.parent) == [file.name]


def test_a_first_file_needs_no_old_one(tmp_path):
    with replace_file(tmp_path / "first") as unfinished:
        unfinished.write_bytes(b"new")
    assert (tmp_path / "first").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_middle_leaves_the_old_file_alone_in_its_folder(file, error):
    def write(unfinished: Path) -> None:
        unfinished.write_text("half of the new")
        raise error("in the middle")

    with pytest.raises(error, match="in the middle"), replace_file(file) as unfinished:
        write(unfinished)
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == [file.name]


def test_a_block_that_writes_nothing_is_an_error_and_leaves_the_old_file(file):
    with pytest.raises(FileNotFoundError, match="unfinished"), replace_file(file):
        pass
    assert file.read_text() == "old"


def test_a_killed_program_leaves_the_old_file_and_the_next_one_clears_up(file):
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], timeout=60)
    assert done.returncode < 0
    assert file.read_text() == "old"
    assert len(os.listdir(file.parent)) == 2, "it was killed before it had written anything"
    with replace_file(file) as unfinished:
        assert not unfinished.exists()
        unfinished.write_text("new")
    assert os.listdir(file.parent) == [file.name]


def test_weights_that_do_not_fit_leave_the_old_file_alone_in_its_folder(file):
    """A limit on the size of files stands for a full disk: the write fails in its middle, in the same way."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, FILE_LIMIT_BYTES))

    command = [sys.executable, "-B", "-c", TOO_LARGE, str(file)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == [file.name]


def test_weights_are_on_the_disk_before_they_take_the_old_ones_place_and_so_is_the_place(file, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace

    def noted_sync(handle: int) -> None:
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        sync(handle)

    def noted_replace(old: Path, new: Path) -> None:
        done.append(("rename", new.name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    save_tensors(file, {"x": torch.zeros(3)}, {}, before=file.with_name("before"))
    renamed = [("rename", "before"), ("rename", file.name)]
    assert done == [("sync", f"{file.name}.unfinished"), *renamed, ("sync", file.parent.name)]
    assert file.with_name("before").read_text() == "old"


def test_a_hash_is_that_of_the_bytes(file):
    assert sha256_of(file) == "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4"


def test_a_refusal_that_repeats_a_record_is_cut(file):
    file.write_text(json.dumps({"name": [["x" * 50]] * 500}))

    def make(record: dict) -> None:
        raise TypeError(f"expected a name, got {record}")

    with pytest.raises(BrokenFile, match=r"expected a name, got .*get another") as refused:
        read_record(file, make, "get another")
    assert len(str(refused.value)) < MAX_REASON + 200
