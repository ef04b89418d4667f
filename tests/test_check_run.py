"""dalle-lib run check: a line a field, what does not fit, and what makes little sense."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import answer
from prepare_sources import as_folder, pictures, prepare

from dalle_lib.cli import main
from dalle_lib.cli.run.check import MARKS, in_words
from dalle_lib.files import sha256_of
from dalle_lib.model import ModelConfig
from dalle_lib.organizing.checking import check_run, fields_of
from dalle_lib.organizing.plausible import doubts
from dalle_lib.run import MembersCard, RunCard, new_run, vqgan_file
from dalle_lib.streaming import CodesFormat

AUTHORITY = "A" * 43 + "="
OF_PAPER = CodesFormat(grid=32, codebook_size=8192, vqgan_sha256="0" * 64)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run's folder."""
    folder = tmp_path_factory.mktemp("made")
    prepare(as_folder(folder / "in", pictures(41)), folder / "codes")
    new_run(folder / "run", folder / "codes")
    return folder / "run"


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def states(card: RunCard) -> dict[str, str]:
    return {finding.field: finding.state for finding in check_run(card).findings}


def test_each_field_of_a_card_is_told_with_its_meaning(run):
    card = RunCard.load(run).with_changes(members=MembersCard(authority=AUTHORITY))
    told = {field: (value, meaning) for field, value, meaning in fields_of(card)}
    assert [field for field, (_, meaning) in told.items() if not meaning] == []
    dumped = json.loads(card.model_dump_json())

    def leaves(part: dict, before: str = "") -> list[str]:
        inner = {name: value for name, value in part.items() if isinstance(value, dict) and name != "pins"}
        files = {name for name, value in inner.items() if "sha256" in value}
        deeper = [leaf for name in inner if name not in files for leaf in leaves(inner[name], f"{before}{name}.")]
        return [f"{before}{name}" for name in part if name not in inner or name in files] + deeper

    assert sorted(told) == sorted(leaves(dumped))
    assert told["averaging.timeout_s"] == (20.0, "Seconds after which a round that hangs is given up")


def with_other_vqgan(run: Path) -> None:
    shutil.copyfile(vqgan_file("emoji"), run / "vqgan.safetensors")
    card = RunCard.load(run)
    other = card.vqgan.model_copy(update={"sha256": sha256_of(run / "vqgan.safetensors")})
    (run / "run.json").write_text(card.with_changes(vqgan=other).model_dump_json())


def with_small_vocabulary(run: Path) -> None:
    card = RunCard.load(run)
    (run / "run.json").write_text(card.with_changes(model=replace(card.model, text_vocab=5)).model_dump_json())


def with_a_wrong_address(run: Path) -> None:
    card = RunCard.load(run).with_changes(initial_peers=("/ip4/1.2.3.4/tcp/5",))
    (run / "run.json").write_text(card.model_dump_json())


@pytest.mark.parametrize(
    ("damage", "field", "told"),
    [
        (lambda run: (run / "tokenizer.json").unlink(), "tokenizer", "tokenizer.json"),
        (lambda run: (run / "vqgan.safetensors").write_bytes(b"x"), "vqgan", "is not the file that run"),
        (with_other_vqgan, "vqgan", "the VQ-GAN has grids of 16"),
        (with_small_vocabulary, "tokenizer", "text_vocab=5"),
        (lambda run: shutil.rmtree(run / "train"), "data.train", "has no manifest.json"),
        (lambda run: next((run / "train").glob("*.parquet")).write_bytes(b"PAR1"), "data.train", "is not the folder"),
        (lambda run: shutil.rmtree(run / "held_out"), "data.held_out", "held_out"),
        (with_a_wrong_address, "initial_peers", "is not the address of a first peer"),
    ],
)
def test_what_does_not_fit_has_a_cross_at_its_field_and_ends_with_2(run, monkeypatch, capsys, damage, field, told):
    damage(run)
    error = answer(monkeypatch, "run", "check", str(run))
    assert told in error
    lines = capsys.readouterr().out.splitlines()
    crossed = [number for number, line in enumerate(lines) if line.startswith(MARKS["wrong"])]
    assert field in [lines[number].split()[1] for number in crossed]
    assert any(told in lines[number + 1] for number in crossed)
    assert error.startswith(f"dalle-lib: {lines[crossed[0]].split()[1]} does not fit: ")


def test_a_whole_run_has_no_cross_and_the_command_tells_all_of_it_as_json(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "check", str(run), "--json"])
    main()
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    assert told["key"] == RunCard.load(run).key
    found = {field["field"]: field for field in told["fields"]}
    assert found["model.dim"]["value"] == 192
    assert found["tokenizer"]["value"]["name"] == "tokenizer.json"
    assert {field["state"] for field in told["fields"]} == {"fits", "doubtful"}
    (run / "vqgan.safetensors").unlink()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_a_run_on_the_hub_is_read_from_there(run, hub):
    files = {file.relative_to(run).as_posix(): file.read_bytes() for file in run.rglob("*") if file.is_file()}
    hub.add("ada/photos", files)
    assert [finding.field for finding in check_run(RunCard.load("ada/photos")).wrong] == []
    hub.add("ada/photos", {"tokenizer.json": b"{}"})
    assert [finding.field for finding in check_run(RunCard.load("ada/photos")).wrong] == ["tokenizer"]


def test_whether_the_clip_is_there_is_told_and_does_not_matter_for_training(run, hub):
    card = RunCard.load(run)
    assert states(card)["clip"] == "doubtful"
    hub.add(card.clip, {"config.json": b"{}"})
    assert states(card)["clip"] == "fits"
    with hub.away():
        told = {finding.field: finding for finding in check_run(card.with_changes(clip="clip")).findings}
    assert (told["clip"].state, "generate --no-clip" in told["clip"].told) == ("doubtful", True)


def change(card: RunCard, part: str, **fields) -> RunCard:
    return card.with_changes(**{part: getattr(card, part).model_copy(update=fields)})


@pytest.mark.parametrize(
    ("part", "fields", "doubted"),
    [
        ("averaging", {"target_batch_size": 5000}, "averaging.target_batch_size"),
        ("averaging", {"matchmaking_s": 0.5}, "averaging.matchmaking_s"),
        ("averaging", {"matchmaking_s": 15.0}, "averaging.timeout_s"),
        ("averaging", {"audits": 0.0}, "averaging.audits"),
        ("optimizer", {"total_epochs": 10**6}, "optimizer.total_epochs"),
        ("optimizer", {"total_epochs": 29}, "optimizer.total_epochs"),
        ("optimizer", {"warmup_epochs": 40}, "optimizer.warmup_epochs"),
        ("optimizer", {"lr": 0.5}, "optimizer.lr"),
        ("recipe", {"caption_dropout": 0.9}, "recipe.caption_dropout"),
    ],
)
def test_sizes_that_make_no_sense_are_told_at_their_field(mini, part, fields, doubted):
    card = change(mini.with_changes(initial_peers=("/ip4/1.2.3.4/tcp/5/p2p/Qm" + "a" * 44,)), part, **fields)
    before, after = (set(doubts(one, 4000, [5] * 100)) for one in (mini, card))
    assert after - before == {doubted}


def test_the_embedded_run_has_sizes_that_make_sense(mini):
    assert set(doubts(mini, 4000, [5] * 100)) == {"members", "initial_peers"}


def test_captions_that_are_cut_and_models_too_large_for_a_free_gpu_are_told(mini):
    assert "10% of the captions are longer" in doubts(mini, 4000, [5] * 90 + [40] * 10)["model.text_length"]
    long = mini.with_changes(model=replace(mini.model, text_length=256))
    assert "for nothing" in doubts(long, 4000, [5] * 100)["model.text_length"]
    wide = mini.with_changes(model=replace(mini.model, dim=8192, heads=64, dim_head=128))
    assert "T4 of Colab has 15.8" in doubts(wide, 4000, [])["model.dim"]
    paper = mini.with_changes(model=ModelConfig.paper(), data=mini.data.model_copy(update={"format": OF_PAPER}))
    assert "model.dim" not in doubts(paper, 10**6, [])


@pytest.mark.parametrize(
    ("members", "doubted"),
    [
        ({}, {"members.server"}),
        ({"server": "https://a.org"}, {"members.organization"}),
        ({"server": "https://a.org", "organization": "crew"}, {"members.client_id", "members.invitation"}),
        ({"server": "https://a.org", "organization": "crew", "client_id": "x", "invitation": "https://b.org"}, set()),
    ],
)
def test_what_is_missing_for_members_is_told(mini, members, doubted):
    card = mini.with_changes(members=MembersCard(authority=AUTHORITY, **members))
    assert {field for field in doubts(card, 4000, []) if field.startswith("members")} == doubted


def test_a_card_cannot_move_the_readers_cursor(run):
    card = RunCard.load(run)
    finding = replace(next(iter(check_run(card).findings)), value="a\x1b[2Jb", told="\x1b[1m")
    assert "\x1b" not in in_words(finding)
