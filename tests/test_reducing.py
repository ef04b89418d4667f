"""One reducer, in this process: what it refuses, and that the others go on without the refused sender."""

import asyncio
from dataclasses import replace

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.partition import BannedException
from hypothesis import given
from hypothesis import strategies as st

from dalle_lib.aggregation import RULES, part_problem, weight_problem
from dalle_lib.compression import quantize
from dalle_lib.swarm.averaging.reducing import OWN_GRADIENT, Reducer, combine, fair_weights
from dalle_lib.swarm.averaging.trust import Trust

SHAPES = (torch.Size([5]), torch.Size([3]))
TRUST = Trust(max_weight=100.0)
LARGEST = torch.finfo(torch.bfloat16).max


def reduced(
    sent: dict[int, list], trust: Trust = TRUST, counts: tuple[bool, ...] = (True, True, True)
) -> tuple[list, Reducer]:
    """Return the answer to each sender's last part, and the reducer. `sent` holds (values, weight) pairs by sender."""

    async def answer(reducer: Reducer, sender: int):
        result = None
        try:
            for part, (values, weight) in enumerate(sent[sender]):
                result = await reducer.accumulate_part(sender, part, values, weight)
        except (AllreduceException, BannedException) as error:
            reducer.on_sender_failed(sender)
            return error
        return result

    async def run():
        reducer = Reducer(SHAPES, [f"peer{i}" for i in range(len(counts))], 0, trust, counts)
        return await asyncio.gather(*(answer(reducer, sender) for sender in sent)), reducer

    return asyncio.run(asyncio.wait_for(run(), 20))


def honest(value: float, weight: float = 1.0) -> list:
    return [(torch.full(shape, value), weight) for shape in SHAPES]


def test_each_part_is_the_mean_by_weight():
    answers, reducer = reduced({0: honest(1.0, 1.0), 1: honest(2.0, 2.0), 2: honest(6.0, 5.0)})
    assert all(torch.allclose(answer, torch.full((3,), 35 / 8)) for answer in answers)
    assert reducer.weights.tolist() == [[1.0, 2.0, 5.0]] * 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([(torch.full((5,), float("nan")), 1.0)], "NaN"),
        ([(torch.ones(1), 1.0)], "(1,)"),
        ([(torch.ones(5), -0.999)], "-0.999"),
        ([(torch.ones(5), float("nan"))], "nan"),
        ([(torch.ones(5), 1e-45)], "1e-45"),
        ([(torch.full((5,), torch.finfo(torch.float32).max), 1.0)], "beyond bfloat16"),
        ([*honest(1.0), (torch.ones(5), 1.0)], "part 2"),
    ],
)
def test_what_cannot_be_used_is_refused_and_the_others_go_on(bad, reason):
    answers, _ = reduced({0: honest(1.0), 1: bad, 2: honest(3.0)})
    assert isinstance(answers[1], AllreduceException)
    assert reason in str(answers[1])
    if len(bad) == 1:
        assert all(torch.allclose(answers[i], torch.full((3,), 2.0)) for i in (0, 2))


def test_a_second_stream_of_a_sender_changes_no_weight_that_others_are_told():
    async def run() -> Reducer:
        reducer = Reducer(SHAPES, ["peer0", "peer1"], 0, TRUST, (True, True))
        parts = [(sender, 0, torch.full((5,), 1.0 + sender), 1.0) for sender in (0, 1)]
        await asyncio.gather(*(reducer.accumulate_part(*part) for part in parts))
        waiting = asyncio.create_task(reducer.accumulate_part(1, 1, torch.ones(3), 1.0))
        await asyncio.sleep(0)
        for part, values in enumerate((torch.ones(5), torch.ones(3))):  # averaged, and not averaged yet
            with pytest.raises(AllreduceException, match=f"part {part} twice"):
                await reducer.accumulate_part(1, part, values, 99.0)
        waiting.cancel()
        return reducer

    assert asyncio.run(asyncio.wait_for(run(), 20)).weights.tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_weights_are_limited_and_count_alike_if_all_are_zero():
    answers, _ = reduced({0: honest(0.0, 100.0), 1: honest(1.0, 1e12), 2: honest(0.0, 0.0)})
    assert torch.allclose(answers[0], torch.full((3,), 0.5))
    answers, _ = reduced({0: honest(1.0, 0.0), 1: honest(2.0, 0.0), 2: honest(6.0, 0.0)})
    assert torch.allclose(answers[0], torch.full((3,), 3.0))


@given(
    st.lists(st.sampled_from([1e-9, 1e-3, 1.0, 64.0, 1e12, 3e38]), min_size=1, max_size=3),
    st.sampled_from([0.0, 1e-45, 1e19, LARGEST, -LARGEST]),
    st.sampled_from(list(RULES)),
    st.sampled_from([1.0, 8192.0]),
    st.integers(1, 3),
)
def test_whatever_liars_send_and_claim_there_is_an_average_that_can_be_sent(claims, value, rule, max_weight, own):
    """Otherwise a reducer refuses everybody's parts, and names them; before, one weight of 1e-45 was enough."""
    parts = [torch.linspace(-1, 1, 9)] * own + [torch.full((9,), value)] * len(claims)
    for part, claim in zip(parts, [64.0] * own + claims, strict=True):
        assert (part_problem(part, (9,)), weight_problem(claim)) == (None, None)
    users = ["ada"] * own + [f"eve{number % 2}" for number in range(len(claims))]
    trust = Trust(rule=rule, max_weight=max_weight, max_share_per_user=0.5, most_decide=max_weight == 1.0)
    claimed, counts = torch.tensor([64.0] * own + claims), torch.ones(len(parts), dtype=torch.bool)
    average, weights = combine(parts, claimed, users, trust, counts)
    quantize(average)  # raises ValueError for what cannot be sent
    assert weights.isfinite().all()
    assert len(claims) > 1 or weights[:own].sum() >= 0.49 * weights.sum(), "of two users"


def test_who_alone_claims_to_lack_no_update_does_not_rule_those_who_do():
    sent = {0: honest(1.0, 0.0), 1: honest(1.0, 0.0), 2: honest(7.0, 1.0)}
    for rule, average in ("mean", 3.0), ("coordinate_median", 1.0):
        answers, _ = reduced(sent, Trust(rule=rule, max_weight=1.0, most_decide=True))
        assert torch.allclose(answers[0], torch.full((3,), average))
    two, trust = {0: honest(1.0, 0.0), 1: honest(7.0, 1e12)}, Trust(max_weight=1.0, most_decide=True)
    for share, average in (0.5, 4.0), (1.0, 7.0):
        answers, _ = reduced(two, replace(trust, max_share_per_user=share), counts=(True, True))
        assert torch.allclose(answers[0], torch.full((3,), average)), "who meets it alone, with a cap and without"
    answers, _ = reduced({**sent, 1: honest(1.0, 1.0)}, trust)
    assert torch.allclose(answers[0], torch.full((3,), 4.0)), "most lack none"
    assert torch.allclose(reduced(sent)[0][0], torch.full((3,), 7.0)), "gradients of samples that nobody computed"


def test_who_has_its_own_gradient_in_an_update_counts_before_who_lacks_it_and_after_who_lacks_nothing():
    own, trust, present = OWN_GRADIENT, Trust(max_weight=1.0, most_decide=True), torch.ones(4, dtype=torch.bool)
    for claimed, due, due_of_members in (
        ([1.0, 1.0, own, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
        ([1.0, own, own, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
        ([own, own, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]),
        ([own, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
    ):
        for share, weights in (1.0, due), (0.5, due_of_members):
            of = replace(trust, max_share_per_user=share)
            assert fair_weights(torch.tensor(claimed), ["a", "b", "c", "d"], of, present).tolist() == weights


def test_who_has_no_weight_as_others_lack_less_is_not_said_to_be_far_off():
    trust = Trust(max_weight=1.0, most_decide=True)
    answers, reducer = reduced({0: honest(2.0, 1.0), 1: honest(2.0, 1.0), 2: honest(7.0, OWN_GRADIENT)}, trust)
    assert torch.allclose(answers[2], torch.full((3,), 2.0))
    assert not reducer.far


def test_newcomers_have_no_weight_though_all_others_lack_an_update():
    sent = {0: honest(1.0, 0.0), 1: honest(2.0, 0.0), 2: honest(6.0, 1.0)}
    assert torch.allclose(reduced(sent, counts=(True, True, False))[0][0], torch.full((3,), 1.5))
    assert torch.allclose(reduced(sent, counts=(False, False, False))[0][0], torch.full((3,), 3.0))


def test_one_user_has_no_more_than_their_share_over_all_their_peers(monkeypatch):
    monkeypatch.setattr(Trust, "user_of", lambda self, peer: {"peer0": "ada"}.get(peer, "eve"))
    trust = Trust(max_weight=100.0, max_share_per_user=0.5)
    answers, _ = reduced({0: honest(0.0), 1: honest(1.0), 2: honest(1.0)}, trust)
    assert torch.allclose(answers[0], torch.full((3,), 0.5))


def test_the_rule_of_the_card_combines_parts():
    answers, _ = reduced({0: honest(1.0), 1: honest(2.0), 2: honest(4.0)}, Trust(rule="coordinate_median"))
    assert torch.allclose(answers[0], torch.full((3,), 2.0))


def test_a_sender_that_fails_counts_in_the_parts_it_sent():
    answers, reducer = reduced(
        {0: honest(1.0), 1: [honest(3.0)[0], (torch.full((3,), float("inf")), 1.0)], 2: honest(5.0)}
    )
    assert torch.allclose(answers[0], torch.full((3,), 3.0))
    assert reducer.weights[0].tolist() == [1.0, 1.0, 1.0]
    assert reducer.weights[1].tolist() == [1.0, 0.0, 1.0]


def test_a_reducer_whose_own_parameters_are_broken_has_no_weight_where_all_count_alike():
    trust = Trust(max_weight=1.0, most_decide=True, max_share_per_user=0.5)
    answers, reducer = reduced({0: honest(float("nan")), 1: honest(8.0)}, trust, counts=(True, True))
    assert torch.allclose(answers[1], torch.full((3,), 8.0)), "it was halved"
    assert reducer.weights[0].tolist() == [0.0, 1.0]


def test_a_vouched_peer_that_lacks_no_update_need_not_be_one_of_most():
    trust, present = Trust(max_weight=1.0, most_decide=True, max_share_per_user=0.5), torch.ones(4, dtype=torch.bool)
    for claimed, users, due in (
        ([1.0, 1.0, 1.0, 0.0], ["org", "org", "org", "late"], [1.0, 1.0, 1.0, 0.0]),
        ([1.0, 1.0, 0.0, 0.0], ["org", "liar", "late", "later"], [1.0, 0.0, 0.0, 0.0]),
        ([0.0, 1.0, 0.0, 0.0], ["org", "liar", "late", "later"], [1.0, 1.0, 1.0, 1.0]),
    ):
        assert fair_weights(torch.tensor(claimed), users, trust, present, {"org"}).tolist() == due
