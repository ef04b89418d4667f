"""The state of another peer is taken over bit for bit, and only if it can be right."""

import math
import subprocess
import sys

import pytest
import torch
from one_hot import OneHotSwarm, one_hot_card

from dalle_lib.swarm.averaging.donors import ExpectedState

TRAVEL = """
import hivemind, torch
from hivemind.optim.state_averager import TrainingStateAverager
from dalle_lib.optimizer import LAMB8bit

SHAPES = (300, 301), (50, 7)

def peer(seed, initial_peers):
    torch.manual_seed(seed)
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=initial_peers)
    averager = TrainingStateAverager(
        dht=dht, prefix="travel", start=True, target_group_size=2, optimizer=LAMB8bit, offload_optimizer=True,
        custom_gradients=True, params=[torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES],
    )
    return dht, averager

def train(averager):
    for i, p in enumerate(averager.optimizer.param_groups[0]["params"]):
        p.grad.copy_(torch.randn(SHAPES[i], generator=torch.Generator().manual_seed(averager.local_epoch)))
    averager.step(optimizer_step=True, increment_epoch=True)

def check_equal(donor, joiner):
    for a, b in zip(donor.main_parameters, joiner.main_parameters, strict=True):
        assert torch.equal(a, b), "parameters differ"
    ours, theirs = (averager.optimizer.state_dict()["state"] for averager in (donor, joiner))
    scaled = {"first", "first_scales", "second", "second_scales"}
    assert [set(state) for state in theirs.values()] == [scaled, {"first", "second"}], "other things came along"
    for i, state in ours.items():
        for name, value in state.items():
            assert value.any(), name
            assert theirs[i][name].dtype == value.dtype, (i, name, theirs[i][name].dtype)
            assert torch.equal(theirs[i][name], value), (i, name)
    assert ours[0]["first"].dtype == ours[0]["second"].dtype == torch.uint8

peers = []
try:
    peers.append(peer(1, []))
    peers.append(peer(2, peers[0][0].get_visible_maddrs()))
    (_, donor), (_, joiner) = peers
    for _ in range(3):
        train(donor)
    donor.state_sharing_priority = donor.local_epoch
    joiner.load_state_from_peers(timeout=60)
    assert joiner.local_epoch == 3, "nothing was loaded"
    check_equal(donor, joiner)
    train(donor), train(joiner)
    check_equal(donor, joiner)
finally:
    for dht, averager in peers:
        averager.shutdown()
        dht.shutdown()
"""


def test_statistics_travel_to_a_peer_that_joins_bit_for_bit():
    done = subprocess.run([sys.executable, "-c", TRAVEL], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


EXPECTED = ExpectedState((((2, 3), torch.float32), ((4,), torch.uint8)), min_epoch=5, max_epoch=100)
STATE = {"epoch": 7}, [torch.zeros(2, 3), torch.zeros(4, dtype=torch.uint8)]


def test_a_state_of_the_right_form_has_no_problem():
    assert EXPECTED.problem(*STATE) is None


@pytest.mark.parametrize(
    ("metadata", "tensors", "told"),
    [
        (None, STATE[1], "its epoch is None"),
        ({"epoch": "7"}, STATE[1], "its epoch is '7'"),
        ({"epoch": 4}, STATE[1], "its epoch is 4, expected 5 to 100"),
        ({"epoch": 101}, STATE[1], "its epoch is 101"),
        (STATE[0], STATE[1][:1], "it has 1 tensors, expected 2"),
        (STATE[0], [torch.zeros(3, 2), STATE[1][1]], r"its tensor 0 is torch.float32 (3, 2)"),
        (STATE[0], [STATE[1][0].half(), STATE[1][1]], "its tensor 0 is torch.float16"),
        (STATE[0], [STATE[1][0], torch.zeros(4)], "its tensor 1 is torch.float32"),
        (STATE[0], [torch.full((2, 3), math.nan), STATE[1][1]], "its tensor 0 holds NaN"),
        (STATE[0], [torch.full((2, 3), math.inf), STATE[1][1]], "its tensor 0 holds NaN or infinity"),
    ],
)
def test_a_state_that_cannot_be_right_is_refused_with_a_reason(metadata, tensors, told):
    assert told in EXPECTED.problem(metadata, tensors)


@pytest.mark.chaos
def test_a_newcomer_refuses_spoilt_states_and_takes_the_next(mini, swarm_folder):
    spoilt = {"with_nan": "NaN", "too_long": "it is larger than", "silent": "did not arrive"}
    with OneHotSwarm(one_hot_card(mini, state_every=1000), swarm_folder) as swarm:
        honest, *liars = swarm.add(), *(swarm.add(spoils=how) for how in spoilt)
        swarm.go()
        swarm.wait_for_epoch(3)
        late = swarm.add()
        swarm.wait(lambda: late.events("joined"))
        swarm.wait(lambda: late.events("update"))
        told = {event["peer"]: event["problem"] for event in late.events("problem") if "state" in event["problem"]}
        assert {peer.peer_id for peer in liars} == set(told), swarm.told()
        for peer, what in zip(liars, spoilt.values(), strict=True):
            assert what in told[peer.peer_id], told
        (joined,) = late.events("joined")
        assert joined["epoch"] >= 3
        # It goes on from the honest peer's parameters; each peer's part of an update is less than 1.
        epoch, values = late.states()[0]
        assert values[:, 0].min() > 0.5
        assert torch.allclose(values, [v for e, v in honest.states() if e <= epoch][-1], atol=0.7)


@pytest.mark.chaos
def test_without_a_good_state_a_newcomer_goes_on_from_its_own_and_counts_once_averaged(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1000), swarm_folder) as swarm:
        liar = swarm.add(spoils="with_nan")
        swarm.go()
        swarm.wait_for_epoch(2)
        late = swarm.add()
        swarm.wait(lambda: late.events("joined"))
        joined_at = liar.epoch
        swarm.wait_together([liar, late], after=joined_at)
        (left_out, *_) = late.events("LeftOut")
        assert "no peer could give its state" in left_out["reason"]
        for _, values in (*liar.states(), *late.states()):
            assert values.isfinite().all()
        assert torch.allclose(liar.states()[-1][1], late.states()[-1][1], atol=1.1)  # equal within one update
