"""Two kits on one machine: those of one protocol train together, and of two each is told of the other.

An earlier kit is a wheel of a commit, in a folder of its own; the peers of each kit are started by its own command.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from checkout import ROOT, copy_checkout
from test_package import build, run
from waiting import wait_until

from dalle_lib.run import PROTOCOL, RunCard
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.version import __version__

EARLIER = "fbd449234f4934e30a781e953ed30e90dfdbca34"
"""A commit whose kit has today's protocol, though it is of an earlier version. Whoever raises PROTOCOL names the first
commit that has it; who sees these tests fail has changed what peers say to each other, and raises it."""
LATER = "99.0.0"

pytestmark = pytest.mark.chaos


def installed(source: Path) -> Path:
    """Return the folder into which a wheel of `source` was installed, and nothing else."""
    (wheel,) = build(source, "--wheel").glob("*.whl")
    folder = source.with_name(f"{source.name}-kit")
    run("-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--target", folder, wheel, cwd=source)
    return folder


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """The kit of the commit EARLIER."""
    archive = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.fail(
            f"this test builds the kit of commit {EARLIER[:7]}, which is not here: fetch the whole history, "
            f"`git fetch --unshallow`. git says: {archive.stderr.decode().strip()}"
        )
    source = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    return installed(source)


@pytest.fixture(scope="module")
def later(tmp_path_factory) -> Path:
    """Today's kit under a later version, with another protocol."""
    source = copy_checkout(tmp_path_factory.mktemp("later"))
    for name, old, new in (
        ("version.py", f'"{__version__}"', f'"{LATER}"'),
        ("run/card.py", f"PROTOCOL = {PROTOCOL}", f"PROTOCOL = {PROTOCOL + 1}"),
    ):
        file = source / "dalle_lib" / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    return installed(source)


@pytest.fixture
def card(mini) -> RunCard:
    """A run of quick epochs."""
    quick = {"target_batch_size": 32, "matchmaking_s": 4.0, "timeout_s": 30.0}
    return mini.with_changes(averaging={**mini.averaging.model_dump(), **quick})


@contextmanager
def started(kit: Path, folder: Path, name: str, *options: str) -> Iterator[subprocess.Popen]:
    """Start a peer by the command of another kit, and make it leave at the end of the block."""
    command = [sys.executable, "-m", "dalle_lib", "join", "--name", name, "--host", "127.0.0.1", *options]
    with open(folder / f"{name}.txt", "w") as shown:
        process = subprocess.Popen(
            [*command, "--folder", str(folder)],
            cwd=folder,
            stdout=shown,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(kit), "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(120)


def for_any_kit(run: str | Path) -> None:
    """Write a run's card without what has its default, which earlier kits may not know: so also without a protocol."""
    text = RunCard.load(run).model_dump_json(exclude_defaults=True)
    assert '"protocol"' not in text
    Path(run, "run.json").write_text(text)


def problems(peer: Peer) -> list[str]:
    return [event["problem"] for event in peer.events() if event["event"] == "problem"]


def rounds_of_two(peer: Peer) -> list[dict]:
    """Return the rounds in which the gradients of two peers counted, as one of them reports them."""
    rounds = [event for event in peer.events() if event["event"] == "averaged"]
    return [event for event in rounds if sum(weight > 0 for weight in event["counted"].values()) == 2]


def test_kits_of_one_protocol_train_together(card, earlier, swarm_folder):
    with local_swarm(card, swarm_folder) as swarm:
        for_any_kit(swarm.run)
        ada = swarm.add(PeerSettings(run="", name="ada", batch_size=8))
        with started(earlier, swarm_folder, "bob", "--run", swarm.run, "--batch-size", "8", "--threads", "1"):
            bob = Peer(swarm_folder / card.name / "bob")
            wait_until(
                lambda: len(rounds_of_two(ada)) >= 2 and len(rounds_of_two(bob)) >= 2,
                timeout_s=300,
                told=lambda: f"{ada.log_tail()}\n{(swarm_folder / 'bob.txt').read_text()}",
            )
            kits = {peer.name: peer.kit for peer in SwarmStatus.read(swarm.bootstrap.folder).peers}
            assert kits.keys() == {"ada", "bob"}
            assert kits["ada"] == __version__ != kits["bob"], "bob has another kit"


@pytest.mark.long
def test_a_newcomer_with_a_newer_kit_is_told_and_so_is_the_first_peer(card, later, swarm_folder):
    with local_swarm(card, swarm_folder) as swarm:
        for_any_kit(swarm.run)
        with started(later, swarm_folder, "bob", "--run", swarm.run) as bob:
            assert bob.wait(120) == 1
        own, theirs = f"{__version__} (protocol {PROTOCOL})", f"{LATER} (protocol {PROTOCOL + 1})"
        last = (swarm_folder / "bob.txt").read_text().splitlines()[-1]
        assert f"run 'emoji-mini' trains with dalle-lib {own}, you have {theirs}: ask its organiser to update" in last
        assert {event["event"] for event in Peer(swarm_folder / card.name / "bob").events()} == {
            "started", "failed", "ended"
        }, "nothing was downloaded or loaded"  # fmt: skip
        assert problems(swarm.bootstrap) == [
            f"a peer of this run's name has dalle-lib {theirs}, this one {own}: they never meet, so update this one"
        ]


def test_a_newcomer_to_a_run_of_a_newer_kit_is_told_to_update(card, later, swarm_folder):
    folder = card.with_changes(initial_peers=()).save(swarm_folder / "run")
    for_any_kit(folder)
    with ExitStack() as stack:
        stack.enter_context(started(later, swarm_folder, "first", "--run", str(folder), "--role", "bootstrap"))
        first = Peer(swarm_folder / card.name / "first")
        wait_until(lambda: first.folder.exists() and [e for e in first.events() if e["event"] == "connected"], 120)
        address = first.wait_for("connected")["addresses"][0]
        done = subprocess.run(
            [sys.executable, "-m", "dalle_lib", "join", "--run", folder, "--name", "ada", "--host", "127.0.0.1",
             "--initial-peers", address, "--folder", swarm_folder / "ada"],
            cwd=swarm_folder, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 1
        line = done.stderr.splitlines()[-1]
        assert re.search(
            rf"trains with dalle-lib {LATER} \(protocol {PROTOCOL + 1}\), you have {__version__} "
            rf"\(protocol {PROTOCOL}\): update with `pip install --upgrade dalle-lib`", line
        )  # fmt: skip
        assert len(problems(first)) == 1
        assert "so update that one" in problems(first)[0]
