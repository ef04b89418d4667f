"""A monitor of real peers flags the one that tells what is not so, and no other."""

import json
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.process.folder import SETTINGS

OFTEN = ("--checkpoint-minutes", "0.15", "--look-s", "0.5", "--status-s", "1")
NAMES = ("ada", "bob", "cleo")


@pytest.mark.chaos
@pytest.mark.long
def test_a_peer_that_boasts_of_weight_and_loss_is_flagged_and_honest_ones_are_not(mini, swarm_folder):
    quick = mini.with_changes(averaging={**mini.averaging.model_dump(), "target_batch_size": 128})
    trainers = [PeerSettings(run="", name=name, batch_size=8) for name in NAMES]
    watched, own = swarm_folder / "watched", swarm_folder / "mallory"
    own.mkdir(parents=True)
    with local_swarm(quick, swarm_folder / "swarm", trainers) as swarm:
        PeerSettings(run=swarm.run, name="mallory", host="127.0.0.1", batch_size=8).save(own / SETTINGS)
        script = Path(__file__).with_name("boasting_peer.py")
        boasting = subprocess.Popen([sys.executable, str(script), str(own)], stdin=subprocess.PIPE)
        boasting.stdin.write(b"\n")  # no Hub token
        boasting.stdin.flush()
        command = [sys.executable, "-m", "dalle_lib", "monitor", "--run", swarm.run, "--folder", str(watched), *OFTEN]
        monitor = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 600
            while not {"claims", "losses"} <= {alarm["kind"] for alarm in alarms_in(watched)}:
                assert time.monotonic() < deadline, alarms_in(watched)
                time.sleep(1)
        finally:
            monitor.terminate()
            monitor.communicate(timeout=120)
            boasting.communicate(timeout=120)
    told = [alarm["told"] for alarm in alarms_in(watched) if alarm["kind"] in ("claims", "losses")]
    assert all(each.startswith("mallory ") for each in told), told
    peers = {peer["name"]: peer["state"] for peer in json.loads((watched / "status.json").read_text())["peers"]}
    assert peers["mallory"] == "flagged"
    assert "flagged" not in {peers[name] for name in NAMES}
    with closing(sqlite3.connect(watched / "monitor.sqlite")) as database:
        rows = database.execute(
            "SELECT claimed - found FROM recomputed WHERE peer NOT IN (SELECT peer FROM starts WHERE name = 'mallory')"
        ).fetchall()
    assert statistics.median(abs(off) for (off,) in rows) < 0.01, rows


def alarms_in(folder: Path) -> list[dict]:
    try:
        return json.loads((folder / "status.json").read_text())["alarms"]
    except FileNotFoundError:
        return []
