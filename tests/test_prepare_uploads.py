"""Uploads of a data set beside others who write to the same repository, and to a Hub that asks to wait."""

from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from prepare_sources import as_folder, pictures, prepare

from dalle_lib.files import sha256_of
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.streaming.prepare.publishing import Publisher

REPOSITORY, TOKEN = "ada/codes", "hf_ada"
ANOTHERS = r"expected no data in ada/codes but this folder's, but {} is another's: name another repository"


@pytest.fixture
def ada(hub, monkeypatch):
    """The Hub, where ada may write; failed uploads are tried again at once."""
    hub.users[TOKEN] = User("ada")
    monkeypatch.setattr("dalle_lib.streaming.prepare.publishing.DELAYS_S", (0, 0, 0))
    return hub


def push(source: Path, out: Path, **settings):
    return prepare(source, out, push_to=REPOSITORY, token=TOKEN, **settings)


def shards_in(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in sorted(folder.rglob("0*.parquet"))}


def shards_there(commit: str | None = None) -> dict[str, str]:
    return shards_in(Path(snapshot_download(REPOSITORY, repo_type="dataset", revision=commit, token=TOKEN)))


def test_a_data_set_that_was_prepared_before_it_is_sent_is_not_written_over_another(tmp_path, ada):
    push(as_folder(tmp_path / "first", pictures(9)), tmp_path / "out")
    other = as_folder(tmp_path / "other", pictures(9, start=50))
    prepare(other, tmp_path / "other-out")
    with pytest.raises(ValueError, match=ANOTHERS.format("(train|held_out)/00000.parquet")):
        push(other, tmp_path / "other-out")
    assert shards_there() == shards_in(tmp_path / "out")


def test_a_file_that_somebody_else_has_replaced_is_told_and_not_written_over(tmp_path, ada):
    source = as_folder(tmp_path / "in", pictures(9))
    push(source, tmp_path / "out")
    ada.add(f"datasets/{REPOSITORY}", {"train/00000.parquet": b"another's"})
    with pytest.raises(ValueError, match=ANOTHERS.format("train/00000.parquet")):
        push(source, tmp_path / "out")


def test_of_two_who_begin_to_send_at_once_the_second_is_told_and_the_first_is_whole(tmp_path, ada, monkeypatch):
    sources = [as_folder(tmp_path / f"in-{n}", pictures(20, start=50 * n)) for n in range(2)]
    start, first = Publisher.start, []

    def overtaken(self, journal, private) -> None:
        start(self, journal, private)
        monkeypatch.setattr(Publisher, "start", start)
        if not first:
            first.append(push(sources[1], tmp_path / "out-1"))

    monkeypatch.setattr(Publisher, "start", overtaken)
    with pytest.raises(ValueError, match=ANOTHERS.format(".*")):
        push(sources[0], tmp_path / "out-0")
    assert shards_there() == shards_there(first[0].revision) == shards_in(tmp_path / "out-1")


def test_who_writes_between_a_look_and_a_commit_is_seen_before_the_next_try(tmp_path, ada, monkeypatch):
    look, theirs = Publisher._what_is_there, {"train/00007.parquet": b"another's"}

    def overtaken(self, journal) -> tuple[dict[str, str], str]:
        found = look(self, journal)
        if journal.shards():
            ada.add(f"datasets/{REPOSITORY}", theirs)
            theirs.clear()
        return found

    monkeypatch.setattr(Publisher, "_what_is_there", overtaken)
    with pytest.raises(ValueError, match=ANOTHERS.format("train/00007.parquet")):
        push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    assert [commit["title"] for commit in commits(ada)] == ["initial commit", "files of a test"]


def test_what_somebody_else_writes_beside_the_codes_stops_nothing(tmp_path, ada, monkeypatch):
    finish = Publisher.finish

    def overtaken(self, files) -> str:
        self._wait_for(0)
        ada.add(f"datasets/{REPOSITORY}", {"notes.md": b"theirs"})
        return finish(self, files)

    monkeypatch.setattr(Publisher, "finish", overtaken)
    push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    assert {"notes.md", "train/manifest.json"} <= commits(ada)[-1]["files"].keys()


def commits(hub) -> list[dict]:
    return hub.store.repositories[f"datasets/{REPOSITORY}"]["commits"]


def test_a_commit_whose_answer_is_lost_is_not_made_twice(tmp_path, ada, monkeypatch):
    make, lost = Publisher._patiently, []

    def losing(self, what, do):
        def done_unheard():
            answer = do()
            if what.startswith("sending") and what not in lost:
                lost.append(what)
                raise OSError("connection lost")
            return answer

        return make(self, what, done_unheard)

    monkeypatch.setattr(Publisher, "_patiently", losing)
    push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    titles = [commit["title"] for commit in commits(ada)]
    assert len(lost) == len(titles) - 1 == len(set(titles)) - 1


def test_the_hub_is_asked_again_when_it_wants_to_be(tmp_path, ada, caplog):
    ada.faults.append(Fault(r"/commit/", times=1, status=429, retry_after=1))
    push(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out")
    told = [record.getMessage() for record in caplog.records if "again in" in record.getMessage()]
    assert [line.rpartition(": ")[2] for line in told] == ["again in 1 s"]
