"""A peer's way into a run past first peers that are away, silent or itself."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from conftest import living
from ports import free_port

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings, join_run
from dalle_lib.swarm.process.crew import require_way_in
from dalle_lib.swarm.process.folder import IDENTITY

PEER = "12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
NEWCOMERS = """
import sys
from pathlib import Path
from dalle_lib.run import RunCard
from dalle_lib.swarm import CannotJoin, PeerSettings
from dalle_lib.swarm.peer.main import connect
from dalle_lib.swarm.peer.membership import Membership

folder, *silent = sys.argv[1:]
card = RunCard.load(folder + "/run")
membership = Membership(card, Path(folder, "newcomer"))
for role in "trainer", "bootstrap":
    settings = PeerSettings(run=folder + "/run", role=role, host="127.0.0.1", initial_peers=tuple(silent))
    try:
        dht = connect(card, settings, membership, [])
        print(role, "got in," if dht.run_coroutine(known) else "begins,", len(dht.initial_peers))
        dht.shutdown()
    except CannotJoin as error:
        print(role, "cannot:", error)
"""
KNOWN = """
async def known(dht, node):
    return len(node.protocol.routing_table.uid_to_peer_id)


async def addresses(dht, node):
    return len(dht.first_peers)
"""
APART = (
    KNOWN
    + """
import sys, time, hivemind
from pathlib import Path
from dalle_lib.swarm.peer import first_peers

first_peers.FIRST_PEERS_EVERY_S = 0.2
here, there = ({"host_maddrs": [f"/ip4/127.0.0.1/tcp/{port}"]} for port in sys.argv[1:3])
wrong = f"/ip4/127.0.0.1/tcp/{sys.argv[2]}/p2p/" + sys.argv[4]
silent = 300 * ["/ip4/127.0.0.1/tcp/1/p2p/" + sys.argv[4]]  # too long for hivemind's messages to the hash table
first = hivemind.DHT(**there, start=True, identity_path=sys.argv[3])
address = str(first.get_visible_maddrs()[0])
first.shutdown()
began = hivemind.DHT(**here, start=False)
first_peers.start(began, [wrong, *silent, address], Path(sys.argv[5]))
assert began.run_coroutine(addresses) == 302
time.sleep(1)
first = hivemind.DHT(**there, start=True, identity_path=sys.argv[3])
deadline = time.monotonic() + 60
while not all(dht.run_coroutine(known) for dht in (began, first)):
    assert time.monotonic() < deadline, "they have not met"
    time.sleep(0.1)
assert first.store("key", "value", time.time() + 60)
assert began.get("key").value == "value"
for dht in began, first:
    dht.shutdown()
"""
)


def run(script: str, *arguments) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.chaos
@pytest.mark.long
def test_the_cards_only_first_peer_starts_again_and_newcomers_find_it_past_silent_ones(mini, swarm_folder):
    card = mini.with_changes(initial_peers=()).save(swarm_folder / "run")
    settings = PeerSettings(run=str(card), role="bootstrap", name="first", host="127.0.0.1", port=free_port())
    first = join_run(settings, swarm_folder).peers["first"]
    addresses = first.wait_for("connected")["addresses"]
    RunCard.load(card).with_changes(initial_peers=tuple(addresses)).save(card)
    supervisor = psutil.Process(int((first.folder / "supervisor.pid").read_text()))
    processes = [supervisor, *supervisor.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
            process.kill()
    assert not living(processes)
    first = join_run(settings, swarm_folder).peers["first"]
    assert first.wait_for("connected")["addresses"] == addresses
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/"
        silent = [place + Identity.load_or_create(swarm_folder / f"{i}.key").peer_id for i in range(3)]
        told = run(KNOWN + NEWCOMERS, swarm_folder, *silent).splitlines()
        assert told == ["trainer got in, 4", "bootstrap got in, 4"], "all of them are called again"
    family = psutil.Process(first.events()[0]["pid"])
    frozen = [each for each in [family, *family.children(recursive=True)] if each.name() != "p2pd"]
    for process in frozen:
        os.kill(process.pid, signal.SIGSTOP)
    refused, begun = run(KNOWN + NEWCOMERS, swarm_folder).splitlines()
    for process in frozen:
        os.kill(process.pid, signal.SIGCONT)
    assert refused.startswith("trainer cannot: this peer found no first peer of the run (there is a peer, but its hash")
    assert begun == "bootstrap begins, 1"
    first.stop()


def test_swarms_that_began_apart_meet_when_a_first_peer_is_back(tmp_path):
    run(APART, free_port(), free_port(), tmp_path / IDENTITY, PEER, tmp_path)


@pytest.mark.parametrize("begins", [{"alone": True}, {"role": "bootstrap"}], ids=str)
def test_who_may_begin_a_swarm_does_where_no_first_peer_answers_and_says_so(mini, tmp_path, begins):
    said, card = [], mini.with_changes(initial_peers=(NOBODY,))
    with pytest.raises(ConnectionError, match="none of the first peers of emoji-mini answers"):
        require_way_in(PeerSettings(run="emoji-mini", name="ada"), card, tmp_path, say=said.append)
    assert not said
    require_way_in(PeerSettings(run="emoji-mini", name="ada", **begins), card, tmp_path, say=said.append)
    (line,) = said
    assert line.startswith("None of the first peers of emoji-mini answers (127.0.0.1 port 1: Connection refused): ada")


def test_a_peers_own_address_is_nobody_elses(mini, tmp_path):
    own = Identity.load_or_create(tmp_path / "ada" / IDENTITY).peer_id
    card, said = mini.with_changes(initial_peers=(NOBODY.replace(PEER, own),)), []
    require_way_in(PeerSettings(run="emoji-mini", name="ada", alone=True), card, tmp_path, say=said.append)
    assert not said, "it is the first and only one: nobody is missing"
    with pytest.raises(ValueError, match="no address of another peer"):
        require_way_in(PeerSettings(run="emoji-mini", name="ada"), card, tmp_path)


@pytest.mark.parametrize(("role", "may_begin"), [("trainer", True), ("observer", False)])
def test_only_who_may_begin_a_swarm_is_told_how(mini, tmp_path, role, may_begin):
    with pytest.raises(ValueError, match="Add --initial-peers") as told:
        require_way_in(PeerSettings(run="emoji-mini", name="ada", role=role), mini, tmp_path)
    assert ("--alone" in str(told.value)) == may_begin
