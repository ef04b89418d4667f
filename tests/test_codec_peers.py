"""Peers in processes of their own average once, with hivemind's codecs and ours, before and since numpy 2.4."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import wire_peer

OLD, NEW = "<2.4", ">=2.4"
"""The versions of numpy with which hivemind 1.1.12 can decode its own 8-bit messages, and with which it cannot."""


def is_old(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2]) < (2, 4)


def with_numpy(requirement: str, folder: Path) -> dict[str, str]:
    """Return the environment in which this Python has such a numpy, installed into `folder` if its own is another."""
    if is_old(np.__version__) == (requirement == OLD):
        return dict(os.environ)
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([sys.executable, "-m", *install, f"numpy{requirement}"], check=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run_peers(names: tuple[str, str], environment: dict[str, str], files: list[Path]) -> list[str]:
    """Return the numpy version of each of two peers, which average and write their tensors to `files`."""
    commands = [[sys.executable, wire_peer.__file__, name, str(i), str(files[i])] for i, name in enumerate(names)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    peers = [subprocess.Popen(c, env=environment, start_new_session=True, **pipes) for c in commands]
    try:
        address = "\n"
        for peer in peers:
            print(address, end="", file=peer.stdin, flush=True)
            address = peer.stdout.readline()
        versions = [peer.stdout.readline().strip() for peer in peers]
        for peer in peers:
            peer.communicate()
        assert [peer.returncode for peer in peers] == [0, 0]
        return versions
    finally:
        for peer in peers:
            with peer, contextlib.suppress(ProcessLookupError):
                os.killpg(peer.pid, signal.SIGKILL)


def distances(names: tuple[str, str], requirement: str, folder: Path) -> list[list[float]]:
    """Return each peer's distances from the mean after a round, tensor by tensor, divided by those before it."""
    files = [folder / "0.pt", folder / "1.pt"]
    for version in run_peers(names, with_numpy(requirement, folder / "numpy"), files):
        assert is_old(version) == (requirement == OLD), version
    starts = [wire_peer.tensors(seed) for seed in (0, 1)]
    means = [torch.stack(pair).mean(0) for pair in zip(*starts, strict=True)]
    return [
        [float((e - m).norm() / (s - m).norm()) for e, s, m in zip(torch.load(file), own, means, strict=True)]
        for file, own in zip(files, starts, strict=True)
    ]


@pytest.mark.parametrize(
    ("names", "requirement"),
    [
        pytest.param(("stock", "ours"), OLD, id="hivemind's and ours"),
        pytest.param(("ours", "ours"), NEW, id="ours with the newest numpy", marks=pytest.mark.chaos),
    ],
)
def test_two_peers_end_at_the_mean(names, requirement, swarm_folder):
    for small, large, small_too in distances(names, requirement, swarm_folder):
        assert max(small, small_too) < 0.001, "16 bits"
        assert large < 0.03, "8 bits"


@pytest.mark.chaos
def test_hivemind_alone_still_exchanges_nothing_with_the_newest_numpy(swarm_folder):
    for _, large, _ in distances(("stock", "stock"), NEW, swarm_folder):
        assert large > 0.9, "hivemind decodes its 8-bit messages now: codec.py need not replace its codec for that"


@pytest.mark.chaos
def test_the_tests_of_the_codec_pass_with_the_newest_numpy(tmp_path):
    environment = with_numpy(NEW, tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_codec.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
