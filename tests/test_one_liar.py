"""One member of three ends no epoch and no run by what it claims or does, and has no more of the parameters than due.

Real peers: two honest ones, and others that are not (`lie`, and WASTES, in tests/one_hot_peer.py).
"""

import json
from itertools import pairwise

import pytest
import torch
from noted_averages import Average, averages
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card
from one_hot_peer import LIES, SHOWN, TENSORS

from dalle_lib.auth import Authority
from dalle_lib.run import RunCard

EPOCHS, SHARE, SAMPLES = 100, 0.5, 1024


@pytest.fixture
def authority() -> Authority:
    return Authority.generate()


@pytest.fixture
def card(mini, authority) -> RunCard:
    members = {"authority": authority.public_key, "max_share": SHARE}
    averaging = {"target_batch_size": SAMPLES, "state_every": 1}
    return one_hot_card(mini.with_changes(members=members), total_epochs=EPOCHS, **averaging)


@pytest.mark.chaos
def test_a_liar_of_three_ends_nothing_and_rules_nothing(card, authority, swarm_folder):
    with OneHotSwarm(card, swarm_folder, authority=authority) as swarm:
        honest, liar = [swarm.add(), swarm.add()], swarm.add(lies=True)
        swarm.go()

        def names_the_liar(what: str) -> bool:
            told = [[e for e in peer.events("problem") if what in e["problem"]] for peer in honest]
            assert {event["peer"] for events in told for event in events} <= {liar.peer_id}, swarm.told()
            return all(told)

        def tell(**lies) -> None:
            (liar.folder / "new").write_text(json.dumps(lies))
            (liar.folder / "new").rename(liar.folder / LIES)

        # A weight of 10^12 in all averages of parameters: a third, as everybody, where nobody lacks an update.
        swarm.wait(lambda: thirds_of_averages(swarm, honest))
        swarm.wait(lambda: names_the_liar("claims a weight of"))

        # Samples of the next epoch, computed long ago at an impossible speed.
        epoch, ids = 0, {peer.peer_id for peer in honest}
        for _ in range(2):
            counted = {}
            while not ids <= counted.keys():  # a group now and then lacks a peer
                epoch = max(epoch, *(peer.epoch for peer in honest)) + 1
                tell(epoch=epoch, samples_accumulated=0, samples_per_second=1e12, age_s=60)
                swarm.wait_for_epoch(epoch + 1, honest)
                counted = honest[0].rounds().get(epoch, {}).get("counted", {})
            computed = sum(counted[peer] for peer in ids)
            assert computed > 0.8 * (1 - SHARE) * SAMPLES, f"epoch {epoch} ended early\n{swarm.told()}"
        assert names_the_liar("samples a second")

        # The end of the run.
        tell(epoch=EPOCHS)
        swarm.wait(lambda: names_the_liar(f"claims epoch {EPOCHS}"))
        told_at = max(peer.epoch for peer in honest)
        swarm.wait_for_epoch(told_at + 2, honest)
        for peer in honest:
            epochs = [event["epoch"] for event in peer.events("update")]
            assert peer.is_running
            assert not peer.events("left")
            assert max(b - a for a, b in pairwise(epochs)) <= 2, swarm.told()
        assert abs(honest[0].epoch - honest[1].epoch) <= 1
        assert thirds_of_averages(swarm, honest)


def thirds_of_averages(swarm: OneHotSwarm, honest: list[OneHotPeer]) -> list[Average]:
    """Return the averages of parameters in which all three peers have weight 1, as these two peers were told.

    Each average is held to what its weights make due: nobody has more than 1, nor more than half of all. Who lacks an
    update has none beside two that lack none, as after a round that it missed: then the liar has half, as beside one
    other peer. And nothing else changes the value about which it lies.
    """
    shown = [[-values[:, SHOWN - 1] for _, values in peer.states()] for peer in honest]  # before the notes of them
    noted = averages(peer.folder for peer in swarm.peers)
    for peer, states in zip(honest, shown, strict=True):
        id, taken_over = peer.peer_id, [event for event in peer.events("LeftOut") if "took over" in event["reason"]]
        for counted, average in ((average.counted[id], average) for average in noted if id in average.counted):
            assert max(counted.values()) <= 1.0, counted
            # Else a sender went away, so its later parts do not count; or its notes were read before the others'.
            if set(counted.values()) <= {0.0, 1.0} and counted.keys() <= average.sent.keys():
                assert 1.0 / sum(counted.values()) <= SHARE, counted
                torch.testing.assert_close(average.held[id], average.due(counted), atol=0.01, rtol=0.0)
        held = [torch.zeros(TENSORS), *(average.held[id] for average in noted if id in average.held)]
        for state in [] if taken_over else states:
            assert any(torch.equal(state, one) for one in held), state
    told = [[average.counted.get(peer.peer_id, {}) for peer in honest] for average in noted]
    return [one for one, of in zip(noted, told, strict=True) if all(list(c.values()) == [1.0] * 3 for c in of)]


WASTES = {
    "sends_away": "it gathered a group and sent it away late",
    "reduces_nothing": "rounds",
    "drips": "rounds",
    "splits": "rounds that it led failed",
}
"""What a peer is told to do that wastes the others' rounds, and a part of what they then say of it."""


@pytest.mark.chaos
@pytest.mark.long
def test_who_wastes_the_others_rounds_again_and_again_is_left_and_named(mini, swarm_folder):
    card = one_hot_card(mini, state_every=1000, matchmaking_s=2.0, timeout_s=4.0, part_bytes=2**9)
    with OneHotSwarm(card, swarm_folder) as swarm:
        honest = [swarm.add(), swarm.add()]
        swarm.go()

        def named(what: str) -> set[str]:
            problems = [event for peer in honest for event in peer.events("problem")]
            return {event["peer"] for event in problems if what in event["problem"]}

        left = set()
        for kind, what in WASTES.items():
            swarm.wait_together(honest, after=max(peer.epoch for peer in honest))
            wasteful = swarm.add(**{kind: True})
            swarm.wait(lambda added=wasteful: added.events("joined"))
            left.add(wasteful.peer_id)
            swarm.wait(lambda added=wasteful, what=what: added.peer_id in named(what))
            for _ in range(3):
                swarm.wait_together(honest, after=max(peer.epoch for peer in honest))
            assert named("rounds") | named("sent it away late") == left, swarm.told()
            wasteful.kill()
