"""dalle-lib run new of pictures, and for so many volunteers: what comes of it, and what is said."""

import json
import math
import tarfile

import pytest
from command_line import answer
from paper_like import data_of, tokenizer_in
from prepare_sources import as_folder, pictures

from dalle_lib.cli import main
from dalle_lib.memory import Training, estimate
from dalle_lib.model import ModelConfig
from dalle_lib.organizing.making import make_run
from dalle_lib.organizing.options import KeySettings
from dalle_lib.organizing.sizing import MAX_BATCH_FACTOR, MIN_EPOCHS, plan_for, reasons, samples_per_second, sized_for
from dalle_lib.run import RunCard, require_fit
from dalle_lib.run.sizes import paper_sizes, sizes_for
from dalle_lib.streaming import CodesFormat
from dalle_lib.streaming.prepare.folders import count_pictures
from dalle_lib.streaming.prepare.opening import place_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return as_folder(tmp_path_factory.mktemp("source") / "pictures", pictures(41))


def test_a_folder_of_pictures_becomes_a_data_set_and_a_run_with_keys_by_one_command(
    folder, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "photos"
    typed = ["--data", str(folder), "--vqgan", "emoji-mini", "--volunteers", "3", "--first-peer", "127.0.0.1:4001"]
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "new", str(out), *typed, "--members"])
    main()
    told = capsys.readouterr()
    card = RunCard.load(out)
    require_fit(card)
    assert f"{folder} is no data set: preparing its pictures in {out}.data first" in told.err
    assert (tmp_path / "photos.data" / "sheet.png").exists()
    held_out = json.loads((out / "held_out" / "manifest.json").read_text())["files"]
    assert sum(sum(file["groups"]) for file in held_out) >= 2, "of few pictures, more than 1% are held out"
    for line in ("Look at:", "sheet.png", f"--folder {out}.keys/peers --port 4001", "run publish", "(calculator)"):
        assert line in told.out
    assert card.initial_peers[0].startswith("/ip4/127.0.0.1/tcp/4001/p2p/")


def test_the_kit_s_own_pictures_are_counted_as_those_of_a_folder(folder):
    assert count_pictures(place_of("icons"), most=2000) == 213
    assert count_pictures(place_of(folder), most=2000) == 41
    assert count_pictures(place_of(folder), most=7) == 7


@pytest.mark.parametrize("ending", ["tar", "tgz"])
def test_a_tar_that_is_cut_off_is_counted_as_far_as_it_goes(folder, tmp_path, ending):
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    with tarfile.open(whole, "w:gz" if ending == "tgz" else "w") as tar:
        tar.add(folder, "pictures")
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert count_pictures(whole, most=2000) == 41
    assert 0 < count_pictures(cut, most=2000) < 41
    cut.write_bytes(b"no tar at all")
    assert count_pictures(cut, most=2000) == 0


def test_what_was_prepared_is_taken_again_when_the_run_could_not_be_made(folder, tmp_path):
    with pytest.raises(ValueError, match="no run card can be so: name"):
        make_run(tmp_path / "run", folder, vqgan="emoji-mini", name="a b", say=lambda _: None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.data"]
    made = make_run(tmp_path / "run", folder, vqgan="emoji-mini", upload_bits=4, say=lambda _: None)
    assert made.card.averaging.upload_bits == 4
    assert made.prepared.rate == 0, "nothing was encoded again"
    assert made.keys is None


def test_nothing_is_prepared_where_the_run_or_its_keys_could_not_be_written(folder, tmp_path):
    (tmp_path / "run.keys").mkdir()
    with pytest.raises(ValueError, match="only copy of a run's keys"):
        make_run(tmp_path / "run", folder, vqgan="emoji-mini", keys=KeySettings(members=True))
    (tmp_path / "run.keys").rename(tmp_path / "full")
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(ValueError, match="expected a new folder"):
        make_run(tmp_path / "full", folder, vqgan="emoji-mini")
    with pytest.raises(ValueError, match="1 to 10,000 volunteers"):
        make_run(tmp_path / "run", folder, vqgan="emoji-mini", volunteers=0)
    assert [file.name for file in tmp_path.iterdir()] == ["full"]


def test_a_folder_without_captions_is_told_what_helps(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "red-apple.png").write_bytes(pictures(1)["picture 0"])
    told = answer(monkeypatch, "run", "new", str(tmp_path / "out"), "--data", str(tmp_path / "in"), "--vqgan", "emoji")
    assert "none of its 1 pictures has one" in told
    assert "--captions-from-names" in told


def large(mini, rows: int = 10**6) -> RunCard:
    """Return a card of the paper's sizes for data of one's own."""
    codes = CodesFormat(grid=32, codebook_size=8192, vqgan_sha256=mini.vqgan.sha256)
    sizes = sizes_for(codes, rows=rows, text_vocab=100, needed_text=30)
    return mini.with_changes(data=mini.data.model_copy(update={"format": codes}), **sizes)


@pytest.mark.parametrize("volunteers", [1, 2, 9, 40, 250, 3000])
def test_epochs_suit_the_volunteers_and_the_run_sees_as_many_samples(mini, volunteers):
    card = large(mini)
    sized = sized_for(card, volunteers)
    averaging, plan = sized.averaging, plan_for(sized, volunteers)
    largest = MAX_BATCH_FACTOR * card.averaging.target_batch_size
    assert plan.round_s <= averaging.timeout_s / 4 + 1
    assert plan.phases["computing"] >= 0.99 * max(2 * averaging.matchmaking_s, plan.round_s) or (
        averaging.target_batch_size == largest
    )
    before, after = (each.optimizer.total_epochs * each.averaging.target_batch_size for each in (card, sized))
    assert 0 <= after - before < averaging.target_batch_size
    assert sized.optimizer.lr == card.optimizer.lr
    assert math.isclose(sized.optimizer.warmup_epochs / sized.optimizer.total_epochs, 0.1, rel_tol=0.01)


def test_few_data_are_not_cut_into_fewer_epochs_and_too_many_people_are_told(mini):
    codes = CodesFormat(grid=8, codebook_size=2048, vqgan_sha256="0" * 64)
    card = mini.with_changes(**sizes_for(codes, rows=200, text_vocab=1024, needed_text=16))
    sized = sized_for(card, 30)
    assert sized.optimizer.total_epochs >= MIN_EPOCHS
    assert sized.averaging.target_batch_size == card.averaging.target_batch_size
    told = [reason.why for reason in reasons(sized, 200, 30) if reason.field == "warning"]
    assert len(told) == 1
    assert "30 volunteers are more than this run can use" in told[0]
    groups, people = (reason.why for reason in reasons(sized, 200, 400) if reason.field == "warning")
    assert groups.startswith("400 trainers at a time: one group holds about 100, and of 400 in a simulation 0% ")
    assert "400 volunteers are more than this run can use" in people


def test_more_volunteers_than_one_group_holds_are_told(mini):
    card = sized_for(large(mini), 100)
    told = [reason.why for reason in reasons(card, 10**6, 100) if reason.field == "warning"]
    assert told[0].startswith("100 trainers at a time: one group holds about 100, and of 100 in a simulation 84% ")


def test_assumed_speeds_are_those_that_were_measured_and_planned():
    assert samples_per_second(ModelConfig.emoji())[0] == pytest.approx(31, rel=0.1)  # 62 on two cores
    assert samples_per_second(ModelConfig.paper())[0] == pytest.approx(0.5, rel=0.1)


def test_the_papers_run_is_the_papers_however_many_volunteers_there_are(tmp_path):
    data = data_of(tmp_path / "data")
    told = {"preset": "paper", "tokenizer": str(tokenizer_in(tmp_path)), "volunteers": 200}
    card = make_run(tmp_path / "run", data, **told).card
    sizes = paper_sizes()
    assert {name: getattr(card, name) for name in sizes} == sizes


def test_the_numbers_of_a_card_have_their_reasons_in_the_data_the_calculator_and_the_plan(mini):
    card = large(mini)
    told = {reason.field: f"{reason.value}: {reason.why}" for reason in reasons(card, 10**6, 40)}
    assert "128.0 passes over 1,000,000 rows" in told["optimizer.total_epochs"]
    gpu = estimate(
        {"model_type": "dalle", **vars(card.model)}, Training(optimizer="lamb8bit", reversible=True, swarm=True)
    ).gpu_range[1]
    assert f"up to {gpu / 1e9:.1f} GB on a GPU" in told["model"]
    plan = plan_for(card, 40)
    assert f"{plan.epoch_s / 60:,.1f} minutes an epoch, {plan.days:,.1f} days in all" in told["plan"]
    assert f"average it in {plan.round_s / 60:,.1f} minutes" in told["averaging.target_batch_size"]
    assert not {"plan", "volunteers"} & {reason.field for reason in reasons(card, 10**6)}
