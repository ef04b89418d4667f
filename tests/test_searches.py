"""Whom a search of the hash table asks, and what it finds, whatever others answer."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hivemind.dht import DHTID
from hivemind.dht.node import Blacklist
from hivemind.dht.traverse import traverse_dht
from hivemind.p2p import PeerID
from hivemind.utils import TimedStorage

from dalle_lib.swarm import hash_table, searches


def asked_by(get_neighbors) -> int:
    """Return how many peers a search asks that begins with two."""
    asked = []

    async def ask(peer, queries):
        asked.append(peer)
        return get_neighbors(peer, queries)

    async def search():
        options = {"beam_size": 20, "num_workers": 4, "queries_per_call": 1}
        await asyncio.wait_for(
            searches.traverse(
                queries=[DHTID(0)], initial_nodes=[DHTID(2**90), DHTID(2**80)], get_neighbors=ask, **options
            ),
            60,
        )

    asyncio.run(search())
    return len(asked)


def test_ever_nearer_peers_do_not_keep_a_search_from_ending(monkeypatch):
    def nearer(peer, queries):
        return dict.fromkeys(queries, (tuple(DHTID(int(peer) - number) for number in (1, 2, 3)), False))

    assert asked_by(nearer) == searches.MAX_ASKED
    monkeypatch.setattr(searches, "SEARCH_S", 0.0)
    assert asked_by(nearer) == 0


def test_an_answer_that_breaks_hiveminds_search_counts_as_none():
    def broken(peer, queries):
        raise TypeError("what a stranger chose")

    assert asked_by(broken) == 2


@pytest.mark.parametrize("is_stock", [False, True], ids=["the kit's search", "hivemind's search"])
def test_names_of_nobody_near_to_a_key_hide_no_peer(is_stock):
    rng, key = random.Random(0), DHTID(0)
    peers = {DHTID(rng.randrange(2**150, 2**160)) for _ in range(100)}
    nobody = [DHTID(number) for number in range(1, 21)]
    liar, *known = sorted(peers, key=key.xor_distance)[::5]
    knows = {peer: rng.sample(sorted(peers), 10) + sorted(peers, key=peer.xor_distance)[1:20] for peer in peers}

    async def ask(peer, queries):
        if peer not in peers:
            searches.unanswered.get(set()).add(peer)
        near = sorted(knows.get(peer, ()), key=key.xor_distance)[:20]
        return dict.fromkeys(queries, (tuple(nobody if peer == liar else near), False))

    async def search():
        options = {"beam_size": 20, "num_workers": 4, "queries_per_call": 1, "visited_nodes": {key: set()}}
        found = (traverse_dht if is_stock else searches.traverse)([key], [liar, *known], get_neighbors=ask, **options)
        return (await asyncio.wait_for(found, 60))[0][key]

    nearest = sorted(peers, key=key.xor_distance)[:20]
    assert asyncio.run(search()) == (nobody if is_stock else nearest)


PEERS = [PeerID(bytes([number]) * 34) for number in range(100)]
EVE, ADA, *OTHERS = PEERS


def named(*peers: PeerID) -> dict[DHTID, PeerID]:
    return {hash_table.node_id_of(peer): peer for peer in peers}


def test_names_of_peers_that_do_not_answer_are_followed_no_more_for_a_while():
    now = [0.0]
    namers, known = searches.Namers(lambda: now[0]), {ADA}
    silent = OTHERS[: searches.MAX_SILENT]
    assert namers.followed(EVE, named(ADA, *silent), known) == named(ADA, *silent)
    for peer in silent:
        assert namers.followed(EVE, named(OTHERS[-1]), known), "few may have left a moment ago"
        namers.note(peer, has_answered=False)
    assert namers.followed(EVE, named(ADA, OTHERS[-1]), known) == named(ADA), "whom this peer knows, it asks anyway"
    assert namers.followed(ADA, named(OTHERS[-2]), known) == named(OTHERS[-2])
    now[0] = searches.NOT_FOLLOWED_S
    assert namers.followed(EVE, named(OTHERS[-1]), known)


def test_who_names_more_peers_that_answer_than_silent_ones_is_followed():
    namers = searches.Namers()
    for alive, silent in zip(OTHERS[::2], OTHERS[1::2], strict=True):
        assert len(namers.followed(ADA, named(alive, silent), ())) == 2
        namers.note(silent, has_answered=False)
        namers.note(alive, has_answered=True)


def test_one_peer_that_answers_others_only_makes_nobody_ignored():
    now = [0.0]
    namers = searches.Namers(lambda: now[0])
    for _ in range(20):
        now[0] += hash_table.SILENT_S
        assert len(namers.followed(ADA, named(EVE, OTHERS[0]), ())) == 2
        namers.note(EVE, has_answered=False)


def test_names_of_peers_that_answer_earn_no_leave_to_name_many_that_do_not():
    namers = searches.Namers()
    namers.followed(EVE, named(*OTHERS[:20]), ())
    for peer in OTHERS[:20]:
        namers.note(peer, has_answered=True)
    namers.followed(EVE, named(*OTHERS[20:40]), ())
    for peer in OTHERS[20 : 20 + 2 * searches.MAX_SILENT]:
        namers.note(peer, has_answered=False)
    assert not namers.followed(EVE, named(OTHERS[-1]), ())


def test_names_without_end_take_no_memory():
    namers, rng = searches.Namers(), random.Random(0)
    for _ in range(200):
        eve, *nobody = (PeerID(rng.randbytes(34)) for _ in range(21))
        namers.followed(eve, named(*nobody), ())
        for peer in nobody[:2]:
            namers.note(peer, has_answered=False)
    assert max(len(table) for table in vars(namers).values() if isinstance(table, dict)) <= searches.MAX_NAMES


def test_who_has_not_answered_is_not_asked_again_at_once(monkeypatch):
    """What `keep` replaces also holds hivemind's list of silent peers."""
    monkeypatch.setattr(TimedStorage, "store", hash_table.keep)
    asked = []

    async def call_find(peer, keys):
        asked.append(peer)

    node = hash_table.Node(_initialized_with_create=True)
    node.blacklist = Blacklist(hash_table.SILENT_S, 1.0)
    node.protocol = SimpleNamespace(call_find=call_find)
    for peer in EVE, EVE, ADA:
        assert asyncio.run(node._call_find_with_blacklist(peer, [])) is None
    assert asked == [EVE, ADA]


def test_keepers_are_remembered_for_a_while_until_one_of_them_does_not_answer(monkeypatch):
    now = [100.0]
    keepers = searches.Keepers(lambda: now[0])
    ada, bob = (PeerID(bytes([number]) * 4) for number in (1, 2))
    near = {DHTID(1): ada, DHTID(3): bob}
    keepers.note(DHTID(7), near)
    keepers.note(DHTID(8), {DHTID(1): ada})
    assert (keepers.of(DHTID(7)), keepers.of(DHTID(9))) == (near, {})
    keepers.forget(bob)
    assert (keepers.of(DHTID(7)), keepers.of(DHTID(8))) == ({}, {DHTID(1): ada})
    now[0] += searches.KEEPERS_S
    assert not keepers.of(DHTID(8)), "somebody nearer may have come"
    monkeypatch.setattr(searches, "MAX_KEPT", 2)
    for key in range(5):
        keepers.note(DHTID(key), near)
    assert [key for key in range(5) if keepers.of(DHTID(key))] == [3, 4]
