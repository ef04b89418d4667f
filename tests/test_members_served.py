"""Real peers that train by access tokens of a real authority's server, which are short-lived here."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from served_authority import ADA, ServedAuthority
from test_swarm import short_run, trainer, wait_until

from dalle_lib.auth.server.database import Database
from dalle_lib.auth.tokens import TOKEN, AccessToken
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.swarm import NotAMember, Peer, local_swarm
from dalle_lib.swarm.process.join import LOG
from dalle_lib.swarm.process.local import BOOTSTRAP, PEERS, LocalSwarm
from dalle_lib.swarm.process.met import addresses_met
from dalle_lib.swarm.process.proof import prove_identity

ACCESS_S = 20
MEMBERS = ("bob", "cleo", "eve")


@pytest.fixture
def authority(tmp_path, hub, mini) -> Iterator[ServedAuthority]:
    card = short_run(mini, timeout_s=10, delayed=False).with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 10_000}
    )
    limits = {"access_s": ACCESS_S, "bans_every_s": 5, "joins_per_hour": 100_000, "joins_per_minute": 1000}
    served = ServedAuthority(tmp_path / "authority", hub, card, **limits)
    hub.users |= {f"hf_{name}": User(name, {"crew": "read"}) for name in MEMBERS}
    yield served
    served.stop()


@contextlib.contextmanager
def changing(authority: ServedAuthority) -> Iterator[Database]:
    """Open the server's data base beside it, as its organiser's commands do."""
    database = Database(authority.place.database)
    try:
        yield database
    finally:
        database.close()


def join(swarm: LocalSwarm, authority: ServedAuthority, name: str) -> Peer:
    """Prove who a volunteer is, and start their peer."""
    prove_identity(authority.card, swarm.folder / PEERS / name, f"hf_{name}")
    return swarm.add(trainer(name))


def expires(peer: Peer) -> float:
    return AccessToken.from_bytes((peer.folder / TOKEN).read_bytes()).expires.timestamp()


def rounds(peer: Peer, since: float) -> list[set[str]]:
    """Return whose gradients counted in each round that a peer has told of after a time."""
    told = [event for event in peer.events() if event["event"] == "averaged" and event["time"] > since]
    return [{who for who, samples in event["counted"].items() if samples > 0} for event in told]


def counted_since(peer: Peer, since: float, others: list[Peer]) -> bool:
    """Return whether the gradients of all `others` counted in one of `rounds`."""
    ids = {other.wait_for("joined")["peer_id"] for other in others}
    return any(ids <= counted for counted in rounds(peer, since))


def processes(peer: Peer) -> list[psutil.Process]:
    supervisor = psutil.Process(int((peer.folder / "supervisor.pid").read_text()))
    return [supervisor, *supervisor.children(recursive=True)]


def send(number: signal.Signals, family: list[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


@pytest.mark.chaos
@pytest.mark.long
def test_members_go_on_past_a_ban_a_dead_bootstrap_peer_and_a_sleep_longer_than_their_access(authority, swarm_folder):
    folder = swarm_folder / "swarm"
    folder.mkdir()
    prove_identity(authority.card, folder / BOOTSTRAP, ADA)
    with local_swarm(authority.card, folder) as swarm:
        bob, cleo, eve = (join(swarm, authority, name) for name in MEMBERS)
        for peer in bob, cleo, eve:
            peer.wait_for("joined")
        eve_id = eve.wait_for("joined")["peer_id"]
        begun, first = time.time(), {peer: expires(peer) for peer in (bob, cleo)}
        wait_until(lambda: counted_since(bob, begun, [bob, cleo, eve]))

        with changing(authority) as database:
            database.ban("user", "eve", "sends noise", time.time())
        # It reads the list of bans, or first hears it from the authority, whom it asks for a new access token.
        with pytest.raises(NotAMember, match=r"('eve' or peer .*|eve) is banned.*sk (its|the run's) organiser why"):
            eve.wait(timeout_s=120)
        left_at = time.time()
        del swarm.peers["eve"]  # the swarm's end shall not tell of it again
        assert "left" in [event["event"] for event in eve.events()], "it has saved its progress"
        wait_until(lambda: all(counted_since(peer, left_at, [bob, cleo]) for peer in (bob, cleo)))

        # All of this is longer than an access token counts.
        wait_until(lambda: time.time() > max(first.values()) and all(expires(peer) > first[peer] for peer in first))
        late = time.time()
        wait_until(lambda: all(counted_since(peer, late, [bob, cleo]) for peer in (bob, cleo)))
        for peer in bob, cleo:  # one round may have begun before its peers had read the ban
            assert not any(eve_id in counted for counted in rounds(peer, left_at)[1:])

        # The bootstrap peer, the only one in the card, is gone for good; who comes back finds those it has met.
        met = {address.rpartition("/")[2] for address in addresses_met(bob.folder)}
        assert cleo.wait_for("joined")["peer_id"] in met
        bob.stop()
        send(signal.SIGKILL, processes(swarm.bootstrap))
        wait_until(lambda: not swarm.bootstrap.is_running)
        bob = join(swarm, authority, "bob")
        back = bob.wait_for("joined")["time"]
        wait_until(lambda: counted_since(cleo, back, [bob, cleo]))

        family = processes(bob)
        send(signal.SIGSTOP, family)
        wait_until(lambda: time.time() > expires(bob) + 1)
        slept = expires(bob)
        send(signal.SIGCONT, family)
        woke = time.time()
        wait_until(lambda: expires(bob) > slept)
        wait_until(lambda: counted_since(cleo, woke, [bob, cleo]))

        log = "".join((peer.folder / LOG).read_text() for peer in (bob, cleo, eve))
        assert "access token was renewed" in log
        assert "HTTP Request" not in log
        assert f"{authority.card.members.server}/runs" not in log
