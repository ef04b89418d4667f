"""Peers behind links of uneven speed: who reduces follows what vouched peers have measured, which all of these are.

Real peers, which reach each other over the relay of `rehearsal/links.py`.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dalle_lib.rehearsal.links import Link, Plug, Relay

SCRIPT = Path(__file__).parent / "linked_peer.py"
SLOW, FAST = Link(up_mbps=8, down_mbps=80), Link(up_mbps=80, down_mbps=80)
TENSORS = 12
"""Of 2**18 values each: their bytes take a slow link three seconds."""
PATIENCE_S = 300
MEASURED, ROUNDS = [0.0, 0.5, 0.0, 0.5], 16
"""What each link is due, and the most rounds until it has that: four, or more where a busy machine slows down the fast
links, too."""


def started(folder: Path, plug: Plug, settings: dict) -> subprocess.Popen:
    """Start a peer at the end of a link; return its process."""
    folder.mkdir(parents=True)
    where = {"listens_at": plug.listens_at, "announced_at": plug.announced_at}
    (folder / "settings.json").write_text(json.dumps(settings | where))
    with (folder / "peer.log").open("w") as log:
        process = subprocess.Popen([sys.executable, SCRIPT, folder], stdout=log, stderr=log)
    plug.process = process.pid
    return process


def id_of(folder: Path, process: subprocess.Popen) -> str:
    """Return the id of a peer, once it can be reached."""
    deadline = time.monotonic() + PATIENCE_S
    while not ((folder / "id").exists() and (folder / "id").read_text()):
        has_ended = process.poll() is not None or time.monotonic() > deadline
        assert not has_ended, (folder / "peer.log").read_text()
        time.sleep(0.1)
    return (folder / "id").read_text()


def rounds_of(folder: Path, links: list[Link]) -> list[tuple[dict, ...]]:
    """Return what each link's peer has written of each round, until one has the shares `MEASURED`.

    Shares are in the order of the links, and sum to 1.
    """
    peers, ids, known = [], [], []
    with Relay() as relay:
        try:
            for number, link in enumerate(links):
                settings = {"tensors": TENSORS, "rounds": ROUNDS, "value": float(number)}
                plug, own = relay.plug(link), folder / f"peer-{number}"
                peers.append(
                    started(own, plug, settings | {"known": known, "peers": len(links), "until": sorted(MEASURED)})
                )
                ids.append(id_of(own, peers[-1]))
                known.append(f"{plug.announced_at}/p2p/{ids[-1]}")
            for process in peers:
                process.wait(timeout=PATIENCE_S)
        finally:
            for process in peers:
                process.kill()
    files = [folder / f"peer-{number}" / "rounds.jsonl" for number in range(len(links))]
    told = list(zip(*([json.loads(line) for line in file.read_text().splitlines()] for file in files), strict=True))
    for one in (one for told_of_round in told for one in told_of_round):
        one["shares"] = [one["shares"][peer] / sum(one["shares"].values()) for peer in ids]
    return told


@pytest.mark.chaos
def test_slow_links_stop_reducing_once_they_are_measured_and_all_agree_on_it(swarm_folder):
    told = rounds_of(swarm_folder, [SLOW, FAST, SLOW, FAST])
    for of_round in told:
        assert all(one["shares"] == of_round[0]["shares"] for one in of_round)
        assert [one["mean"] for one in of_round] == pytest.approx([1.5] * 4, rel=1e-3)  # of values 0 to 3
    assert told[0][0]["shares"] == [0.25] * 4, "nothing is known before the first round"
    assert told[-1][0]["shares"] == MEASURED
