"""Peers that lie among honest ones: with a rule that outvotes them they do no harm, while hivemind breaks.

Real peers learn to read digits (tests/attack_peer.py): 5 honest ones, one of which only connects out, and 2 attackers.
"""

import statistics
from collections.abc import Callable, Iterator

import pytest
import torch
from attack_swarm import AttackSwarm
from attacks import A_LITTLE, LEADER, REDUCER

from dalle_lib.aggregation import FAR, RULES, capped, without_far
from dalle_lib.auth import Role
from dalle_lib.swarm.averaging.reducing import MAX_WEIGHT, combine
from dalle_lib.swarm.averaging.trust import Trust

TOLERANCE = 1.05
"""An attack does no harm up to this multiple of the loss of the worst run without attackers."""
GROSS = ("noise", "NaN", "weight")
"""Lies of two; "weight" reverses gradients, too."""
MISMATCH = "is not what"
MEMBER, VOUCHED = Role.MEMBER, Role.VOUCHED

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def say(request) -> Say:
    """A function that prints a line at once, although pytest captures output."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def print_line(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    return print_line


@pytest.fixture(scope="module")
def started(mini, tmp_path_factory) -> Iterator[AttackSwarm]:
    with AttackSwarm(mini, tmp_path_factory.mktemp("attacks"), honest=5, attackers=2) as swarm:
        yield swarm


@pytest.fixture
def swarm(started) -> AttackSwarm:
    """The swarm of all tests here; of new peers if one ended in the test before, so that a second try is one."""
    started.renew()
    return started


def require_no_harm(swarm: AttackSwarm, bound: float, say: Say, what: str, **scenario) -> None:
    """Fail unless the loss of a run is within the bound, or, where it is not, those of two more runs are."""
    outcomes = [swarm.run(**scenario)]
    if not outcomes[0].loss <= bound:  # NaN too
        outcomes += [swarm.run(**scenario) for _ in range(2)]
    losses = ", ".join(f"{outcome.loss:.4f}" for outcome in outcomes)
    say(f"{what}: losses {losses} after 24 epochs, {sum(outcome.seconds for outcome in outcomes):.0f} s")
    assert not any(outcome.told(MISMATCH) for outcome in outcomes), "an honest reducer was called a liar"
    for outcome in outcomes:
        assert statistics.median(outcome.counted) >= swarm.honest, "the honest peers did not average together"
    assert sum(outcome.loss <= bound for outcome in outcomes) > len(outcomes) / 2


@pytest.fixture(scope="module")
def bound(started, say) -> float:
    """Loss up to which an attack has done no harm."""
    losses = [started.run().loss for _ in range(2)]
    say(f"no attack: losses from {min(losses):.4f} to {max(losses):.4f}")
    assert max(losses) < 0.2 * torch.tensor(10.0).log()  # the logarithm is the loss of a model that has learnt nothing
    return TOLERANCE * max(losses)


@pytest.mark.chaos
@pytest.mark.parametrize(("attack", "upload_bits"), [("noise", 4), ("NaN", 8), ("weight", 8)])
def test_gross_lies_change_nothing(swarm, bound, say, attack, upload_bits):
    require_no_harm(swarm, bound, say, f"{attack}, {upload_bits} bits", attack=attack, upload_bits=upload_bits)


@pytest.mark.chaos
@pytest.mark.parametrize("attack", GROSS)
def test_gross_lies_break_hivemind(swarm, say, attack):
    outcome = swarm.run(attack=attack, is_stock=True, until_broken=True)
    say(f"{attack}, hivemind itself: loss {outcome.loss:.4g} after {len(outcome.losses[0]) - 1} epochs")
    assert outcome.is_broken


@pytest.mark.chaos
def test_lies_within_the_spread_of_honest_peers_are_outvoted_where_peers_send_momentum(swarm, bound, say):
    require_no_harm(swarm, bound, say, A_LITTLE, attack=A_LITTLE, worker_momentum=True)


@pytest.mark.chaos
def test_a_reducer_that_lies_is_reported_with_the_peer_that_found_out(swarm, say):
    outcome = swarm.run(epochs=20, attack=REDUCER, upload_bits=4)
    found = outcome.told(MISMATCH)
    say(f"lying reducers, all reduce: loss {outcome.loss:.4g}, found {len(found)} times")
    honest, liars = swarm.peer_ids[: swarm.honest], swarm.peer_ids[swarm.honest :]
    assert found
    assert {teller for teller, _ in found} <= set(honest)
    assert {accused for _, accused in found} <= set(liars)
    for teller, problem in outcome.problems:
        assert MISMATCH not in problem["problem"] or teller in problem["problem"]


@pytest.mark.chaos
def test_a_leader_that_makes_itself_the_only_reducer_is_left_and_named(swarm, bound, say):
    outcome = swarm.run(attack=LEADER)
    found = outcome.told("the group that it leads is refused")
    say(f"lying leaders: loss {outcome.loss:.4g}, named {len(found)} times")
    honest, liars = swarm.peer_ids[: swarm.honest], swarm.peer_ids[swarm.honest :]
    assert found
    assert {teller for teller, _ in found} <= set(honest)
    assert {accused for _, accused in found} <= set(liars)
    assert outcome.loss <= 1.1 * bound  # who leaves a group may train that epoch on its own gradient


@pytest.mark.chaos
def test_strangers_cannot_reduce_where_members_do(swarm, bound, say):
    members = swarm.invite([MEMBER] * 5 + [None] * 2)
    limits = {"reducers": "members", "members": members}
    require_no_harm(swarm, bound, say, "lying strangers", attack=REDUCER, are_strangers=True, **limits)


@pytest.mark.chaos
def test_members_cannot_reduce_where_vouched_peers_do(swarm, bound, say):
    members = swarm.invite([VOUCHED] * 3 + [MEMBER] * 4)
    require_no_harm(swarm, bound, say, "lying members", attack=REDUCER, reducers="vouched", members=members)


@pytest.mark.chaos
def test_a_liar_among_four_peers_changes_nothing(mini, tmp_path):
    with AttackSwarm(mini, tmp_path, honest=3, attackers=1) as swarm:
        honest, attacked = (swarm.run(epochs=10, attack=attack) for attack in (None, "sign flip"))
        stock = swarm.run(epochs=10, attack="sign flip", is_stock=True, until_broken=True)
    assert attacked.loss <= TOLERANCE * honest.loss
    liar = swarm.peer_ids[-1]
    assert {accused for _, accused in attacked.told("did not count")} == {liar}
    assert stock.is_broken


def test_a_part_far_longer_than_others_does_not_count():
    torch.manual_seed(0)
    parts = torch.randn(5, 101)
    parts[3] *= 1.1 * FAR
    parts[4] *= 0.9 * FAR
    assert without_far(parts, torch.ones(5)).tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert without_far(parts[2:4], torch.ones(2)).tolist() == [1.0, 1.0]  # two cannot outvote each other
    sparse = torch.zeros(5, 101)
    sparse[0, 0] = 1.0
    assert without_far(sparse, torch.ones(5)).tolist() == [1.0] * 5


@pytest.mark.parametrize("rule", sorted(RULES.keys() - {"mean"}))
def test_two_of_seven_cannot_claim_the_majority(rule):
    torch.manual_seed(0)
    parts = [torch.ones(101) + 0.1 * torch.randn(101) for _ in range(5)] + [-torch.ones(101)] * 2
    claimed = torch.tensor([48.0] * 5 + [1e12] * 2)
    average, weights = combine(parts, claimed, list("abcdefg"), Trust(rule=rule), torch.ones(7, dtype=torch.bool))
    assert average.mean() > 0.4
    assert weights.tolist() == [48.0] * 7


@pytest.mark.parametrize("rule", sorted(RULES))
def test_slow_peers_count_for_less_than_their_samples_with_rules_that_outvote(rule):
    """Prints a row of docs/threats.md: the share in a merged gradient of a peer with a quarter of the samples."""
    torch.manual_seed(0)
    samples = torch.tensor([48.0] * 5 + [12.0] * 2)
    shares = []
    for _ in range(30):
        noise = torch.randn(7, 4096) / samples.sqrt()[:, None]
        merged = RULES[rule](noise, samples if rule == "mean" else capped(samples, MAX_WEIGHT))
        shares.append((noise @ merged) / noise.square().sum(1))
    fast, slow = (float(share.mean()) for share in torch.stack(shares).mean(0).split([5, 2]))
    fair = 12 / float(samples.sum())
    print(f"{rule}: {slow:.1%} of a slow peer ({fair:.1%} by samples), {fast:.1%} of another ({4 * fair:.1%})")
    assert slow == pytest.approx(fair, rel=0.1) if rule == "mean" else slow < 0.6 * fair
