"""The stand-in for the Hub, as huggingface_hub and datasets see it."""

import io
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    HfFileSystem,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from dalle_lib.rehearsal.hub.stand_in import Hub, User

WEIGHTS = bytes(range(256)) * 1000


@pytest.fixture
def api(hub) -> HfApi:
    """The client of ada, who may write for the organisation crew."""
    hub.users |= {
        "hf_ada": User("ada", {"crew": "write"}),
        "hf_bob": User("bob"),
        "hf_eve": User("eve", {"crew": "read"}),
    }
    return HfApi(endpoint=hub.url, token="hf_ada")


def status(error: pytest.ExceptionInfo) -> int:
    return error.value.response.status_code


def test_a_folder_that_is_uploaded_comes_back(hub, api, tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "deep" / "weights.bin").write_bytes(WEIGHTS)
    for kind in "model", "dataset", "space":
        space = {"space_sdk": "static"} if kind == "space" else {}
        api.create_repo("crew/run", repo_type=kind, **space)
        api.create_repo("crew/run", repo_type=kind, exist_ok=True, **space)
        api.upload_folder(repo_id="crew/run", repo_type=kind, folder_path=folder)
        copy = Path(snapshot_download("crew/run", repo_type=kind))
        assert (copy / "deep" / "weights.bin").read_bytes() == WEIGHTS
        assert (copy / "README.md").read_text() == (folder / "README.md").read_text()
    assert hub.url in api.create_repo("crew/run", exist_ok=True)


def test_the_same_large_file_is_sent_once(hub, api):
    api.create_repo("ada/run")
    for name in "a.bin", "b.bin":
        api.upload_file(repo_id="ada/run", path_or_fileobj=WEIGHTS, path_in_repo=name)
    (sent,) = hub.requests("^PUT")
    assert sent.received == len(WEIGHTS)
    assert api.file_exists("ada/run", "b.bin")
    assert not api.file_exists("ada/run", "c.bin")


def test_a_damaged_upload_is_refused(hub, api):
    api.create_repo("ada/run")
    link = hub.signed("PUT", "0" * 64, expires=4e9)
    assert get_session().put(link, content=b"other").status_code == 400
    assert get_session().put(link.replace("0" * 64, "1" * 64), content=b"other").status_code == 403
    assert not hub.store.blob("0" * 64).exists()


def test_a_commit_has_several_operations_and_older_ones_stay(hub, api):
    old = hub.add("ada/run", {"a.txt": b"old", "b.txt": b"b", "dir/c.bin": WEIGHTS, "gone/d.txt": b"d"})
    commit = api.create_commit(
        "ada/run",
        [
            CommitOperationAdd("a.txt", b"new"),
            CommitOperationDelete("b.txt"),
            CommitOperationDelete("gone/"),
            CommitOperationCopy("dir/c.bin", "copy.bin"),
        ],
        commit_message="several",
        parent_commit=old,
    )
    assert sorted(api.list_repo_files("ada/run")) == ["a.txt", "copy.bin", "dir/c.bin"]
    assert Path(hf_hub_download("ada/run", "a.txt")).read_bytes() == b"new"
    assert Path(hf_hub_download("ada/run", "a.txt", revision=old)).read_bytes() == b"old"
    assert api.model_info("ada/run").sha == commit.oid
    with pytest.raises(HfHubHTTPError) as late:
        api.create_commit("ada/run", [CommitOperationAdd("a.txt", b"x")], commit_message="late", parent_commit=old)
    assert status(late) == 412
    with pytest.raises(EntryNotFoundError):
        api.delete_file("b.txt", "ada/run")


def test_commits_at_the_same_time_lose_nothing(hub, api):
    api.create_repo("ada/run")
    names = [f"{number}.txt" for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: api.upload_file(repo_id="ada/run", path_or_fileobj=b"x", path_in_repo=name), names))
    assert sorted(api.list_repo_files("ada/run")) == names


def test_trees_have_folders_sizes_and_pages(hub, api, monkeypatch):
    hub.add("datasets/ada/codes", {"train/a/1.parquet": WEIGHTS, "train/2.txt": b"two", "README.md": b"hi"})
    tree = api.list_repo_tree("ada/codes", "train", repo_type="dataset")
    assert [(entry.path, getattr(entry, "size", None)) for entry in tree] == [("train/2.txt", 3), ("train/a", None)]
    monkeypatch.setattr("dalle_lib.rehearsal.hub.stand_in.PAGE", 2)
    everything = list(api.list_repo_tree("ada/codes", recursive=True, expand=True, repo_type="dataset"))
    assert {entry.path for entry in everything} == {"README.md", "train", "train/2.txt", "train/a", "train/a/1.parquet"}
    assert len(hub.requests("tree/main$")) == 3
    (large,) = api.get_paths_info("ada/codes", ["train/a/1.parquet", "none"], repo_type="dataset")
    info = api.dataset_info("ada/codes", files_metadata=True)
    (sibling,) = [sibling for sibling in info.siblings if sibling.rfilename == large.path]
    assert large.lfs.sha256 == sibling.lfs.sha256
    assert large.size == sibling.size == len(WEIGHTS)


def test_parts_of_files_are_read_and_counted(hub, api):
    hub.add("datasets/ada/codes", {"a.bin": WEIGHTS, "a.txt": b"0123456789"})
    for signed_s in 60, None:
        hub.signed_s = signed_s
        hub.log.clear()
        with HfFileSystem(endpoint=hub.url, skip_instance_cache=True).open(
            "datasets/ada/codes/a.bin", cache_type="none"
        ) as file:
            file.seek(1000)
            assert file.read(300) == WEIGHTS[1000:1300]
        (part,) = [request for request in hub.log if request.status == 206]
        assert (part.range, part.sent) == ("bytes=1000-1299", 300)
        assert part.path.startswith("/_cdn/") == (signed_s is not None)
    link = f"{hub.url}/datasets/ada/codes/resolve/main/a.txt"
    beyond = get_session().get(link, headers={"Range": "bytes=10-20"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, "bytes */10")


def test_users_may_do_what_their_role_allows(hub, api):
    assert [(org["name"], org["roleInOrg"]) for org in api.whoami()["orgs"]] == [("crew", "write")]
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api.whoami(token="hf_none")
    hub.users |= {
        "hf_cam": User("cam", {"crew": "contributor"}),
        "hf_ro": User("ada", {"crew": "admin"}, access="read"),
    }
    for token in "hf_bob", "hf_eve", "hf_ro":
        with pytest.raises(HfHubHTTPError, match="rights to write") as refused:
            api.create_repo("crew/run", token=token)
        assert status(refused) == 403
    api.create_repo("crew/run")
    api.create_repo("crew/cams", token="hf_cam")
    api.upload_file(repo_id="crew/cams", path_or_fileobj=b"x", path_in_repo="x", token="hf_cam")
    with pytest.raises(HfHubHTTPError, match="rights to write"):
        api.upload_file(repo_id="crew/run", path_or_fileobj=b"x", path_in_repo="x", token="hf_cam")
    api.delete_repo("crew/cams")
    assert not api.repo_exists("crew/cams")


def test_strangers_do_not_learn_of_a_private_repository(hub, api, tmp_path):
    revision = hub.add("crew/secret", {"a.txt": b"a", "b.bin": WEIGHTS}, private=True)
    calls = (
        lambda token: api.model_info("crew/secret", token=token),
        lambda token: api.model_info("crew/secret", revision=revision, token=token),
        lambda token: list(api.list_repo_tree("crew/secret", token=token)),
        lambda token: api.get_paths_info("crew/secret", ["a.txt"], token=token),
        lambda token: hf_hub_download("crew/secret", "a.txt", token=token, cache_dir=tmp_path / str(token)),
        lambda token: hf_hub_download("crew/secret", "b.bin", token=token, cache_dir=tmp_path / str(token)),
    )
    for call in calls:
        for token in False, "hf_bob":
            with pytest.raises(RepositoryNotFoundError) as refused:
                call(token)
            assert status(refused) == (404 if token else 401)
        call("hf_eve")
    with pytest.raises(RepositoryNotFoundError):
        api.upload_file(repo_id="crew/secret", path_or_fileobj=b"x", path_in_repo="x", token="hf_bob")


def test_what_is_not_there_is_named(hub, api):
    hub.add("ada/run", {"a.txt": b"a"})
    with pytest.raises(RevisionNotFoundError):
        api.model_info("ada/run", revision="f" * 40)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("ada/run", "b.txt")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree("ada/run", "folder"))


def test_a_commit_needs_the_objects_that_it_names(hub, api):
    api.create_repo("ada/run")
    line = json.dumps({"key": "lfsFile", "value": {"path": "a.bin", "oid": "0" * 64}})
    url, headers = f"{hub.url}/api/models/ada/run/commit/main", {"Authorization": "Bearer hf_ada"}
    answer = get_session().post(url, content=line, headers=headers)
    assert (answer.status_code, "was not uploaded" in answer.json()["error"]) == (400, True)


STREAM = """
import sys
from datasets import load_dataset
rows = load_dataset("ada/rows", split="train", streaming=True)
print([row["number"] for row in rows] == list(range(100)))
"""


def test_datasets_streams_parquet(hub):
    """In a process of its own, since threads of pyarrow may hold a stream's process at its end."""
    table = io.BytesIO()
    pq.write_table(pa.table({"number": range(100)}), table)
    hub.add("datasets/ada/rows", {"data/train-00000.parquet": table.getvalue()})
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True\n", done.stderr


def test_state_survives_a_restart_and_no_thread_stays(tmp_path):
    before = set(threading.enumerate())  # some of other tests may end meanwhile
    with Hub(tmp_path) as hub:
        revision = hub.add("ada/run", {"a.txt": b"a"})
    assert set(threading.enumerate()) <= before
    command = [sys.executable, "-m", "dalle_lib.rehearsal.hub", tmp_path, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[0].removeprefix("HF_ENDPOINT=")
        assert HfApi(endpoint=url, token=False).model_info("ada/run").sha == revision
        process.terminate()
