"""One reducer, in this process: what it refuses, and that the others go on without the refused sender."""

import asyncio
from dataclasses import replace

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.partition import BannedException

from dalle_lib.swarm.averaging.reducing import Reducer, fair_weights
from dalle_lib.swarm.averaging.trust import Trust

SHAPES = (torch.Size([5]), torch.Size([3]))
TRUST = Trust(max_weight=100.0)


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
