"""Which donors a newcomer asks for a state, and in which order, whatever others offer."""

import asyncio

import pytest
from auth_peers import identity
from hivemind.p2p import PeerID
from state_donor import EXPECTED, WHOLE, newcomer, sent

from dalle_lib.swarm.averaging import donors
from dalle_lib.swarm.averaging.trust import Trust, owner_key


def test_who_gave_no_state_is_asked_last_and_one_donor_of_each_user():
    """Eve's peers offer the latest epoch again and again, and keep this peer waiting for their state."""
    users = {"eve 1": "eve", "eve 2": "eve", "ada": "ada", "bob": "bob"}
    names, asked = {identity(name).peer_id: name for name in users}, []
    offers = {owner_key(identity(name).public_key): 9 - rank for rank, name in enumerate(users)}

    def ask(peer: PeerID):
        asked.append(names[str(peer)])
        waits = sent(donors.waiting_message(1, 0.0), again=100, pause_s=0.01)
        return sent(*WHOLE) if asked[-1] == "bob" else waits

    class Users(Trust):
        def user_of(self, peer_id):
            return users[names[peer_id]]

    averager = newcomer(offers, ask, Users(), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(donors, "MAX_WAIT_S", 0.05)
        assert asyncio.run(donors.download(averager, EXPECTED, 60.0)) is not None
        assert asked == ["eve 1", "ada", "bob"], "those that look newest are asked first"
        asked.clear()
        assert asyncio.run(donors.download(averager, EXPECTED, 60.0)) is not None
        assert asked == ["bob"]
        del offers[owner_key(identity("bob").public_key)]
        asked.clear()
        assert asyncio.run(donors.download(averager, EXPECTED, 60.0)) is None
        assert asked == ["eve 2", "ada"], "where nobody else is, they are asked again: another peer of the same user"


def test_offers_of_strangers_take_no_donors_place_and_are_looked_up_side_by_side(monkeypatch):
    monkeypatch.setattr(donors, "LOOK_UP_AT_ONCE", 3)
    names = {identity(name).peer_id: name for name in ("eve 1", "eve 2", "ada", "bob")}
    offers = {owner_key(identity(name).public_key): 9 - rank for rank, name in enumerate(names.values())}
    asked, told, looks = [], [], []

    class Members(Trust):
        async def refusal(self, peer_id, token=b""):
            looks.append(names[peer_id])
            await asyncio.sleep(0.01)
            assert len(looks) == 3, "the others of its three are looked up meanwhile"
            return "it has no valid access token" if names[peer_id].startswith("eve") else None

    def ask(peer: PeerID):
        asked.append(names[str(peer)])
        return sent(*WHOLE)

    monkeypatch.setattr(donors, "MAX_DONORS", 1)
    assert asyncio.run(donors.download(newcomer(offers, ask, Members(), told), EXPECTED, 60.0)) is not None
    assert asked == ["ada"]
    assert looks == ["eve 1", "eve 2", "ada"]
    assert len(told) == 2
    monkeypatch.setattr(donors, "MAX_OFFERS", 2)
    del looks[1:]  # two more make three again
    assert asyncio.run(donors.download(newcomer(offers, ask, Members(), told), EXPECTED, 60.0)) is None
