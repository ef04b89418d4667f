"""What keys are for, with real processes: a first peer that nobody signs in, and a member who finds it by the card."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from served_authority import ADA

from dalle_lib.hub_http import httpx
from dalle_lib.organizing.keys import FIRST_PEER, make_keys
from dalle_lib.organizing.options import KeySettings
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.crew import join_run
from dalle_lib.swarm.process.folder import crew_folder


@contextlib.contextmanager
def serving(folder: Path, port: int):
    """Serve an authority as the organiser does."""
    command = [sys.executable, "-m", "dalle_lib", "auth-server", "serve", "--folder", str(folder), "--port", str(port)]
    with open(folder.parent / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            assert server.poll() is None, (folder.parent / "server.log").read_text()
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10)
                break
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


@pytest.mark.peers
def test_a_first_peer_starts_by_its_key_and_a_member_needs_the_card_alone(swarm_folder, mini, hub):
    hub.users[ADA] = User("ada", {"crew": "read"})
    out, ports = swarm_folder / "run", (free_port(), free_port())
    mini.with_changes(name="club").save(out)
    keys = KeySettings(organization="crew", server=f"http://127.0.0.1:{ports[0]}", first_peer=f"127.0.0.1:{ports[1]}")
    made = make_keys(RunCard.load(out), out, keys)
    loopback = {"run": str(out), "host": "127.0.0.1"}
    place = crew_folder(made.peers, made.card, FIRST_PEER)
    with serving(made.authority, ports[0]):
        first = join_run(PeerSettings(name=FIRST_PEER, role="bootstrap", port=ports[1], **loopback), place)
        try:
            told = first.peers[FIRST_PEER].wait_for("connected", timeout_s=120)
            assert told["addresses"] == list(made.card.initial_peers)
            member = PeerSettings(name="ada", client_mode=True, device="cpu", **loopback)
            crew = join_run(member, swarm_folder / "peers", token=ADA, by_token=True)
            try:
                crew.peers["ada"].wait_for("joined", timeout_s=240)
            finally:
                crew.close()
        finally:
            first.close()
