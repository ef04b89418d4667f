import json
import re
import subprocess
import sys

import pytest
from PIL import Image

from dalle_lib.swarm.process.receipt import Receipt


@pytest.mark.chaos
def test_the_shortened_demo_trains_together_and_draws(swarm_folder):
    out = swarm_folder / "demo"
    command = [
        sys.executable,
        "-m",
        "dalle_lib",
        "demo",
        "--minutes",
        "0.9",
        "--late-s",
        "5",
        "--json",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = r"Drawing .*|Training .*|Looking for .*|Listening on .*|Joined at .*|Computing on .*|From start to .*|"
    told += r"What it means: .*|Ctrl\+C .*|\d+/\d+ · loss .*|  \S.*"
    assert not [line for line in done.stderr.splitlines() if not re.fullmatch(told, line)]
    summary = json.loads(done.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["epochs"] >= 2
    assert set(summary["samples_by_peer"]) == {"you", "ada", "eve"}
    assert summary["share_of_gradients"].keys() >= {"you", "ada"}
    for shares in summary["share_of_gradients_by_epoch"].values():
        assert abs(sum(shares.values()) - 1) < 1e-6
    assert summary["after"]["held_out_loss"] < summary["before"]["held_out_loss"]
    for name in "before_after.png", "best_of_32.png":
        with Image.open(out / name) as picture:
            assert picture.size[0] > 600
            assert len(picture.getcolors(2**24)) > 1000
    for kind in "webp", "gif":
        with Image.open(out / f"time_lapse.{kind}") as lapse:
            assert lapse.n_frames >= 2, "before training, and the monitor's first checkpoint"
    assert "emoji-mini" in (out / "dashboard" / "data.js").read_text()
    assert list((out / "dashboard" / "pictures").glob("*.webp")), "what the monitor's checkpoints have drawn"
    receipts = [Receipt.load(file) for file in (out / "receipts").glob("*.json")]
    assert {"you", "ada"} <= {receipt.name for receipt in receipts}
    for receipt in receipts:
        receipt.check()
        assert receipt.samples == summary["samples_by_peer"][receipt.name]
    assert (out / "run.png").stat().st_size > 10_000
    assert "<svg" in (out / "run.svg").read_text()
