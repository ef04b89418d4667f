"""The networks of the page that draws, as onnxruntime computes them: the same as the package's."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from checkout import ROOT

from dalle_lib import rerank, vqgan
from dalle_lib.inference import TextToImage
from dalle_lib.model.sampling import Sampler

HIDDEN = -np.inf


@pytest.fixture(scope="module")
def made(site_html) -> Path:
    """What a process of its own made for the site: PyTorch's exporter takes no functions that check shapes."""
    return site_html / "_static" / "draw"


@pytest.fixture(scope="module")
def python() -> TextToImage:
    return TextToImage.from_run("emoji", "cpu")


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@pytest.mark.site
def test_the_text_read_position_by_position_gives_the_logits_of_the_first_code(made, python):
    config, text = python.model.config, python.tokenizer(["penguin on a yellow background", "green frog"])
    step, turns = session(made / "step.onnx"), np.fromfile(made / "turns.bin", np.float32)
    turns = turns.reshape(-1, 2, config.dim_head)
    slots = {kind: config.grid * (3 if kind == "convolution" else 1) for kind in config.kinds}
    kept = np.zeros((config.depth, 2, 2, config.heads, config.text_part, config.dim_head), np.float32)
    shifted = np.zeros((2 * config.depth, 2, 1, config.dim // 2), np.float32)
    ids = np.pad(python.model.pad_uniquely(text).numpy().astype(np.int32), ((0, 0), (1, 0)))
    for place in range(config.text_part):
        feeds = {"ids": ids[:, place : place + 1], "turns": turns[place], "shifted": shifted, "text": kept}
        for kind, count in slots.items():
            feeds[f"mask_{kind}"] = np.full(config.text_part + count + 1, HIDDEN, np.float32)
            feeds[f"mask_{kind}"][[*range(place), -1]] = 0
        for block, kind in enumerate(config.kinds):
            feeds[f"codes_{block}"] = np.zeros((2, 2, config.heads, 1, slots[kind], config.dim_head), np.float32)
        logits, shifted, remembered = step.run(["logits", "halves", "remembered"], feeds)
        kept[..., place, :] = remembered[..., 0, :]
    expected = Sampler(python.model, 2, 1).start(text, text.new_zeros(2, 0))
    assert np.abs(logits[:, 0] - expected.numpy()).max() < 1e-4


@pytest.mark.site
def test_pictures_and_scores_are_those_of_the_package(made, python):
    codes = torch.randint(0, 2048, (3, 256), generator=torch.Generator().manual_seed(1))
    (pictures,) = session(made / "pictures.onnx").run(None, {"codes": codes.numpy().astype(np.int32)})
    expected = python.vqgan.decode(codes)
    difference = np.abs(pictures.astype(int) - expected.numpy().astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-3
    whole = {"padding": "max_length", "max_length": 17, "return_tensors": "np"}
    ids = python.ranker.tokenizer(["green frog"], **whole)["input_ids"].astype(np.int32)
    (scores,) = session(made / "scores.onnx").run(None, {"ids": ids, "pictures": expected.numpy()})
    assert np.abs(scores - python.ranker.score("green frog", expected).numpy()).max() < 1e-5


@pytest.mark.site
def test_a_code_is_shown_by_a_patch_like_the_decoders(made, python):
    patches = np.fromfile(made / "patches.bin", np.uint8).reshape(2048, 4, 4, 3)
    codes = torch.randint(0, 2048, (4, 1), generator=torch.Generator().manual_seed(2)).expand(4, 256)
    decoded = python.vqgan.decode(codes.contiguous())[:, 28:32, 28:32].numpy().astype(int)
    difference = np.abs(decoded.mean((1, 2)) - patches[codes[:, 0]].astype(int).mean((1, 2)))
    assert difference.max() < 40


def test_the_networks_are_exported_anew_where_any_code_of_theirs_has_changed(python, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "site"))
    from making import draw

    ranker = python.ranker
    parts = [ranker, *(part for one in (python.model, python.vqgan, ranker.model) for part in one.modules())]
    modules = {sys.modules[type(part).__module__] for part in parts}
    files = {Path(module.__file__) for module in modules if module.__name__.startswith("dalle_lib.")}
    names = {module.__name__.split(".")[0] for module in modules} - {"dalle_lib"}
    packages = {packages_distributions()[name][0] for name in names}
    assert {Path(vqgan.__file__), Path(rerank.__file__)} < files <= set(draw.SHAPED_BY)
    assert {"torch", "transformers"} < packages < set(draw.EXPORTED_WITH)


def test_without_npm_the_site_is_built_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "site"))
    from making import draw

    monkeypatch.setattr(draw, "NPM", tmp_path / "npm")
    monkeypatch.setattr(draw.shutil, "which", lambda _: None)
    assert draw.copy_runtime(tmp_path) is False
    assert "npm is missing" in capsys.readouterr().out


def test_the_lock_file_holds_each_package_to_its_hash_and_names_no_host():
    lock = (ROOT / "site" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "://" not in lock.replace("https://github.com", "").replace("https://opencollective.com", "")
    assert lock.count('"integrity": "sha512-') == lock.count('"node_modules/')
