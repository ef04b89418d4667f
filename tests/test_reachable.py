"""Whether others reach a peer, which it asks them at its start; a router is played on 127.0.0.1 (tests/routers.py)."""

import contextlib
import time
from functools import partial

import hivemind
import pytest
import waiting
from hivemind.dht.crypto import RSASignatureValidator
from ports import free_port
from routers import router

from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.words import NOBODY_REDUCES, UNREACHED, reach_line
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.peer import reachable
from dalle_lib.swarm.peer.first_peers import _dial_back
from dalle_lib.swarm.peer.reachable import ask_others, is_asked
from dalle_lib.swarm.process.join import Peer, join

wait_until = partial(waiting.wait_until, timeout_s=300.0)


@contextlib.contextmanager
def table(host: str = "127.0.0.1", *first: str, dials_back: bool = True):
    """A peer's part of a hash table, and its address."""
    dht = hivemind.DHT(start=True, initial_peers=list(first), host_maddrs=[f"/ip4/{host}/tcp/0"], startup_timeout=60)
    try:
        if dials_back:
            dht.run_coroutine(_dial_back)
        yield dht, str(dht.get_visible_maddrs()[0])
    finally:
        dht.shutdown()


def through(port: int, address: str) -> str:
    """The address of the same peer by way of a port of 127.0.0.1."""
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{address.rpartition('/')[2]}"


def port_in(address: str) -> int:
    return int(address.split("/")[4])


@pytest.mark.peers
def test_a_peer_behind_a_router_becomes_a_client_where_somebody_reduces_and_others_do_not(mini, monkeypatch):
    monkeypatch.setattr(reachable, "TRY_EVERY_S", 1.5)
    key = f"{mini.key}_progress"

    def says_of_itself(dht: hivemind.DHT, client_mode: bool) -> None:
        mark = RSASignatureValidator().local_public_key
        assert dht.store(key, {"client_mode": client_mode}, time.time() + 60, subkey=mark)

    def asked(new: hivemind.DHT, *first: str) -> dict:
        return ask_others(new, mini, PeerSettings(run="emoji-mini", initial_peers=first))

    with table() as (first, address), router(port_in(address)) as port:
        with table("127.0.0.2", address) as (new, _):
            says_of_itself(first, False)
            assert asked(new, address) == {"reached": True, "is_client": False}
        behind = through(port, address)
        with table("127.0.0.2", behind) as (new, _):
            assert asked(new, behind) == {"reached": False, "is_client": True}
        with table("127.0.0.3", address) as (_, beside), table("127.0.0.2", behind, beside) as (near, _):
            assert asked(near, behind, beside)["reached"] is None, "as in a network with a first peer elsewhere"
    with (
        table() as (first, address),
        router(port_in(address)) as port,
        table("127.0.0.2", behind := through(port, address)) as (new, _),
    ):
        says_of_itself(first, True)
        assert asked(new, behind) == {"reached": False, "is_client": False}, "nobody else reduces"
    with table(dials_back=False) as (_, address), table("127.0.0.2", address) as (new, _):
        assert asked(new, address) == {"reached": None, "is_client": False}, "as with a first peer of an old version"
    with table("127.0.0.2") as (new, _):
        assert asked(new) == {"reached": None, "is_client": False}, "nobody is there"


def test_a_peer_asks_unless_its_volunteer_has_said_how_it_is_or_all_are_on_its_machine():
    def asks(**settings) -> bool:
        return is_asked(PeerSettings(run="emoji-mini", **settings))

    assert asks()
    assert not asks(client_mode=True)
    assert not asks(client_mode=False)
    assert not asks(announce=("/dns4/home.example/tcp/31337",))
    assert not asks(host="127.0.0.1")
    assert not asks(role="bootstrap")


def test_what_was_found_is_told():
    def told(**found) -> str | None:
        return reach_line([{"event": "connected", "addresses": [], **found}])

    assert [told(), told(reached=None, is_client=False), told(reached=True, is_client=False)] == [None] * 3
    assert reach_line([]) is None
    assert told(reached=False, is_client=True) == UNREACHED
    assert told(reached=False, is_client=False) == NOBODY_REDUCES


@pytest.mark.chaos
@pytest.mark.long
def test_the_gradient_of_a_peer_behind_a_router_counts_and_one_that_is_reached_reduces(mini, swarm_folder):
    averaging = {**mini.averaging.model_dump(), "target_batch_size": 96, "timeout_s": 10.0}
    card = mini.with_changes(averaging=averaging)

    def joined(name: str, run: object, host: str) -> tuple[Peer, dict]:
        settings = PeerSettings(run=str(run), name=name, host=host, threads=1, device="cpu", batch_size=8)
        peer = join(settings, swarm_folder / name)
        return peer, peer.wait_for("connected", timeout_s=300)

    def rounds_of(peer: Peer) -> list[dict]:
        return [event for event in peer.events() if event["event"] == "averaged" and len(event["shares"]) == 3]

    with contextlib.ExitStack() as stack:
        swarm = stack.enter_context(local_swarm(card, swarm_folder / "swarm"))
        (address,) = RunCard.load(swarm.run).initial_peers
        of_first, of_ada, listens_on = stack.enter_context(router(port_in(address))), None, free_port()
        of_ada = stack.enter_context(router(listens_on))
        announced = (f"/ip4/127.0.0.1/tcp/{of_ada}",)
        swarm.add(PeerSettings(run="", name="ada", batch_size=8, port=listens_on, announce=announced))
        swarm.peers["ada"].wait_for("epoch", timeout_s=300)
        near, told = joined("near", swarm.run, "127.0.0.3")
        stack.callback(near.stop)
        assert told["is_client"] is False, "the first peer reaches it; to ada, it may seem to be the router"
        near.wait_for("epoch", timeout_s=300)
        away = RunCard.load(swarm.run).with_changes(initial_peers=(through(of_first, address),))
        home, told = joined("home", away.save(swarm_folder / "run-from-home"), "127.0.0.2")
        stack.callback(home.stop)
        assert (told["reached"], told["is_client"]) == (False, True)
        wait_until(lambda: len(rounds_of(home)) >= 3, told=lambda: str(home.events()[-20:]))
        for done in rounds_of(home)[-2:]:
            assert min(done["shares"].values()) > 0
            assert done["error"] is None
        assert f"{UNREACHED}." in panel_html(home)
