"""A bootstrap peer keeps its run's card right: newcomers find it where it is now, and no first peer that is gone."""

import signal
import subprocess
import sys

import pytest
from ports import free_port

from dalle_lib.organizing import refreshing
from dalle_lib.organizing.editing import edit_run
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.organizing.refreshing import CardRefresher, refreshing_card, right_addresses
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.events import EventLog

ME, OTHER = "QmZ6fyUGT9u8SevfWhTzAM8x7gKhgPFahFkZCq1o3FgQju", "Qmb1ZXbxRTdhwhNpDPwwKHvGmujQ2h54g5sHqYTdgunzrk"


def at(host: str, peer: str = ME, kind: str = "ip4", port: int = 4000) -> str:
    return f"/{kind}/{host}/tcp/{port}/p2p/{peer}"


OWN = [at("127.0.0.1"), at("10.1.2.3"), at("93.184.216.34")]


@pytest.mark.parametrize(
    ("card", "own", "gone", "right"),
    [
        ([], OWN, [], [at("93.184.216.34")]),
        ([at("8.8.8.8"), at("9.9.9.9", OTHER)], OWN, [], [at("93.184.216.34"), at("9.9.9.9", OTHER)]),
        ([at("first.example", kind="dns4"), at("8.8.8.8")], OWN, [], [at("first.example", kind="dns4")]),
        ([at("8.8.8.8")], OWN[:2], [], [at("8.8.8.8")]),
        ([at("10.9.9.9")], OWN[:2], [], [at("10.1.2.3")]),
        ([], OWN[:1], [], [at("127.0.0.1")]),
        ([at("9.9.9.9", OTHER), at("93.184.216.34")], OWN, [], [at("9.9.9.9", OTHER), at("93.184.216.34")]),
        ([at("9.9.9.9", OTHER)], OWN, [at("9.9.9.9", OTHER)], [at("93.184.216.34")]),
        (["first.example:4000", at("999.1.1.1")], OWN, [], [at("93.184.216.34")]),
    ],
)
def test_a_card_names_where_its_peer_can_be_reached_from_furthest_away(card, own, gone, right):
    assert right_addresses(card, own, set(gone)) == tuple(right)


def test_who_is_silent_for_long_is_taken_out_and_each_change_is_one_commit(mini, hub, tmp_path, monkeypatch):
    hub.users["hf_organiser"] = User("ada", {"crew": "write"})
    silent = at("127.0.0.1", OTHER, port=free_port())
    publish_run(mini.with_changes(initial_peers=(silent,)).save(tmp_path / "run"), "crew/icons", "hf_organiser")
    EventLog(tmp_path).write("started")
    said, commits = [], lambda: len(hub.requests("POST /api/models/crew/icons/commit"))
    refresher, before = CardRefresher("crew/icons", Peer(tmp_path), "hf_organiser", said.append), commits()
    assert refresher.look() == 1.0, "it is not connected yet"
    EventLog(tmp_path).write("connected", addresses=OWN)
    assert refresher.look() == refreshing.CHANGE_EVERY_S
    assert RunCard.load("crew/icons").initial_peers == (OWN[2], silent)
    assert refresher.look() == refreshing.LOOK_EVERY_S
    monkeypatch.setattr(refreshing, "GONE_S", 0.0)
    refresher.look()
    assert RunCard.load("crew/icons").initial_peers == (OWN[2],)
    assert len(said) == commits() - before == 2, said
    EventLog(tmp_path).write("connected", addresses=[at("8.8.8.8")])
    hub.users["hf_organiser"] = User("ada", {"crew": "read"})
    assert refresher.look() == refreshing.CHANGE_EVERY_S
    assert "was not refreshed" in said[-1]
    hub.users["hf_organiser"] = User("ada", {"crew": "write"})
    refresher.look()
    assert RunCard.load("crew/icons").initial_peers == (at("8.8.8.8"),)


def test_what_others_change_meanwhile_stays(mini, hub, tmp_path, monkeypatch):
    hub.users["hf_organiser"] = User("ada", {"crew": "write"})
    publish_run(mini.save(tmp_path / "run"), "crew/icons", "hf_organiser")
    EventLog(tmp_path).write("connected", addresses=OWN)
    refresher = CardRefresher("crew/icons", Peer(tmp_path), "hf_organiser", print)
    other = (at("9.9.9.9", OTHER),)

    def others(*_) -> set[str]:
        edit_run("crew/icons", "hf_organiser", initial_peers=other)
        return set()

    monkeypatch.setattr(refresher, "_gone", others)
    refresher.look()
    assert set(RunCard.load("crew/icons").initial_peers) == {OWN[2], *other}


def test_who_cannot_change_the_card_is_told_before_anything_is_started(hub, tmp_path):
    for run, why in ("emoji-mini", "part of the kit"), ("crew/icons", "hf auth login"):
        with pytest.raises(ValueError, match=why), refreshing_card(run, Peer(tmp_path), None, print):
            raise AssertionError


def test_a_bootstrap_peer_on_another_port_is_in_its_runs_card_again(mini, swarm_folder):
    run = mini.with_changes(initial_peers=()).save(swarm_folder / "run")
    named = []
    for port in free_port(), free_port():
        command = ["join", "--run", run, "--name", "first", "--role", "bootstrap", "--host", "127.0.0.1"]
        command += ["--port", port, "--folder", swarm_folder / "peers", "--refresh-card"]
        words = [sys.executable, "-m", "dalle_lib", *map(str, command)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            told = next(line for line in process.stdout if "names as first peers now" in line)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=90)
        (address,) = RunCard.load(run).initial_peers
        assert address in told
        assert f"/tcp/{port}/" in address
        named.append(address.rpartition("/")[2])
    assert named[0] == named[1]
