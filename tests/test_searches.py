"""Whom a search of the hash table asks, and what it finds, whatever others answer."""

import asyncio
import random

import pytest
from hivemind.dht import DHTID
from hivemind.dht.traverse import traverse_dht

from dalle_lib.swarm import hash_table


def asked_by(get_neighbors) -> int:
    """Return how many peers a search asks that begins with two."""
    asked = []

    async def ask(peer, queries):
        asked.append(peer)
        return get_neighbors(peer, queries)

    async def search():
        options = {"beam_size": 20, "num_workers": 4, "queries_per_call": 1}
        await asyncio.wait_for(
            hash_table.traverse(
                queries=[DHTID(0)], initial_nodes=[DHTID(2**90), DHTID(2**80)], get_neighbors=ask, **options
            ),
            60,
        )

    asyncio.run(search())
    return len(asked)


def test_ever_nearer_peers_do_not_keep_a_search_from_ending(monkeypatch):
    def nearer(peer, queries):
        return dict.fromkeys(queries, (tuple(DHTID(int(peer) - number) for number in (1, 2, 3)), False))

    assert asked_by(nearer) == hash_table.MAX_ASKED
    monkeypatch.setattr(hash_table, "SEARCH_S", 0.0)
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
            hash_table._silent.get(set()).add(peer)
        near = sorted(knows.get(peer, ()), key=key.xor_distance)[:20]
        return dict.fromkeys(queries, (tuple(nobody if peer == liar else near), False))

    async def search():
        options = {"beam_size": 20, "num_workers": 4, "queries_per_call": 1, "visited_nodes": {key: set()}}
        found = (traverse_dht if is_stock else hash_table.traverse)([key], [liar, *known], get_neighbors=ask, **options)
        return (await asyncio.wait_for(found, 60))[0][key]

    nearest = sorted(peers, key=key.xor_distance)[:20]
    assert asyncio.run(search()) == (nobody if is_stock else nearest)
