"""A run of one's own data: what its card says, where it lies, what is refused, and that it trains."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import answer
from prepare_sources import as_folder, pictures, prepare

from dalle_lib.cli import main
from dalle_lib.evaluation import examine
from dalle_lib.files import sha256_of
from dalle_lib.model import ModelConfig
from dalle_lib.run import RunCard, batches_of, initial_model, new_run, require_fit, vqgan_file
from dalle_lib.run.sizes import sizes_for
from dalle_lib.streaming import CaptionTokenizer, CodeRow, CodesFormat, Manifest, read_codes, write_codes
from dalle_lib.swarm.process.local import is_alone


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data set of 41 pictures in several files."""
    folder = tmp_path_factory.mktemp("data")
    prepare(as_folder(folder / "in", pictures(41)), folder / "codes")
    return folder / "codes"


def rows_of(folder: Path) -> list:
    return [row for file in sorted(folder.glob("*.parquet")) for row in read_codes(file)]


def test_a_run_of_a_folder_has_all_that_its_peers_need_beside_its_card(data, tmp_path):
    card = new_run(tmp_path / "photos", data)
    assert card.name == "photos"
    assert {file.name for file in (tmp_path / "photos").iterdir()} == {
        "run.json", "tokenizer.json", "vqgan.safetensors", "train", "held_out",
    }  # fmt: skip
    shutil.move(tmp_path / "photos", tmp_path / "moved")
    card = RunCard.load(tmp_path / "moved")
    require_fit(card)
    assert card.data.manifest == sha256_of(data / "train" / "manifest.json")
    assert (card.model.grid, card.model.image_vocab) == (8, 2048)
    batch = next(batches_of(card, 4, seed=0))
    captions = {row.caption: row.codes for row in rows_of(data / "train")}
    tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
    known = {tuple(ids.tolist()) for ids in tokenizer(list(captions))} | {(0,) * card.model.text_length}
    assert len(known) == len(captions) + 1, "each caption has ids of its own"
    assert all(tuple(text.tolist()) in known for text in batch.text)
    assert int(tokenizer(list(captions)).max()) < card.model.text_vocab
    assert math.isfinite(initial_model(card)(batch.text, batch.codes).image_loss.item())


def test_a_run_of_data_on_the_hub_names_their_commit_and_copies_none(data, tmp_path, hub):
    files = {file.relative_to(data).as_posix(): file.read_bytes() for file in data.rglob("*") if file.is_file()}
    commit = hub.add("datasets/ada/codes", files)
    card = new_run(tmp_path / "run", "hf://datasets/ada/codes/", name="ada")
    hub.add("datasets/ada/codes", {"train/manifest.json": b"{}"})
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"run.json", "tokenizer.json", "vqgan.safetensors"}
    assert (card.data.train, card.data.revision) == ("hf://datasets/ada/codes/train", commit)
    require_fit(card)
    assert len(next(batches_of(RunCard.load(tmp_path / "run"), 3, seed=0))) == 3


def test_a_run_of_one_file_of_data_after_the_other_is_examined(data, tmp_path):
    assert len(list((data / "train").glob("*.parquet"))) > 1
    card = new_run(tmp_path / "run", data)
    found = examine(card, initial_model(card), count=5)
    assert set(found.seen.captions) < {row.caption for row in rows_of(data / "train")}
    assert set(found.unseen.captions) <= {row.caption for row in rows_of(data / "held_out")}
    assert not set(found.seen.captions) & set(found.unseen.captions)


def test_the_own_run_that_nobody_has_joined_gets_neighbours(data, tmp_path):
    card = new_run(tmp_path / "run", data)
    assert is_alone(str(tmp_path / "run"), card)
    assert not is_alone(str(tmp_path / "run"), card.with_changes(initial_peers=("/ip4/1.2.3.4/tcp/1/p2p/x",)))


def with_another_vqgan(data: Path) -> None:
    with open(data / "vqgan.safetensors", "ab") as file:
        file.write(b"\0")


def with_other_held_out(data: Path) -> None:
    manifest = data / "held_out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"grid": 8', '"grid": 4'))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (with_another_vqgan, "is another VQ-GAN than the codes'"),
        (with_other_held_out, "held_out mean something else than those of"),
        (lambda data: (data / "vqgan.safetensors").unlink(), r"expected the VQ-GAN of the codes in .*name its file"),
        (lambda data: shutil.rmtree(data / "held_out"), "it has no folder held_out"),
        (lambda data: shutil.rmtree(data / "train"), "Pictures become one by dalle-lib prepare"),
        (lambda data: (data / "train" / "manifest.json").unlink(), "is it still being prepared"),
        (shutil.rmtree, "there is no such folder"),
    ],
    ids=[
        "another VQ-GAN",
        "held-out codes of another kind",
        "no VQ-GAN",
        "nothing held out",
        "no codes",
        "no manifest",
        "no data",
    ],
)
def test_data_that_make_no_run_are_refused_and_leave_nothing(data, tmp_path, damage, told):
    damage(shutil.copytree(data, tmp_path / "data"))
    with pytest.raises(ValueError, match=told):
        new_run(tmp_path / "run", tmp_path / "data")
    assert not (tmp_path / "run").exists()
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize(("name", "told"), [("a b", "name: .*match pattern"), ("x" * 65, "name: .*64")])
def test_a_name_that_no_run_can_have_is_refused_and_leaves_nothing(data, tmp_path, name, told):
    with pytest.raises(ValueError, match=f"no run card can be so: {told}"):
        new_run(tmp_path / "run", data, name=name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(data, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match="expected a new folder for the run"):
        new_run(tmp_path, data)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_data_set_that_is_not_on_the_hub_is_told_so(tmp_path, hub):
    with pytest.raises(ValueError, match=r"ada/none.*Is the name right\?"):
        new_run(tmp_path / "run", "hf://datasets/ada/none")
    with hub.away(), pytest.raises(ConnectionError):
        new_run(tmp_path / "run", "hf://datasets/ada/none")


@pytest.mark.parametrize(("rows", "epochs"), [(10, 100), (1000, 313), (10**6, 31_250)])
def test_small_pictures_are_seen_sixty_times_and_large_ones_as_in_the_paper(rows, epochs):
    small = sizes_for(CodesFormat(grid=16, codebook_size=100, vqgan_sha256="0" * 64), rows=rows, **TEXT)
    assert small["optimizer"].total_epochs == epochs
    assert small["model"] == ModelConfig(**{**vars(ModelConfig.emoji()), **OWN, "grid": 16, "image_vocab": 100})
    large = sizes_for(CodesFormat(grid=32, codebook_size=8192, vqgan_sha256="0" * 64), rows=rows, **TEXT)
    told = large["optimizer"], large["averaging"]
    assert [told[0].lr, told[0].warmup_epochs, told[0].total_epochs, told[1].target_batch_size] == [
        2.5e-3, 3125, 31_250, 4096,
    ]  # fmt: skip
    assert large["model"] == ModelConfig(**{**vars(ModelConfig.paper()), **OWN})


TEXT = {"text_vocab": 77, "needed_text": 17}
OWN = {"text_vocab": 77, "text_length": 20}


def test_captions_too_long_for_one_in_a_hundred_do_not_lengthen_all(data, tmp_path):
    codes = CodesFormat(grid=8, codebook_size=2048, vqgan_sha256=sha256_of(data / "vqgan.safetensors"))
    rows = [CodeRow(f"word {number}", np.full(64, number)) for number in range(150)]
    for split in "train", "held_out":
        (tmp_path / "data" / split).mkdir(parents=True)
        write_codes(tmp_path / "data" / split / "0.parquet", [*rows, CodeRow("very " * 200, rows[0].codes)], codes)
        Manifest.of_folder(tmp_path / "data" / split, codes).save(tmp_path / "data" / split)
    with pytest.raises(ValueError, match="name its file"):
        new_run(tmp_path / "run", tmp_path / "data")
    card = new_run(tmp_path / "run", tmp_path / "data", vqgan=data / "vqgan.safetensors")
    assert card.model.text_length == 16


def test_the_command_makes_a_run_and_another_tells_what_it_is(data, tmp_path, monkeypatch, capsys):
    folder = str(tmp_path / "photos")
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "new", folder, "--data", str(data)])
    main()
    told = capsys.readouterr().out
    assert f"dalle-lib join --run {folder} --name ada --alone" in told
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "check", folder])
    main()
    checked = capsys.readouterr().out
    rows = len(rows_of(data / "train"))
    assert f"train, {rows} rows" in checked
    assert RunCard.load(folder).key in checked
    summary = checked[checked.index("Run: ") : checked.index("All that the card names is there, and fits.")]
    assert told.startswith(summary)
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "new", f"{folder}-2", "--data", str(data), "--json"])
    main()
    assert json.loads(capsys.readouterr().out)["data"]["train"] == "train"


def test_the_vqgan_of_a_data_set_may_be_a_run_s(data, tmp_path, monkeypatch, capsys):
    codes = tmp_path / "codes"
    shutil.copytree(data, codes)
    (codes / "vqgan.safetensors").unlink()
    new = ["dalle-lib", "run", "new", str(tmp_path / "run"), "--data", str(codes), "--preset", "small"]
    monkeypatch.setattr("sys.argv", [*new, "--vqgan", "emoji-mini"])
    main()
    card = RunCard.load(tmp_path / "run")
    assert card.vqgan.sha256 == sha256_of(vqgan_file("emoji-mini"))
    told = answer(monkeypatch, *new[1:3], str(tmp_path / "other"), *new[4:], "--vqgan", "emoji")
    assert "is another VQ-GAN than the codes'" in told
    told = answer(monkeypatch, *new[1:3], str(tmp_path / "other"), *new[4:], "--vqgan", "train")
    assert "expected the VQ-GAN of the codes in train, but it is not there: name its file, or a run that has it" in told


def test_the_command_says_what_does_not_fit(data, tmp_path, monkeypatch):
    assert "expected a new folder" in answer(monkeypatch, "run", "new", str(data), "--data", str(data))
    card = new_run(tmp_path / "run", data)
    (tmp_path / "run" / "vqgan.safetensors").write_bytes(b"another")
    assert "not the file that run 'run' names" in answer(monkeypatch, "run", "check", str(tmp_path / "run"))
    shutil.copyfile(vqgan_file("emoji"), tmp_path / "run" / "vqgan.safetensors")
    other = card.vqgan.model_copy(update={"sha256": sha256_of(tmp_path / "run" / "vqgan.safetensors")})
    card.with_changes(vqgan=other).in_folder(tmp_path / "run").save(tmp_path / "run")
    assert "the VQ-GAN has grids of 16" in answer(monkeypatch, "run", "check", str(tmp_path / "run"))
