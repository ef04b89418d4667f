"""How long does a volunteer wait, from typing `dalle-lib join` until a gradient of theirs counts?

On this machine: the authority's server, a first peer, two volunteers who train, and a stand-in for the Hub. A third
volunteer types `dalle-lib join --run owner/name`, proves who they are by a link and a code, which somebody approves at
once, and counts when their gradient is in an update with another's. The kit is installed already; the run's card, data
and weights come from the stand-in. Prints JSON: seconds (figure) against 60 s (reference), with what took them.

All peers share this machine's cores with the newcomer, which volunteers do not.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from dalle_lib.organizing.keys import FIRST_PEER, make_keys
from dalle_lib.organizing.options import KeySettings
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.rehearsal.evening import Evening, free_place
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer, PeerSettings, join_run
from dalle_lib.swarm.process.folder import crew_folder, own_id

LOCALHOST, REPOSITORY = "127.0.0.1", "crew/timed"
REFERENCE_S, PATIENCE_S = 60.0, 600.0
OTHERS = ("ada", "bob")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Which run is joined."""

    run: str = "emoji-mini"
    """An embedded run, or the folder of another without members."""
    duty: float = 0.5
    """Share of the time in which each of the two others computes."""


def begun(benchmark: Benchmark, folder: Path, evening: Evening) -> list:
    """Publish the run with keys of its own, start authority, first peer and the others, and return the crews."""
    RunCard.load(benchmark.run).with_changes(name="timed", initial_peers=()).save(folder / "timed")
    server = f"http://{free_place()}"
    settings = KeySettings(organization="crew", server=server, client_id="timed", first_peer=free_place())
    keys = make_keys(RunCard.load(folder / "timed"), folder / "timed", settings)
    publish_run(folder / "timed", REPOSITORY, evening.tokens["organiser"])
    evening.serve(keys.authority, server)
    port = int(settings.first_peer.rpartition(":")[2])
    first = PeerSettings(run=REPOSITORY, name=FIRST_PEER, role="bootstrap", host=LOCALHOST, port=port)
    crews = [join_run(first, crew_folder(keys.peers, keys.card, FIRST_PEER))]
    crews[0].peers[FIRST_PEER].wait_for("connected", timeout_s=PATIENCE_S)
    for name in OTHERS:
        evening.sign_in(name)
        other = PeerSettings(run=REPOSITORY, name=name, host=LOCALHOST, duty=benchmark.duty)
        crews.append(join_run(other, folder / name))
    for crew, name in zip(crews[1:], OTHERS, strict=True):
        crew.peers[name].wait_for("epoch", timeout_s=PATIENCE_S)
    return crews


def timed(folder: Path, evening: Evening) -> dict[str, float]:
    """Return the seconds from typing the command until each step of the newcomer."""
    evening.sign_in("new")
    command = [sys.executable, "-m", "dalle_lib", "join", "--run", REPOSITORY, "--name", "new", "--host", LOCALHOST]
    typed = time.time()
    with open(folder / "new.log", "wb") as log:
        newcomer = subprocess.Popen([*command, "--folder", str(folder / "new")], stdout=log, stderr=log)
    try:
        return {step: at - typed for step, at in _steps(folder, newcomer, typed + PATIENCE_S)}
    finally:
        newcomer.terminate()
        newcomer.wait(120)


def _steps(folder: Path, newcomer: subprocess.Popen, deadline: float):
    steps = ["started", "connected", "joined", "averaged"]
    while steps:
        for file in (folder / "new").glob("*/new/events.jsonl"):
            for event in Peer(file.parent).events():
                is_next = steps and event["event"] == steps[0]
                if is_next and (steps[0] != "averaged" or _counts(event, own_id(file.parent))):
                    yield steps.pop(0), event["time"]
        if newcomer.poll() is not None or time.time() > deadline:
            raise RuntimeError(f"the newcomer did not count: {(folder / 'new.log').read_text()[-2000:]}")
        time.sleep(0.1)


def _counts(averaged: dict, own: str) -> bool:
    """Return whether a gradient of the peer with this id is in an update with another's."""
    return len(averaged["shares"]) > 1 and averaged["shares"].get(own, 0) > 0


def main(benchmark: Benchmark) -> None:
    """Measure, and print the result."""
    load = os.getloadavg()[0]
    people = dict.fromkeys(("organiser", *OTHERS, "new"), ("crew",))
    with tempfile.TemporaryDirectory() as made, closing(Evening(Path(made) / "hub", people)) as evening:
        folder = Path(made)
        with contextlib.redirect_stdout(sys.stderr):  # links and codes
            crews = begun(benchmark, folder, evening)
        try:
            seconds = timed(folder, evening)
        finally:
            for crew in reversed(crews):
                crew.close()
    figure = seconds["averaged"]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, load {load:.1f} before"
    result = {"figure": figure, "reference": REFERENCE_S, "ratio": figure / REFERENCE_S, "seconds": seconds}
    print(json.dumps(result | {"run": benchmark.run, "machine": machine}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
