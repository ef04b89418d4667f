import math

import pytest
import torch

from dalle_lib.aggregation import capped, capped_by_user, part_problem, weight_problem


def test_weights_are_capped_at_a_multiple_of_the_median_of_the_positive_ones():
    weights = torch.tensor([0.0, 0.0, 0.0, 3.0, 1e12, 2.0, 5.0])
    assert capped(weights).tolist() == [0.0, 0.0, 0.0, 3.0, 12.0, 2.0, 5.0]
    assert capped(weights, ratio=1.0).tolist() == [0.0, 0.0, 0.0, 3.0, 3.0, 2.0, 3.0]
    assert capped(torch.tensor([1.0, 100.0])).tolist() == [1.0, 4.0]
    with pytest.raises(ValueError, match="expected finite weights"):
        capped(torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize("share", [0.2, 0.34, 0.5])
@pytest.mark.parametrize(
    "claims", [(7, 1, 1, 1, 1, 1), (1e12, 3, 2, 2, 1, 5), (4, 4, 4, 4, 4, 4), (50, 40, 3, 2, 2, 1)]
)
def test_no_user_has_more_than_a_share_however_many_peers_it_runs(share, claims):
    users = [*"abcdef", "a", "b"]  # the first two users run two peers each
    weights = torch.tensor([*claims, claims[0], 1.0], dtype=torch.float64)
    fair = capped_by_user(weights, users, share)
    totals = {user: sum(w for w, name in zip(fair.tolist(), users, strict=True) if name == user) for user in "abcdef"}
    assert max(totals.values()) <= share * float(fair.sum()) * (1 + 1e-9)
    assert (fair <= weights).all()
    for user, total in totals.items():
        own = torch.tensor([name == user for name in users])
        assert torch.allclose(fair[own] / fair[own].sum(), weights[own] / weights[own].sum())
        is_cut = total < float(weights[own].sum()) * (1 - 1e-9)
        assert not is_cut or total == pytest.approx(share * float(fair.sum()))


@pytest.mark.parametrize(
    ("claims", "fair"),
    [((9, 3), (3, 3)), ((9, 3, 0), (3, 3, 0)), ((9, 0), (9, 0)), ((9, 0, 0), (9, 0, 0)), ((0, 0), (0, 0))],
    ids=str,
)
def test_users_too_few_for_the_share_weigh_the_same_and_those_without_samples_nothing(claims, fair):
    weights = torch.tensor(claims, dtype=torch.float32)
    assert capped_by_user(weights, list("abc")[: len(claims)], 0.4).tolist() == list(fair)


def test_a_share_of_one_leaves_all_as_they_are():
    assert capped_by_user(torch.tensor([9.0, 1.0]), ["a", "b"], 1.0).tolist() == [9.0, 1.0]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (torch.zeros(1), "shape"),  # one value would be added to all
        (torch.zeros(3, 2), "shape"),
        (torch.zeros(2, 3, dtype=torch.int64), "int64"),
        (torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0]]), "NaN"),
        (torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]), "infinity"),
        (torch.full((2, 3), torch.finfo(torch.float32).max), "beyond bfloat16"),
        (torch.full((2, 3), 1e300, dtype=torch.float64), "beyond bfloat16"),
    ],
)
def test_a_part_that_cannot_be_averaged_is_told_why(part, reason):
    assert reason in part_problem(part, (2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_finite_part_of_the_right_shape_is_usable(dtype):
    assert part_problem(torch.full((2, 3), 6e4, dtype=dtype), torch.Size([2, 3])) is None


def test_a_weight_is_usable_if_it_is_finite_and_zero_or_large_enough_to_count():
    assert [weight_problem(weight) for weight in (0.0, 1e-9, 48, 1e30)] == [None] * 4
    for weight in (-1e-9, 1e-45, math.nan, math.inf, -math.inf):
        assert str(weight) in weight_problem(weight)
