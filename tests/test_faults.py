"""No gradient is lost: whatever happens to peers, each update is a mean of gradients, and the same on all of them.

The gradient of each peer is one coordinate (tests/one_hot_peer.py), so parameters show the weight of each gradient.
"""

import signal
import time

import pytest
import torch
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card

TOLERANCE = 0.02
"""Error that 8 and 16 bits may leave in a sum of weights."""


@pytest.fixture
def card(mini):
    """A run whose peers average parameters only when one of them lacks an update."""
    return one_hot_card(mini, state_every=1000)


def assert_whole(peers: list[OneHotPeer], updates: range, in_flight: int = 0) -> None:
    """Fail unless each of these updates is a mean of gradients, on each of these peers.

    The weights of an update sum to 1, and a peer has made as many updates as epochs, less those in flight. On a busy
    machine any may come too late for a round: it says so, and lacks an update until its parameters are averaged.
    """
    for peer in peers:
        for update in updates:
            sums = peer.weights(update).sum(1).tolist()
            assert sums == pytest.approx([1.0] * len(sums), abs=TOLERANCE), f"peer {peer.index}, update {update}"
        lacks = in_flight + bool(peer.events("LeftOut"))
        for epoch, values in peer.states():
            for total in values.sum(1).tolist():
                slack = TOLERANCE * max(1, epoch)
                assert epoch - lacks - slack <= total <= epoch + slack, f"peer {peer.index}, epoch {epoch}"


def assert_no_update_is_diluted(peer: OneHotPeer) -> None:
    """Fail unless parameters have always been the sum of whole updates; on a busy machine, a peer may lack some.

    They are no more than its epochs, or than those of the others whose parameters it has: a peer that came too late
    for a round may have them before it goes on to their epoch.
    """
    theirs = 0
    for event in peer.reader.starts()[-1]:
        if event["event"] == "ParameterRound":
            theirs = event["epoch"] + 1
        if event["event"] == "update":
            epoch, most = event["epoch"], max(event["epoch"], theirs)
            for total in torch.tensor(event["values"]).sum(1).tolist():
                slack = TOLERANCE * max(1, epoch)
                assert total == pytest.approx(min(round(total), most), abs=slack), f"peer {peer.index}, epoch {epoch}"


def are_equal(peers: list[OneHotPeer], updates: int) -> bool:
    """Return whether these peers had the same parameters when they had made `updates` updates."""
    first, *others = (peer.after(updates) for peer in peers)
    return all((other - first).abs().max() < 2 * TOLERANCE for other in others)


def became_equal(peers: list[OneHotPeer], updates: range) -> bool:
    """Return whether these peers had the same parameters after one of these numbers of updates.

    A busy peer may miss the first averaging of parameters after a failed round, and is then equal after a later one.
    """
    made = [{round(float(values.sum(1).mean())) for _, values in peer.states()} for peer in peers]
    return any(are_equal(peers, number) for number in set(updates).intersection(*made))


def in_step(peers: list[OneHotPeer], updates: range) -> bool:
    """Return whether these peers had the same parameters in an epoch of that number, after as many updates."""
    made = [{epoch for epoch, values in peer.states() if round(float(values.sum(1).mean())) == epoch} for peer in peers]
    return any(are_equal(peers, number) for number in set(updates).intersection(*made))


def assert_equal(peers: list[OneHotPeer], updates: int) -> None:
    """Fail unless `are_equal`, with the parameters of each peer."""
    assert are_equal(peers, updates), f"after {updates}:\n{[peer.after(updates) for peer in peers]}"


def assert_shares_are_weights(peers: list[OneHotPeer], peer: OneHotPeer, epoch: int) -> None:
    """Fail unless `peer` applied that epoch's gradients with the shares that it reports."""
    for weights in peer.weights(epoch + 1)[:, : len(peers)]:
        torch.testing.assert_close(weights, peer.shares(epoch, peers), rtol=0, atol=TOLERANCE)


@pytest.mark.chaos
def test_each_gradient_counts_by_its_samples(mini, swarm_folder):
    epochs = 12
    with OneHotSwarm(one_hot_card(mini, state_every=5), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add(step_s=0.4)]
        swarm.go()
        swarm.wait_for_epoch(epochs)
        assert_whole(peers, range(1, epochs + 1))
        assert len(swarm.together(peers, after=-1)) >= 0.8 * epochs, swarm.told()
        for peer in peers:
            for epoch in range(epochs):
                assert_shares_are_weights(peers, peer, epoch)
            counted = [event["counted"][peer.peer_id] for event in peer.events("Round")]
            assert sum(counted) == peer.events("Round")[-1]["computed"], swarm.told()
        slow = torch.stack([peers[0].shares(epoch, peers)[2] for epoch in range(epochs)])
        assert slow.mean() == pytest.approx(1 / 9, abs=0.05)
        assert_equal(peers, epochs)


@pytest.mark.chaos
def test_a_peer_killed_in_mid_round_costs_the_others_no_update(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        victim = {"dies_in": 2, "sends_before": 2}  # of the four parts of each tensor
        peers = [swarm.add(size=2_000_000, **faults) for faults in ({}, {}, victim)]
        swarm.go()
        survivors = peers[:2]
        swarm.wait_for_epoch(6, survivors)
        assert peers[2].process.returncode == -signal.SIGKILL
        assert all(peer.rounds()[2]["error"] for peer in survivors), "the round was over before the kill"
        assert_whole(survivors, range(1, 6))
        assert_equal(survivors, 5)


@pytest.mark.chaos
def test_a_frozen_peer_catches_up_and_counts_again(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        peers[2].send(signal.SIGSTOP)
        time.sleep(15)
        peers[2].send(signal.SIGCONT)
        thawed_in = peers[0].epoch
        assert thawed_in > 3, swarm.told()
        together = swarm.wait_together(peers, after=thawed_in) + 1
        swarm.wait_for_epoch(together + 3)
        assert_whole(peers[:2], range(1, together + 2))
        assert_equal(peers, together + 2)
        assert peers[2].events("LeftOut") or any(event["error"] for event in peers[2].events("Round"))


@pytest.mark.chaos
def test_a_failed_round_of_all_or_of_one_leaves_a_peer_its_own_gradient_until_the_next(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(fails_in=[2]), swarm.add(fails_in=[2]), swarm.add(fails_in=[2, 8])]
        swarm.go()
        swarm.wait_for_epoch(11)
        assert_whole(peers, range(1, 11))
        for epoch, failing in (2, peers), (8, peers[2:]):
            for peer in failing:
                first = next(values for at, values in peer.states() if at == epoch + 1)
                assert (first - peer.after(epoch))[:, peer.index].tolist() == pytest.approx([1.0] * 3, abs=TOLERANCE)
                assert "own gradient" in peer.rounds()[epoch]["error"]
        assert became_equal(peers, range(4, 9)), swarm.told()
        swarm.wait(lambda: became_equal(peers, range(10, min(peer.epoch for peer in peers))))


@pytest.mark.chaos
def test_a_peer_without_memory_for_an_update_says_so_and_takes_the_others_parameters(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add(no_memory_in=[2])]
        swarm.go()
        swarm.wait_for_epoch(4)
        swarm.wait(lambda: became_equal(peers, range(4, min(peer.epoch for peer in peers))))
        assert_whole(peers[:2], range(1, 4))
        assert any("update of epoch 2 was not made" in event["problem"] for event in peers[2].events("problem"))


@pytest.mark.chaos
def test_an_update_that_one_peer_lacks_is_not_diluted_where_the_others_have_own_gradients_in_it(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(fails_in=[2]), swarm.add(fails_in=[2]), swarm.add(fails_in=[2], no_memory_in=[2])]
        swarm.go()
        swarm.wait(lambda: became_equal(peers, range(3, min(peer.epoch for peer in peers))))
        assert any("update of epoch 2 was not made" in event["problem"] for event in peers[2].events("problem"))
        for peer in peers:
            assert_no_update_is_diluted(peer)


@pytest.mark.chaos
def test_a_peer_that_joins_late_takes_the_state_over_and_dilutes_no_update(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(3)
        peers.append(swarm.add(found_by=1))
        together = swarm.wait_together(peers, after=3) + 1
        swarm.wait_for_epoch(together + 3)
        assert peers[2].events("joined")[0]["epoch"] >= 3
        assert_whole(peers[:2], range(1, together + 3))
        assert_whole(peers[2:], range(together + 1, together + 3))
        assert_equal(peers, together + 2)


@pytest.mark.chaos
def test_a_peer_that_lags_an_epoch_dilutes_no_update(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        peers[2].process.send_signal(signal.SIGSTOP)  # what it averages with lives on, and is asked by the others
        swarm.wait_for_epoch(peers[2].epoch + 1, peers[:2])
        peers[2].process.send_signal(signal.SIGCONT)
        awake_in = peers[0].epoch
        together = swarm.wait_together(peers, after=awake_in) + 1
        swarm.wait(lambda: became_equal(peers, range(together + 1, min(peer.epoch for peer in peers))))
        for peer in peers:
            assert_no_update_is_diluted(peer)
        assert peers[2].events("LeftOut") or any(event["error"] for event in peers[2].events("Round"))


def was_ahead_in(peer: OneHotPeer) -> list[int]:
    """Return the epochs in which it was in the round of the epoch before."""
    return [event["epoch"] for event in peer.events("LeftOut") if "was an epoch ahead of" in event["reason"]]


@pytest.mark.chaos
def test_a_peer_that_ends_an_epoch_before_all_others_takes_it_again(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        first, *others = peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        for _ in range(8):  # the others may end their epoch without it, and so come to its own
            for peer in others:
                peer.process.send_signal(signal.SIGSTOP)
            swarm.wait(lambda: first.epoch > max(peer.epoch for peer in others))
            for peer in others:
                peer.process.send_signal(signal.SIGCONT)
            ahead = first.epoch
            swarm.wait(lambda ahead=ahead: was_ahead_in(first) or min(peer.epoch for peer in others) > ahead)
            if was_ahead_in(first):
                break
        (epoch, *_) = was_ahead_in(first)
        swarm.wait(lambda: sum(event["epoch"] == epoch for event in first.events("Round")) > 1)
        swarm.wait(lambda: in_step(peers, range(epoch + 1, 1 + min(peer.epoch for peer in peers))))
        for peer in others:
            assert_no_update_is_diluted(peer)


@pytest.mark.chaos
def test_the_others_go_on_when_the_bootstrap_peer_is_killed_between_rounds(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(dies_after=2), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(3, peers[1:])
        assert peers[0].process.wait() == -signal.SIGKILL
        for peer in peers[1:]:
            assert_shares_are_weights(peers, peer, 2)
            assert peer.shares(2, peers)[0] == 0
        living = [*peers[1:], swarm.add(found_by=1)]
        together = swarm.wait_together(living, after=2) + 1
        swarm.wait_for_epoch(together + 3, living)
        assert_whole(living[:2], range(1, together + 3))
        assert_equal(living, together + 2)


@pytest.mark.chaos
def test_a_peer_trains_on_alone_and_together_again(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        for peer in peers[1:]:
            peer.stop()
        left_in = peers[0].epoch
        swarm.wait_for_epoch(left_in + 2, peers[:1])
        alone = peers[0].weights(left_in + 2)
        assert alone[:, 0].tolist() == pytest.approx([1.0] * 3, abs=TOLERANCE)
        together = [peers[0], swarm.add(), swarm.add()]
        again = swarm.wait_together(together, after=left_in) + 1
        swarm.wait_for_epoch(again + 3, together)
        assert_whole(peers[:1], range(1, again + 3))
        # A busy peer may miss the next averaging of parameters; the one after it makes the peers equal.
        swarm.wait(lambda: are_equal(together, min(peer.epoch for peer in together) - 1))


@pytest.mark.chaos
@pytest.mark.parametrize("delayed", ["step", "averaging"])
def test_no_gradient_is_lost_while_updates_are_delayed(mini, swarm_folder, delayed):
    with OneHotSwarm(one_hot_card(mini, state_every=5, delayed=delayed), swarm_folder) as swarm:
        victim = {"dies_in": 4, "sends_before": 2}
        peers = [swarm.add(size=2_000_000, **faults) for faults in ({}, {}, victim)]
        swarm.go()
        survivors = peers[:2]
        swarm.wait_for_epoch(9, survivors)
        assert peers[2].process.returncode == -signal.SIGKILL
        assert all(peer.rounds()[4]["error"] for peer in survivors), "the round was over before the kill"
        assert len(swarm.together(survivors, after=-1)) >= 6
        assert_whole(survivors, range(1, 8), in_flight=1)
        for peer in peers:
            for epoch in range(3):
                assert_shares_are_weights(peers, peer, epoch)
        # A busy peer may miss the next averaging of parameters; the one after it makes the peers equal.
        swarm.wait(lambda: are_equal(survivors, min(peer.epoch for peer in survivors) - 1))
