"""What the supervisor gives to the peer's process that it starts."""

import os
import subprocess
import sys

import psutil
import pytest
from full_disk import fill_disk
from supervised import supervised
from waiting import wait_until

from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.events import read_events
from dalle_lib.swarm.process.join import CANNOT_WRITE


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


def test_a_supervisor_that_cannot_write_how_its_peer_ended_says_so_by_its_exit_code(tmp_path):
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 3"
    with supervised(tmp_path, script, stderr=subprocess.PIPE) as supervisor:
        print(file=supervisor.stdin, flush=True)  # no Hub token
        wait_until(lambda: read_events(tmp_path))
        fill_disk(psutil.Process(supervisor.pid))
        (tmp_path / "go").touch()
        _, said = supervisor.communicate(timeout=60)
    assert supervisor.returncode == CANNOT_WRITE
    assert said.splitlines()[-1].endswith("so nobody is told that the peer's process ended with exit code 3")
    assert [event["event"] for event in read_events(tmp_path)][-1] == "started"
