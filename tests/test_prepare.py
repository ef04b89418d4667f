"""From pictures with captions to a data set of codes."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import datasets
import numpy as np
import pytest
import torch
from command_line import answer
from PIL import Image, ImageOps
from prepare_sources import (
    SMALL,
    VQGAN,
    as_csv,
    as_folder,
    as_parquet,
    as_tar,
    codes_by_caption,
    encoded,
    picture,
    pictures,
    prepare,
    rows_in,
)

from dalle_lib.files import sha256_of
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run.parts import DataCard
from dalle_lib.streaming import Filters
from dalle_lib.vqgan import load_vqgan


@pytest.fixture(autouse=True)
def cache_of_datasets(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def test_each_picture_becomes_one_row_with_its_caption_size_and_codes(tmp_path):
    pairs = pictures(41)
    prepared = prepare(as_folder(tmp_path / "in", pairs), tmp_path / "out")
    rows = rows_in(tmp_path / "out")
    squares = [np.asarray(ImageOps.fit(picture(seed), (64, 64), Image.Resampling.LANCZOS)) for seed in range(41)]
    expected = load_vqgan(VQGAN).encode(torch.from_numpy(np.stack(squares)))
    found = codes_by_caption(rows)
    same = [found[caption] == codes.tolist() for caption, codes in zip(pairs, expected, strict=True)]
    assert sum(same) >= 40, "but for a rounding error that turns a code"
    read = datasets.load_dataset(str(tmp_path / "out"))["train"]
    assert (set(read["width"]), set(read["height"])) == ({70}, {64})
    assert prepared.rows == 41
    assert prepared.bytes == sum(file.stat().st_size for file in (tmp_path / "out").rglob("0*.parquet"))
    assert prepared.source_bytes == sum(map(len, pairs.values()))
    train = rows_in(tmp_path / "out", ("train",))
    assert [sum(entry.groups) for entry in prepared.manifests["train"].files][:-1] == (len(train) - 1) // 8 * [8]
    assert 1 <= len(rows) - len(train) <= 20
    DataCard.model_validate({name: told for name, told in prepared.data_card.items() if name in DataCard.model_fields})


def test_neighbours_in_a_folder_are_none_in_the_data_set(tmp_path):
    prepare(as_folder(tmp_path / "in", pictures(40), inside="."), tmp_path / "out", held_out=0)
    order = [int(row.caption.split()[1]) for row in rows_in(tmp_path / "out")]
    neighbours = sum(abs(one - other) == 1 for one, other in pairwise(order))
    assert neighbours < 10


def test_captions_come_from_names_where_that_is_asked(tmp_path):
    source = tmp_path / "in"
    (source / "fruit").mkdir(parents=True)
    for number, name in enumerate(["red-apple_2.png", "fruit/été.jpg.png", "fruit/_.png"]):
        (source / name).write_bytes(encoded(picture(number)))
    (source / "red-apple_2.txt").write_text("not this")
    prepared = prepare(source, tmp_path / "out", captions_from_names=True, held_out=0)
    assert {row.caption for row in rows_in(tmp_path / "out")} == {"red apple 2", "été jpg"}
    assert prepared.counts == {"no caption": 1}
    with pytest.raises(ValueError, match="another source"):
        prepare(source, tmp_path / "out", held_out=0)
    with pytest.raises(ValueError, match="With captions_from_names"):
        prepare(source / "fruit", tmp_path / "other")
    assert prepare(source / "fruit", tmp_path / "other", captions_from_names=True).rows == 1, "as the error advised"
    with pytest.raises(ValueError, match="for a folder of pictures"):
        prepare(as_tar(tmp_path / "a.tar", pictures(2)), tmp_path / "third", captions_from_names=True)


@pytest.mark.parametrize("kind", ["tars", "parquet", "paths", "tsv"])
def test_every_source_gives_what_a_folder_of_the_same_pictures_gives(tmp_path, kind):
    pairs = pictures(13)
    files = as_folder(tmp_path / "files", pairs)
    places = {caption: str(next(files.rglob(f"{caption.replace(' ', '-')}.png"))) for caption in pairs}
    first, second = dict(list(pairs.items())[:9]), dict(list(pairs.items())[9:])
    if kind == "tars":
        source = as_tar(tmp_path / "in" / "0.tar", first).parent
        as_tar(source / "1.tar", second)
    elif kind == "parquet":
        source = as_parquet(tmp_path / "in" / "0.parquet", first).parent
        as_parquet(source / "1.parquet", second)
        (source / "license.txt").write_text("free")
    elif kind == "paths":
        relative = {caption: place.removeprefix(f"{files}/") for caption, place in places.items()}
        source = as_csv(files / "table.csv", relative, "file_name")
    else:
        source = tmp_path / "table.tsv"
        source.write_text("path\tTEXT\n" + "".join(f"{place}\t{caption}\n" for caption, place in places.items()))
    prepare(files, tmp_path / "expected", kind="pictures")
    prepare(source, tmp_path / "out", picture_folder=str(files) if kind == "tsv" else None)
    assert codes_by_caption(rows_in(tmp_path / "out")) == codes_by_caption(rows_in(tmp_path / "expected"))


def test_pictures_come_from_urls_and_what_is_not_there_is_counted(tmp_path, hub):
    pairs = pictures(6)
    hub.add("datasets/ada/pictures", {f"{number}.png": data for number, data in enumerate(pairs.values())})
    place = f"{hub.url}/datasets/ada/pictures/resolve/main"
    urls = {caption: f"{place}/{number}.png" for number, caption in enumerate(pairs)}
    urls |= {"gone": f"{place}/none.png", "nowhere": "http://127.0.0.1:1/a.png", "no address": "https://["}
    prepared = prepare(as_csv(tmp_path / "urls.csv", urls, "url"), tmp_path / "out", held_out=0, local_urls=True)
    assert codes_by_caption(rows_in(tmp_path / "out")).keys() == pairs.keys()
    assert prepared.counts == {"URL answered 404": 1, "URL not reached": 2}


def test_an_outage_stops_the_work_and_loses_no_row(tmp_path, hub):
    pairs = pictures(20)
    hub.add("datasets/ada/pictures", {f"{number}.png": data for number, data in enumerate(pairs.values())})
    place = f"{hub.url}/datasets/ada/pictures/resolve/main"
    source = as_csv(tmp_path / "urls.csv", {caption: f"{place}/{n}.png" for n, caption in enumerate(pairs)}, "url")
    with hub.away(), pytest.raises(ConnectionError, match=r"none of 20 URLs .* is this machine online\? Run the same"):
        prepare(source, tmp_path / "out", local_urls=True)
    prepared = prepare(source, tmp_path / "out", local_urls=True)
    assert prepared.rows == 20
    assert not prepared.counts


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_a_data_set_of_the_hub_is_read_as_of_the_commit_at_which_the_work_began(tmp_path, hub, kind):
    write = as_parquet if kind == "parquet" else as_tar
    suffix = "parquet" if kind == "parquet" else "tar"
    pairs = pictures(12)
    files = {f"data/{n}.{suffix}": write(tmp_path / f"{n}.{suffix}", part).read_bytes() for n, part in enumerate(
        [dict(list(pairs.items())[:7]), dict(list(pairs.items())[7:])])}  # fmt: skip
    hub.add(
        "datasets/ada/pictures", {**files, f"data2/2.{suffix}": files[f"data/0.{suffix}"], "README.md": b"# pictures"}
    )
    source = "hf://datasets/ada/pictures/data"
    hub.faults.append(Fault(f"resolve/.*1.{suffix}", status=404))
    with pytest.raises(ConnectionError, match="the work goes on where it was"):
        prepare(source, tmp_path / "out")
    hub.faults.clear()
    hub.add("datasets/ada/pictures", {f"data/1.{suffix}": files[f"data/0.{suffix}"]})
    assert prepare(source, tmp_path / "out").rows == 12
    assert codes_by_caption(rows_in(tmp_path / "out")).keys() == pairs.keys()
    assert not list((tmp_path / "out" / ".prepare").rglob(f"*.{suffix}")), "what was fetched is gone"


@pytest.mark.parametrize("layout", ["own", "paper", "paper-brotli"])
def test_the_card_lets_datasets_and_its_own_snippets_read_the_data_set(tmp_path, layout):
    out = tmp_path / "out"
    prepare(as_folder(tmp_path / "in", pictures(14)), out, format=layout, preview=5, license="cc-by-4.0")
    read = datasets.load_dataset(str(out))
    assert read["train"].num_rows + read["held_out"].num_rows == 14
    preview = datasets.load_dataset(str(out), "preview")["preview"]
    assert preview.num_rows == 5
    assert preview[0]["picture"].size == preview[0]["reconstruction"].size == (64, 64)
    card = (out / "README.md").read_text()
    assert "license: cc-by-4.0" in card
    assert f"{(out / 'preview/preview.parquet').stat().st_size:,} bytes" in card
    by_caption = codes_by_caption(rows_in(out, ("train",)))
    for snippet in re.findall("```python\n(.*?)```", card, re.DOTALL):
        names = {}
        exec(snippet.replace("FOLDER", str(out)), names)
        caption, codes = names["row"].caption if hasattr(names["row"], "caption") else None, names.get("codes")
        if codes is None:
            assert names["row"].codes.tolist() == by_caption[caption]
        else:
            assert list(codes) in by_caption.values()
    assert card.count("```python") == 2
    assert sha256_of(out / "vqgan.safetensors") in card


def test_without_a_preview_no_picture_is_in_the_card_and_the_codes_are_measured_still(tmp_path):
    prepared = prepare(as_folder(tmp_path / "in", pictures(9)), tmp_path / "out", preview=0)
    assert not (tmp_path / "out" / "preview").exists()
    assert "sheet.png" not in (tmp_path / "out" / "README.md").read_text()
    assert 10 < prepared.psnr_db < 40


def test_near_duplicates_are_counted_stay_on_one_side_and_can_be_left_out(tmp_path):
    pairs = pictures(20)
    again = {f"{caption} again": encoded(picture(seed), "JPEG", quality=97) for seed, caption in enumerate(pairs)}
    source = as_folder(tmp_path / "in", pairs | again)
    prepared = prepare(source, tmp_path / "both", held_out=0.5)
    assert prepared.near_duplicates >= 12, "but for hashes that JPEG changes"
    sides = [{row.caption for row in rows_in(tmp_path / "both", (split,))} for split in ("train", "held_out")]
    torn = [caption for caption in pairs if (caption in sides[0]) != (f"{caption} again" in sides[0])]
    assert len(torn) <= 20 - prepared.near_duplicates
    assert min(map(len, sides)) > 4
    dropped = prepare(source, tmp_path / "one", drop_duplicates=True)
    assert dropped.counts == {"near-duplicate": prepared.near_duplicates}
    assert dropped.rows == 40 - prepared.near_duplicates


def test_filters_count_what_they_leave_out_and_are_refused_where_the_source_does_not_tell(tmp_path):
    pairs = {"ok": encoded(picture(1)), "no": encoded(picture(2)), "wide one": encoded(picture(3, 200, 64))}
    told = as_tar(tmp_path / "told" / "0.tar", pairs, NSFW="UNLIKELY").parent
    as_tar(told / "1.tar", pictures(3), NSFW="NSFW")
    as_tar(
        told / "2.tar",
        {"pictures that were": encoded(picture(4))},
        NSFW="UNLIKELY",
        original_width=9,
        original_height=2,
    )
    as_tar(told / "3.tar", {"that one": encoded(picture(5))}, NSFW="UNLIKELY")
    prepared = prepare(told, tmp_path / "out", filters=Filters.paper(), held_out=0)
    assert prepared.counts == {
        "a side above 2 times the other": 2,
        "caption below 3 letters": 2,
        "nsfw not UNLIKELY": 3,
    }
    (row,) = datasets.load_dataset(str(tmp_path / "out"))["train"]
    assert (row["caption"], row["nsfw"]) == ("that one", "UNLIKELY")
    assert prepared.share_kept == 1 / 8
    with pytest.raises(ValueError, match=r"the filters need nsfw of each picture, but .* does not tell"):
        prepare(as_folder(tmp_path / "in", pairs), tmp_path / "other", filters=Filters.paper())


def test_a_vqgan_of_ones_own_is_trained_on_the_pictures_and_kept_when_the_work_goes_on(tmp_path):
    source, own = as_folder(tmp_path / "in", pictures(20)), {"train_steps": 1, "train_codebook": 64}
    prepared = prepare(source, tmp_path / "out", vqgan="train", **own)
    vqgan = load_vqgan(tmp_path / "out" / "vqgan.safetensors")
    assert (vqgan.config.codebook_size, vqgan.config.resolution) == (64, 64)
    assert prepared.vqgan_sha256 == sha256_of(tmp_path / "out" / "vqgan.safetensors")
    assert prepare(source, tmp_path / "out", vqgan="train", **own).manifests == prepared.manifests


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"source": "none"}, "no source 'none': expected a folder of pictures"),
        ({"source": "empty"}, "expected pictures in .*empty, each with its caption in .* it has no pictures"),
        ({"source": "bare"}, "none of its 2 pictures has one"),
        ({"source": "table.csv"}, r"expected one of the columns image, .* but it has caption, photo: name another"),
        ({"source": "table.csv", "image_column": "foto"}, "expected a column 'foto' .* did you mean photo"),
        ({"source": "table.csv", "kind": "tars"}, "expected files that end with .tar"),
        ({"source": "hf://datasets/ada/none"}, "the Hub does not give the data set ada/none"),
        ({"held_out": -0.1}, "held_out must be a share from 0 to below 1, but is -0.1"),
        ({"held_out": float("nan")}, "held_out must be"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1"),
        ({"vqgan": "none.safetensors"}, "expected the file of a VQ-GAN or 'train'"),
        ({"keep_local": False}, "keep_local is off, but nothing is sent anywhere"),
        ({"push_to": "data"}, "expected a repository as push_to, OWNER/NAME, but got 'data'"),
        ({"out": "bare"}, "expected a new folder, or one that was begun by the same call, but bare"),
        ({"filters": Filters(min_caption=2000)}, "nothing of pictures was kept .caption below 2000 letters: 3.:"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_told_with_what_was_expected(tmp_path, monkeypatch, hub, wrong, expected):
    monkeypatch.chdir(tmp_path)
    as_folder(tmp_path / "pictures", pictures(3))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    for seed in range(2):
        picture(seed).save(tmp_path / "bare" / f"{seed}.png")
    (tmp_path / "table.csv").write_text("caption,photo\na,b\n")
    asked = {"source": "pictures", "out": "out", **SMALL, **wrong}
    with pytest.raises(ValueError, match=expected):
        prepare(asked.pop("source"), tmp_path.relative_to(tmp_path) / asked.pop("out"), **asked)


def test_a_package_that_is_missing_is_told_with_the_command_that_brings_it(tmp_path):
    code = (
        "import sys; sys.modules['imagehash'] = None; from dalle_lib.streaming.prepare import prepare_dataset\n"
        "try: prepare_dataset('pictures', 'out', vqgan='train')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert 'needs ImageHash, which is not installed: pip install "dalle-lib[prepare]"' in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_tells_a_script_what_came_of_it(tmp_path, monkeypatch, capsys):
    from dalle_lib.cli import main

    source = str(as_folder(tmp_path / "in", pictures(9)))
    command = ["dalle-lib", "prepare", source, str(tmp_path / "out"), "--vqgan", "emoji-mini", "--held-out", "0.3"]
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    main()
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 9
    assert told["splits"]["train"]["rows"] + told["splits"]["held_out"]["rows"] == 9
    assert told["data"]["train"] == "train"
    assert told["vqgan_sha256"] == sha256_of(VQGAN)
    monkeypatch.setattr(sys, "argv", command)
    main()
    assert f"dalle-lib run new {tmp_path / 'out'}-run --data {tmp_path / 'out'}" in capsys.readouterr().out
    assert "no run 'emoji-minni': did you mean emoji-mini" in answer(
        monkeypatch, "prepare", source, str(tmp_path / "other"), "--vqgan", "emoji-minni"
    )
