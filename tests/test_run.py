"""Run cards: what makes two runs one, where their files are, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.streaming import code_files, stream_codes

TOKEN = "hf_madeUpForThisTest"


def test_a_saved_run_is_the_same_run(mini, tmp_path):
    folder = mini.save(tmp_path / "run")
    copy = RunCard.load(folder)
    assert copy.model_dump() == mini.model_dump()
    assert copy.fingerprint == mini.fingerprint
    assert copy.path(copy.vqgan).parent == folder


def test_peers_of_all_versions_meet_in_the_embedded_runs():
    """A field that is added or renamed must not change the fingerprint of runs that exist, or PROTOCOL is raised."""
    found = {run: RunCard.load(run).fingerprint for run in EMBEDDED_RUNS}
    assert found == {"emoji": "288e2e61c346fb09", "emoji-mini": "100a9ac09d3ba463"}


@pytest.mark.parametrize(
    "change",
    [
        {"averaging": {"target_batch_size": 512, "matchmaking_s": 3, "timeout_s": 20}},
        {"optimizer": {"lr": 0.02, "warmup_epochs": 5, "total_epochs": 60}},
        {"recipe": {"code_corruption": 0.2}},
        {"seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_peers_must_share_changes_the_fingerprint(mini, change):
    assert mini.with_changes(**change).fingerprint != mini.fingerprint


def test_addresses_and_weights_do_not_split_a_run(mini):
    moved = mini.with_changes(initial_peers=("/ip4/127.0.0.1/tcp/1/p2p/x",), checkpoint=None)
    assert moved.fingerprint == mini.fingerprint
    assert moved.key == mini.key


def test_a_changed_file_is_refused(mini, tmp_path):
    card = RunCard.load(mini.save(tmp_path / "run"))
    with open(card.path(card.tokenizer), "a") as handle:
        handle.write(" ")
    with pytest.raises(ValueError, match="not the file that run 'emoji-mini' names"):
        card.path(card.tokenizer)


def test_a_card_of_another_protocol_or_with_unknown_fields_is_refused(mini, tmp_path):
    file = mini.save(tmp_path / "run") / "run.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps({**card, "protocol": 99}))
    with pytest.raises(ValueError, match="update dalle_lib"):
        RunCard.load(file)
    file.write_text(json.dumps({**card, "surprise": 1}))
    with pytest.raises(ValueError, match=r"run\.json is no valid run card: surprise: Extra inputs .* newer dalle-lib"):
        RunCard.load(file)
    file.write_text("{'name': ")
    with pytest.raises(ValueError, match=r"is no valid run card: Invalid JSON: [^\n]*$"):
        RunCard.load(file)


def test_a_file_that_the_card_names_and_that_is_not_there_is_asked_for(mini, tmp_path):
    card = RunCard.load(mini.save(tmp_path / "run"))
    (tmp_path / "run" / card.vqgan.name).unlink()
    with pytest.raises(ValueError, match=r"names the file vqgan\.safetensors, but .* is not there"):
        card.path(card.vqgan)


def test_what_cannot_be_on_the_hub_is_not_looked_for_there(mini, tmp_path, monkeypatch):
    monkeypatch.setattr("dalle_lib.run.files.download", lambda *_: pytest.fail("the Hub was asked"))
    for run in str(tmp_path / "nowhere"), "nosuch", "./nosuch":
        with pytest.raises(ValueError, match=r"embedded run \(emoji, emoji-mini\), a folder") as unknown:
            RunCard.load(run)
        assert "token" not in str(unknown.value)
    with pytest.raises(ValueError, match=r"no run 'emoji-mni': did you mean emoji-mini\?"):
        RunCard.load("emoji-mni")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"the folder owner/name has no run\.json"):
        RunCard.load("owner/name")


def test_a_hub_that_does_not_answer_is_told_at_once(mini, hub, monkeypatch):
    hub.add("owner/run", {"run.json": mini.model_dump_json().encode()})
    assert RunCard.load("owner/run").name == "emoji-mini"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:1/{repo_id}")
    assert RunCard.load("owner/run").name == "emoji-mini", "the cache has it"
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waited to try again"))
    with pytest.raises(ConnectionError, match=r"the Hub cannot be asked .*is this machine online\?"):
        RunCard.load("owner/other")


REFUSALS = [(None, 401), ("hf_ofNobody", 401), ("hf_ofSomebodyElse", 404), (None, 403), ("hf_ofSomebodyElse", 403)]


@pytest.mark.parametrize(("token", "status"), REFUSALS)
def test_a_private_run_is_read_with_its_hub_token_alone(mini, hub, tmp_path, token, status):
    hub.add("owner/secret", mini.save(tmp_path / "run"), private=True)
    hub.users |= {TOKEN: User("owner"), "hf_ofSomebodyElse": User("bob")}
    hub.faults = [Fault(status=403)] if status == 403 else []
    with pytest.raises(ValueError, match="a Hub token that can read it") as refused:
        RunCard.load("owner/secret", token)
    assert f"{status} " in str(refused.value)
    assert "hf_" not in str(refused.value)
    hub.faults = []
    card = RunCard.load("owner/secret", TOKEN)
    assert card.fingerprint == mini.fingerprint
    assert card.with_changes(seed=1).path(card.tokenizer).read_bytes() == mini.path(mini.tokenizer).read_bytes()


def test_a_private_run_brings_its_own_clip(mini, hub, tmp_path):
    card = mini.with_changes(clip="clip", pins={})
    hub.add("owner/secret", {"run.json": card.model_dump_json().encode(), "clip/config.json": b"{}"}, private=True)
    hub.users[TOKEN] = User("owner")
    source = Path(RunCard.load("owner/secret", TOKEN).clip_source())
    assert (source / "config.json").read_bytes() == b"{}"


def test_what_lies_beside_a_card_is_pinned_when_it_is_saved_and_another_is_refused(mini, tmp_path):
    folder = mini.with_changes(pins={}).save(tmp_path / "run")
    card = RunCard.load(folder)
    assert card.pins == {**mini.pins, mini.data.train: card.pins[mini.data.train]}
    assert mini.pins == card.pins, "the embedded card is pinned"
    assert card.fingerprint == mini.with_changes(pins={}).fingerprint, "peers with old cards meet those with new ones"
    for source in card.pins:
        assert Path(card.data_source(source)).is_dir()
        (folder / source / ".hidden").touch()
        assert Path(card.data_source(source)).is_dir()
        (folder / source / "more").touch()
        with pytest.raises(ValueError, match=rf"{source} is not the folder that run 'emoji-mini' names: expected SHA"):
            card.data_source(source)
    with pytest.raises(ValueError, match="clip is not the folder"):
        card.clip_source()


def test_a_pin_holds_for_exactly_the_files_that_are_read_and_copied(mini, tmp_path):
    folder = mini.save(tmp_path / "run")
    card, train, secret = RunCard.load(folder), folder / mini.data.train, tmp_path / "secret"
    codes, private = train / "codes.parquet", secret / "private.parquet"
    (train / ".hidden").mkdir()
    secret.mkdir()
    for unread in train / ".more.parquet", train / ".hidden" / "more.parquet", private:
        shutil.copyfile(codes, unread)
    assert stream_codes(card.data_source(card.data.train), seed=0).data.files.names() == [codes.name]
    assert code_files(train) == [codes]
    assert "private" not in str(sorted(card.save(tmp_path / "copy").rglob("*")))
    assert not list((tmp_path / "copy").rglob(".*"))

    def refuse(what: str) -> None:
        for use in (lambda: card.data_source(card.data.train), lambda: code_files(train)):
            with pytest.raises(ValueError, match=what):
                use()
        with pytest.raises(ValueError, match=what):
            card.with_changes(pins={}).save(tmp_path / "another")

    link = train / "link.parquet"
    for target in private, secret, train / ".hidden":
        link.symlink_to(target)
        refuse(f"{link} is a link to a folder or out of its own: copy there what it names")
        link.unlink()
    os.mkfifo(train / "pipe.parquet")
    refuse("expected files in .*train, but got 'pipe.parquet', which cannot be one: remove it")
    (train / "pipe.parquet").rename(train / "a\nb")
    refuse(r"got 'a\\nb'")
    shutil.rmtree(train)
    train.touch()
    with pytest.raises(ValueError, match=r"expected a folder, but .*train is none"):
        card.data_source(card.data.train)


@pytest.mark.parametrize("link", ["data", "data/train"])
def test_a_folder_that_is_a_link_is_read_and_never_copied(mini, tmp_path, link):
    folder, elsewhere = mini.save(tmp_path / "run"), tmp_path / "elsewhere"
    (folder / "data").mkdir()
    shutil.move(folder / mini.data.train, folder / "data" / "train")
    shutil.move(folder / link, elsewhere)
    (folder / link).symlink_to(elsewhere)
    card = mini.in_folder(folder).with_changes(data=mini.data.model_copy(update={"train": "data/train"}), pins={})
    assert code_files(Path(card.data_source("data/train")))
    with pytest.raises(ValueError, match=r"data/train leads elsewhere by a link: copy there what"):
        card.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "data").exists()


def test_a_run_is_not_saved_among_other_files(mini, tmp_path):
    folder = mini.save(tmp_path / "run")
    (folder / mini.data.train / "more.parquet").touch()
    with pytest.raises(ValueError, match=r"hold nothing but what is in .*, but more\.parquet is there, too"):
        mini.save(folder)
    shutil.rmtree(folder / mini.clip)
    with pytest.raises(ValueError, match=r"found none in .*clip: copy it there"):
        mini.in_folder(folder).with_changes(pins={}).save(tmp_path / "another")


def test_a_hub_token_is_kept_and_never_told(mini, tmp_path):
    card = RunCard.load(mini.save(tmp_path / "run"), TOKEN)
    for copy in card, card.with_changes(seed=1), card.in_folder(tmp_path / "run"):
        assert copy.token == TOKEN
        assert TOKEN not in f"{copy!r} {copy} {copy.model_dump()} {copy.model_dump_json()}"
    assert card.fingerprint == mini.fingerprint
    card.save(tmp_path / "saved")
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()]


def test_a_run_can_be_moved(mini, tmp_path):
    mini.save(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    card = RunCard.load(tmp_path / "there")
    assert card.path(card.vqgan).is_file()


def test_data_beside_a_card_on_the_hub_are_downloaded(mini, hub, tmp_path):
    hub.add("owner/run", folder := mini.save(tmp_path / "run"))
    source = Path(RunCard.load("owner/run").data_source(mini.data.train))
    assert (source / "codes.parquet").read_bytes() == (folder / mini.data.train / "codes.parquet").read_bytes()


def test_a_run_on_the_hub_is_saved_with_all_its_files(mini, hub, tmp_path):
    hub.add("owner/run", folder := mini.save(tmp_path / "run"))
    copy = RunCard.load("owner/run").save(tmp_path / "copy")
    files = {file.relative_to(copy): file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    assert files == {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_files_of_a_card_from_nowhere_are_asked_for_by_name(mini):
    card = RunCard.model_validate(mini.model_dump())
    with pytest.raises(ValueError, match=r"vqgan\.safetensors cannot be found, because its run card was not loaded"):
        card.path(card.vqgan)


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("averaging.timeout_s", INFINITE, "finite number, but got inf"),
        ("averaging.timeout_s", 10**6, "less than or equal to 86400, but got 1000000"),
        ("averaging.matchmaking_s", INFINITE, "finite number"),
        ("averaging.matchmaking_s", 3000.0, "matchmaking_s=3000 is above timeout_s"),
        ("averaging.part_bytes", 1, "greater than or equal to 256, but got 1"),
        ("averaging.part_bytes", 10**12, "less than or equal to 1048576"),
        ("averaging.target_batch_size", 10**30, "less than or equal to 1000000000"),
        ("averaging.audits", INFINITE, "finite number"),
        ("averaging.outer_lr", INFINITE, "finite number"),
        ("optimizer.lr", INFINITE, "finite number"),
        ("optimizer.lr", float("nan"), "finite number, but got nan"),
        ("optimizer.lr", 10**6, "less than or equal to 100"),
        ("optimizer.betas", [5, -3], "optimizer.betas.0: Input should be less than 1, but got 5"),
        ("optimizer.weight_decay", INFINITE, "finite number"),
        ("optimizer.total_epochs", 10**400, "less than or equal to 1000000000"),
        ("optimizer.total_epochs", 1, "total_epochs=1 is below warmup_epochs=5"),
        ("optimizer.max_grad_norm", 0, "greater than 0, but got 0"),
        ("seed", -1, "seed: Input should be greater than or equal to 0"),
        ("seed", 10**40, "less than 9223372036854775808"),
        ("data.train", "/etc", "a folder beside the card, such as train, or hf://datasets/owner/name, but got '/etc'"),
        ("data.train", "", "a folder beside the card"),
        ("data.train", "../../private", "a folder beside the card"),
        ("data.held_out", "train/../../private", "a folder beside the card"),
        ("data.held_out", "x" * 201, "a folder beside the card"),
        ("data.revision", "a b", "match pattern"),
        ("model.grid", 0, "model: ModelConfig.grid must be a positive whole number, but is 0"),
        ("model.image_vocab", 17, "among 17 codes, but the data have grids of 8 among 2048"),
        ("initial_peers", ["x"] * 101, "at most 100 items"),
        ("initial_peers", ["x" * 501], "at most 500 characters"),
        ("members", {"authority": "x"}, "members.authority: String should match pattern"),
        ("clip", "../../etc", "match pattern"),
        ("vqgan.name", "../vqgan", "match pattern"),
        ("tokenizer.name", "..", "match pattern"),
        ("data.train", "hf://datasets/owner/codes", "data.revision must be a commit of the data on the Hub"),
        ("name", "a/b", "match pattern"),
    ],
    ids=str,
)
def test_what_no_run_can_be_is_refused_with_the_field_in_one_line(mini, tmp_path, field, value, why):
    card = mini.model_dump(mode="json")
    *parts, last = field.split(".")
    part = card
    for name in parts:
        part = part[name]
    part[last] = value
    (tmp_path / "run.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="is no valid run card") as error:
        RunCard.load(tmp_path)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
