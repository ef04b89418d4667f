"""Data sets whose preparing was broken off, or whose source has grown, and what goes to the Hub of them."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from prepare_sources import SMALL, as_folder, as_tar, codes_by_caption, picture, pictures, prepare, rows_in

from dalle_lib.files import sha256_of
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.streaming import Manifest, stream_codes

REPOSITORY, TOKEN = "ada/codes", "hf_ada"
PUT = r"^PUT /_lfs"


@pytest.fixture
def ada(hub, monkeypatch):
    """The Hub, where ada may write and bob may not; failed uploads are tried again at once."""
    hub.users |= {TOKEN: User("ada"), "hf_bob": User("bob"), "hf_read": User("ada", access="read")}
    monkeypatch.setattr("dalle_lib.streaming.prepare.publishing.DELAYS_S", (0, 0, 0))
    return hub


def push(source: Path, out: Path, **settings):
    return prepare(source, out, **({"push_to": REPOSITORY, "token": TOKEN} | settings))


def sent_objects(hub) -> Counter:
    """Return how often each large file was sent whole."""
    return Counter(request.path for request in hub.requests(PUT) if request.status == 200)


def commits(hub) -> list[str]:
    return [commit["title"] for commit in hub.store.repositories[f"datasets/{REPOSITORY}"]["commits"]]


def shards_in(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): sha256_of(file) for file in sorted(folder.rglob("0*.parquet"))}


def test_a_program_that_is_killed_again_and_again_loses_and_repeats_no_row_and_sends_nothing_twice(tmp_path, ada):
    pairs = pictures(90)
    arguments = SMALL | {"source": str(as_folder(tmp_path / "in", pairs)), "out": str(tmp_path / "out")}
    arguments |= {"vqgan": str(SMALL["vqgan"]), "batch_size": 3, "push_to": REPOSITORY, "token": TOKEN}
    draw = random.Random(7)
    delays = [f"{draw.uniform(0.05, 0.7):.3f}" for _ in range(10)]
    script = Path(__file__).parent / "killed_preparing.py"
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(arguments), *delays], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "the work was over before it was killed often enough"
    assert codes_by_caption(rows_in(tmp_path / "out")).keys() == pairs.keys()
    here = shards_in(tmp_path / "out")
    for name, digest in here.items():
        assert sha256_of(hf_hub_download(REPOSITORY, name, repo_type="dataset", token=TOKEN)) == digest
    assert set(sent_objects(ada).values()) == {1}
    added = [title for title in commits(ada) if title.startswith("Add ")]
    assert sorted(added) == sorted(f"Add {name}" for name in here)
    unbroken = prepare(tmp_path / "in", tmp_path / "unbroken", batch_size=3)
    found = [[row.caption for row in rows_in(tmp_path / folder)] for folder in ("out", "unbroken")]
    assert found[0] == found[1], "files have the same rows as without any kill"
    assert unbroken.rows == 90


def test_rows_that_are_added_to_a_source_are_sent_alone(tmp_path, ada):
    source, out = as_folder(tmp_path / "in", pictures(60)), tmp_path / "out"
    first = push(source, out)
    before, sent = shards_in(out), sum(request.received for request in ada.requests(PUT))
    ada.log.clear()
    again = push(source, out)
    assert (again.manifests, again.revision) == (first.manifests, first.revision)
    assert not ada.requests(PUT)
    as_folder(source, pictures(6, start=60))
    grown = push(source, out)
    after = shards_in(out)
    assert {name: after[name] for name in before} == before
    assert codes_by_caption(rows_in(out)).keys() == pictures(66).keys()
    new = sum((out / name).stat().st_size for name in after if name not in before)
    others = sum((out / name).stat().st_size for name in ("preview/preview.parquet", "sheet.png"))
    assert sum(request.received for request in ada.requests(PUT)) <= new + others < sent / 2
    assert grown.revision != first.revision


def test_the_hub_has_the_manifest_last_and_a_run_can_stream_what_is_there(tmp_path, ada):
    prepared = push(as_folder(tmp_path / "in", pictures(30)), tmp_path / "out", private=True)
    assert commits(ada)[-1] == "Manifests, card and preview"
    assert prepared.revision == HfApi(token=TOKEN).dataset_info(REPOSITORY).sha
    copy = Path(snapshot_download(REPOSITORY, repo_type="dataset", revision=prepared.revision, token=TOKEN))
    names = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
    others = {"README.md", "vqgan.safetensors", "sheet.png", "preview/preview.parquet"}
    manifests = {"train/manifest.json", "held_out/manifest.json"}
    assert names - {".gitattributes"} == shards_in(tmp_path / "out").keys() | others | manifests
    card = prepared.data_card
    stream = iter(
        stream_codes(card["train"], seed=0, revision=card["revision"], manifest=card["manifest"], token=TOKEN)
    )
    train = rows_in(tmp_path / "out", ("train",))
    assert {next(stream).caption for _ in train} == {row.caption for row in train}
    assert ada.store.repositories[f"datasets/{REPOSITORY}"]["private"]


def test_files_that_are_not_kept_here_are_gone_once_they_are_sent_and_the_work_goes_on_without_them(tmp_path, ada):
    source, out = as_folder(tmp_path / "in", pictures(40)), tmp_path / "out"
    waited = []
    ada.faults.append(Fault(PUT, delay_s=0.2))  # slower than rows are encoded
    from dalle_lib.streaming.prepare import publishing

    class Watched(publishing.Publisher):
        def shard_is_done(self) -> None:
            super().shard_is_done()
            waited.append(len(list(out.rglob("0*.parquet"))))  # the other thread removes some meanwhile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dalle_lib.streaming.prepare.making.Publisher", Watched)
        prepared = push(source, out, keep_local=False)
    assert len(waited) == sum(len(manifest.files) for manifest in prepared.manifests.values()) >= 5
    assert max(waited) <= publishing.MAX_WAITING + 1, "one more has been sent, and is about to be removed"
    assert not shards_in(out)
    as_folder(source, pictures(3, start=40))
    assert push(source, out, keep_local=False).rows == 43
    copy = Path(snapshot_download(REPOSITORY, repo_type="dataset", token=TOKEN))
    found = [caption for split in ("train", "held_out") for caption in captions_of(copy / split)]
    assert sorted(found) == sorted(pictures(43))


def captions_of(folder: Path) -> list[str]:
    from dalle_lib.streaming import read_codes

    manifest = Manifest.parse((folder / "manifest.json").read_bytes(), str(folder))
    return [row.caption for entry in manifest.files for row in read_codes(folder / entry.name)]


def test_an_upload_that_fails_is_tried_again_and_named(tmp_path, ada, caplog):
    ada.faults += [Fault(r"/commit/", times=2, status=500), Fault(PUT, times=1, cut_after=100)]
    prepared = push(as_folder(tmp_path / "in", pictures(20)), tmp_path / "out")
    assert prepared.revision
    told = [record.getMessage() for record in caplog.records if "again in" in record.getMessage()]
    assert any("parquet failed, try 1 (" in line and line.endswith(": again in 0 s") for line in told)
    assert max(sent_objects(ada).values()) == 1


def test_an_upload_that_fails_too_often_is_given_up_and_goes_on_later(tmp_path, ada):
    source = as_folder(tmp_path / "in", pictures(20))
    ada.faults.append(Fault(r"/commit/", status=500))
    with pytest.raises(ConnectionError, match=r"failed 4 times .* Run the same again later: nothing that was encoded"):
        push(source, tmp_path / "out")
    ada.faults.clear()
    assert push(source, tmp_path / "out").rows == 20
    assert set(sent_objects(ada).values()) == {1}


@pytest.mark.parametrize(
    ("token", "repository", "expected"),
    [
        ("hf_wrong", REPOSITORY, r"the Hub answered 401 .* Log in with `hf auth login`"),
        ("hf_bob", REPOSITORY, r"the Hub answered 403 .* Take a Hub token that may write there"),
        ("hf_read", REPOSITORY, r"the Hub answered 403"),
    ],
)
def test_a_refusal_of_the_hub_is_told_at_once_with_what_to_do(tmp_path, ada, token, repository, expected):
    with pytest.raises(PermissionError, match=expected):
        push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out", token=token, push_to=repository)
    assert not ada.requests(PUT)


def test_a_repository_that_vanishes_meanwhile_is_told_with_what_to_do(tmp_path, ada):
    ada.faults.append(Fault(r"/commit/", status=404))
    with pytest.raises(PermissionError, match=r"the Hub answered 404 .* It may have been removed or renamed"):
        push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")


def test_a_repository_with_other_data_is_left_alone(tmp_path, ada):
    ada.add(f"datasets/{REPOSITORY}", {"train/00000-of-00002.parquet": b"another's"})
    with pytest.raises(ValueError, match=r"expected no data in ada/codes but this folder's, but train/00000-of"):
        push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    assert commits(ada)[-1] == "files of a test"


def test_files_that_were_removed_from_the_hub_are_sent_again_while_they_are_here(tmp_path, ada):
    source, out = as_folder(tmp_path / "in", pictures(9)), tmp_path / "out"
    push(source, out)
    ada.add(f"datasets/{REPOSITORY}", {"train/00000.parquet": None})
    push(source, out)
    there = hf_hub_download(REPOSITORY, "train/00000.parquet", repo_type="dataset", token=TOKEN)
    assert sha256_of(there) == sha256_of(out / "train/00000.parquet")
    ada.add(f"datasets/{REPOSITORY}", {"train/00000.parquet": None})
    (out / "train/00000.parquet").unlink()
    with pytest.raises(ValueError, match=r"00000\.parquet was sent .* nor here: prepare the source anew"):
        push(source, out)
    with pytest.raises(ValueError, match="goes to 'ada/codes', not 'ada/other': name that again"):
        push(source, out, push_to="ada/other")


def test_a_source_that_changed_is_refused_with_the_name_of_what_did(tmp_path):
    source = as_folder(tmp_path / "in", pictures(9), inside="in")
    prepare(source, tmp_path / "out")
    rows = codes_by_caption(rows_in(tmp_path / "out"))
    picture(100, 90, 90).save(source / "picture-4.png")
    with pytest.raises(ValueError, match=r"the source is not the one .* 'picture-4.png' has changed\. Bring it back"):
        prepare(source, tmp_path / "out")
    (source / "picture-4.png").unlink()
    with pytest.raises(ValueError, match=r"'picture-4.png' is gone"):
        prepare(source, tmp_path / "out")
    assert codes_by_caption(rows_in(tmp_path / "out")) == rows
    tars = as_tar(tmp_path / "tars" / "0.tar", pictures(4)).parent
    with pytest.raises(ValueError, match="begun with another source: kind was 'pictures' and is now 'tars'"):
        prepare(tars, tmp_path / "out")


def test_other_settings_are_refused_by_name(tmp_path):
    source = as_folder(tmp_path / "in", pictures(9))
    prepare(source, tmp_path / "out")
    with pytest.raises(ValueError, match=r"begun with other settings: held_out was 0\.2 and is now 0\.3\. Go on"):
        prepare(source, tmp_path / "out", held_out=0.3)


def test_two_programs_do_not_prepare_the_same_folder(tmp_path):
    from filelock import FileLock

    source, out = as_folder(tmp_path / "in", pictures(9)), tmp_path / "out"
    (out / ".prepare").mkdir(parents=True)
    with FileLock(out / ".prepare" / "lock"), pytest.raises(ValueError, match="another program is preparing"):
        prepare(source, out)
    assert prepare(source, out).rows == 9
