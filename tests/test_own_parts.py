"""What a peer believes of averages that come back for its parts, and what stays where none does."""

import asyncio
import math

import pytest
import torch

from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.own_parts import RESULT_BOUND, Parts
from dalle_lib.swarm.averaging.trust import Trust


@pytest.fixture
def parts():
    """What a peer puts into a round: sixteen values, half of them for a reducer that is not itself."""

    async def made():
        return Parts([torch.ones(8), torch.ones(8)], (8, 8), return_deltas=True, keeps_sent=True)

    container = asyncio.run(made())
    yield container
    container.failed_size = 0  # or it warns when it is dropped


@pytest.mark.parametrize("delta", [torch.full((8,), float("inf")), torch.ones(1), torch.full((8,), 1.5 * RESULT_BOUND)])
def test_a_result_that_cannot_be_right_is_refused(parts, delta):
    with pytest.raises(ValueError, match=r"expected|believed|infinity"):
        parts.register_processed_part(1, 0, delta)


def test_a_result_within_bounds_is_taken(parts):
    parts.register_processed_part(1, 0, torch.full((8,), 0.9 * (RESULT_BOUND - 1)))
    assert len(parts._output_parts_by_peer[1]) == 1


def gradients(captions: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of an untrained classifier of captions, all of one class, as an epoch begins to learn."""
    torch.manual_seed(0)
    words, head = torch.nn.Embedding(2**14, 16), torch.nn.Linear(16, 4)
    loss = torch.nn.functional.cross_entropy(head(words(captions).mean(1)), torch.zeros(len(captions)).long())
    return list(torch.autograd.grad(loss, (*words.parameters(), *head.parameters())))


def test_no_honest_average_is_refused_where_a_peer_has_seen_few_rows_of_an_embedding():
    samples = {"few": 1, "more": 8, "most": 55}
    captions = {name: torch.randint(100, 2**14, (count, 4)) for name, count in samples.items()}
    for name in "more", "most":
        captions[name][:, 0] = 7  # the word that nearly all captions begin with
    own = {name: gradients(captions[name]) for name in samples}
    average = [sum(samples[name] * own[name][i] for name in own) / 64 for i in range(3)]

    async def taken(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        options = {"peer_fractions": (1, 1, 1), "return_deltas": False, "part_size_bytes": 256, "keeps_sent": False}
        parts, whole = Parts(tensors, **options), Parts(average, **options)
        for reducer, of_reducer in enumerate(whole._input_parts_by_peer):
            for index, (part, _info) in enumerate(of_reducer):
                parts.register_processed_part(reducer, index, part)
        return [tensor async for tensor in parts.iterate_output_tensors()]

    for name in samples:
        assert all(map(torch.equal, asyncio.run(taken(own[name])), average)), name


def test_a_peer_of_few_local_steps_believes_how_far_others_have_come_and_no_further():
    card = RunCard.load("emoji-mini")
    averaging = {"strategy": "local", "delayed": False, "target_batch_size": 128}
    local = card.with_changes(averaging=card.averaging.model_dump() | averaging)
    assert Trust.of(local).longest_way(8.0) == 2 * 128 / 8
    assert Trust.of(local).longest_way(0.0) == Trust.of(card).longest_way(8.0) == 1.0


def test_the_averages_of_a_reducer_are_bounded_together():
    async def in_four_parts() -> Parts:
        return Parts([torch.ones(64)], (0, 64), return_deltas=False, part_size_bytes=64, keeps_sent=False)

    parts, part = asyncio.run(in_four_parts()), torch.full((16,), 1.2 * RESULT_BOUND)  # no longer than believed alone
    for index in 0, 1:
        parts.register_processed_part(1, index, part)
    with pytest.raises(ValueError, match="believed"):
        parts.register_processed_part(1, 2, part)


def test_a_watched_part_is_the_average_that_its_reducer_gives(parts):
    async def average(delta: torch.Tensor) -> torch.Tensor:
        watched = parts.watch(1, 0)
        parts.register_processed_part(1, 0, delta)
        return await asyncio.wait_for(watched, 10)

    assert torch.equal(asyncio.run(average(torch.full((8,), 0.5))), torch.full((8,), 1.5))


def test_a_reducer_that_fails_has_given_no_average_to_check(parts):
    async def watched() -> asyncio.Future:
        average = parts.watch(1, 0)
        parts.register_failed_reducer(1)
        return average

    assert asyncio.run(watched()).cancelled()
    assert torch.equal(parts._output_parts_by_peer[1][0], torch.zeros(8))


@pytest.mark.parametrize("return_deltas", [True, False])
def test_where_a_reducer_fails_own_values_stay_whatever_they_are(return_deltas):
    async def kept() -> torch.Tensor:
        own = torch.tensor([1.0, math.nan, 3.0, 4.0])
        parts = Parts([own], (0, 4), return_deltas=return_deltas, part_size_bytes=8, keeps_sent=True)
        parts.register_failed_reducer(1)
        (tensor,) = [tensor async for tensor in parts.iterate_output_tensors()]
        assert parts.failed_size == 4
        parts.failed_size = 0  # or it warns when it is dropped
        return own + tensor if return_deltas else tensor

    expected = torch.tensor([1.0, math.nan, 3.0, 4.0])
    torch.testing.assert_close(asyncio.run(asyncio.wait_for(kept(), 10)), expected, equal_nan=True)
