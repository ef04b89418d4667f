"""What the supervisor gives to the peer's process that it starts."""

import os
import subprocess
import sys

import pytest

from dalle_lib.swarm import PeerSettings


@pytest.mark.parametrize(("own", "seen"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_a_peers_threads_sleep_while_they_wait_unless_its_volunteer_says_otherwise(tmp_path, own, seen):
    peer = tmp_path / "python"
    peer.write_text(f'#!/bin/sh\nenv > "{tmp_path}/environment"\n')
    peer.chmod(0o755)
    PeerSettings(run="emoji-mini", name="ada", threads=3).save(tmp_path / "settings.json")
    supervise = "import sys; from dalle_lib.swarm.process import supervisor as s; from pathlib import Path; "
    supervise += f"sys.executable = {str(peer)!r}; sys.exit(s.main(Path({str(tmp_path)!r})))"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | own
    quiet = {"stdin": subprocess.DEVNULL, "env": environment, "check": True, "timeout": 300}
    subprocess.run([sys.executable, "-c", supervise], **quiet)
    lines = (tmp_path / "environment").read_text().splitlines()
    assert {f"OMP_WAIT_POLICY={seen}", "OMP_NUM_THREADS=3"} <= set(lines)
