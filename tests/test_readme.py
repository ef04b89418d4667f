"""README's first page, and the lines that it shows, run as a reader would run them."""

import contextlib
import re
import subprocess
import sys

from checkout import ROOT
from PIL import Image

from dalle_lib.swarm import LocalSwarm, Peer

TEXT = (ROOT / "README.md").read_text()


def snippet(text: str) -> str:
    """Return the one Python block that contains `text`."""
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if text in block)
    return block


def run_in(folder, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_forty_lines_show_what_it_draws_how_to_train_draw_and_join_and_what_it_costs():
    first = "\n".join(TEXT.splitlines()[:40])
    for needed in ("](docs/", "make demo", "from_run(", "join_run(", "sent, and received", "leaves your machine"):
        assert needed in first
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        assert len([line for line in block.splitlines() if line]) <= 5


def test_the_lines_that_draw(tmp_path):
    told = run_in(tmp_path, snippet("TextToImage"))
    files = sorted((tmp_path / "pictures").glob("*.png"))
    assert files[-1].stem.endswith("-all")
    assert 1 <= len(files[:-1]) <= 4
    assert all(file.name in told for file in files)
    for file in files[:-1]:
        with Image.open(file) as picture:
            assert picture.size == (64, 64)


def test_the_lines_that_join_a_run_and_wait_until_it_is_complete(mini, swarm_folder):
    epochs = 2
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "warmup_epochs": 1, "total_epochs": epochs},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 32},
    )
    with contextlib.closing(LocalSwarm.start(card, swarm_folder / "swarm")) as swarm:
        code = (
            snippet("join_run").replace("owner/name", swarm.run).replace('name="ada"', 'name="ada", host="127.0.0.1"')
        )
        run_in(swarm_folder, code)
        peer = Peer(swarm_folder / "peers" / "ada")
        assert not peer.is_running
        assert [event["epoch"] for event in peer.events() if event["event"] == "left"] == [epochs]
