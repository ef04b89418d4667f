"""The weekly check of what the kit fetches from others, here against stand-ins on this machine."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from checkout import NOTEBOOKS, ROOT, load_script

from dalle_lib.files import sha256_of
from dalle_lib.inference.published import save_published
from dalle_lib.model import DALLE, ModelConfig

ASSETS = ROOT / "dalle_lib" / "assets"
SMALL = ModelConfig(
    dim=32, depth=4, heads=2, dim_head=32, text_length=16, text_vocab=4096, image_vocab=2048, grid=8
)  # fmt: skip
CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
---
"""
RECORDS = 100
SHARD = "en/c4-train.00000-of-00001.json.gz"


@pytest.fixture
def command(hub, tmp_path, monkeypatch) -> list[str | Path]:
    """The check's command for a small model, its parts, a data set and a notebook on the stand-in for the Hub."""
    save_published(tmp_path / "model.pt", DALLE(SMALL))
    texts = "".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(RECORDS))
    hub.add("owner/paper", {"pytorch_model.pt": (tmp_path / "model.pt").read_bytes()})
    hub.add("owner/t5", {"tokenizer.json": (ASSETS / "tokenizer.json").read_bytes()})
    hub.add("datasets/owner/c4", {"README.md": CARD.encode(), SHARD: gzip.compress(texts.encode())})
    hub.add("owner/kit", {"04.ipynb": NOTEBOOKS[-1].read_bytes()})
    hub.add("owner/clip", ASSETS / "clip")
    kept = tmp_path / "home" / "dalle_lib" / "vqgan_gumbel_f8_8192.safetensors"  # as if fetched and converted before
    kept.parent.mkdir(parents=True)
    shutil.copy(ASSETS / "vqgan.safetensors", kept)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "badges.md").write_text(f"| [download]({hub.url}/owner/kit/raw/main/04.ipynb) |")
    options = {
        "badges": tmp_path / "badges.md", "text": "owner/c4", "model": "owner/paper", "vqgan": "http://127.0.0.1:9/",
        "tokenizer": "owner/t5", "clip": "owner/clip", **asdict(SMALL), "out": tmp_path / "out",
    }  # fmt: skip
    sizes = {name: value for name, value in options.items() if not isinstance(value, bool | tuple)}
    flags = [part for name, value in sizes.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return [sys.executable, ROOT / "scripts" / "real_check.py", *flags]


def run(command: list[str | Path]) -> subprocess.CompletedProcess:
    """Run the check in a process of its own: the Hub's clients keep the address that they asked first."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_each_source_is_tried_and_its_digest_printed(command, tmp_path):
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 checks passed" in done.stdout
    assert done.stdout.count("ok      ") == 7
    for file in tmp_path / "model.pt", ASSETS / "vqgan.safetensors", ASSETS / "clip" / "model.safetensors":
        assert sha256_of(file) in done.stdout
    assert list((tmp_path / "out").glob("*.png"))


def test_a_failed_check_says_why_and_the_others_go_on(command, hub):
    hub.add("owner/t5", {"tokenizer.json": None})
    hub.add("owner/kit", {"04.ipynb": b"<html>not found</html>"})
    hub.add("datasets/owner/c4", {SHARD: gzip.compress(b'{"text": "one"}\n')})
    done = run(command)
    assert done.returncode == 1, done.stderr
    assert re.search(r"FAILED  badge .*JSONDecodeError", done.stdout)
    assert re.search(r"FAILED  100 records of owner/c4: ValueError: .*ended after 1", done.stdout)
    assert re.search(r"FAILED  the tokenizer of captions: \w+: .*owner/t5", done.stdout)
    assert re.search(r"FAILED  a picture", done.stdout)
    assert "3 of 7 checks passed" in done.stdout


def test_every_badge_of_every_notebook_is_opened():
    addresses = load_script("scripts/real_check").Sources().addresses()
    assert len(addresses) == 3 * len(NOTEBOOKS)
    for notebook in NOTEBOOKS:
        assert sum(Path(address).name == notebook.name for address in addresses) == 3
