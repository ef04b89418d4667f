"""The rules against the plain versions in their docstrings, and by what liars can and cannot do to them."""

import math

import pytest
import torch
from docstring_code import written_plainly

from dalle_lib.aggregation import RULES, capped, centered_clip, coordinate_median, mean, trimmed_mean
from dalle_lib.aggregation.middle import middle, sorted_rows

ROBUST = [rule for name, rule in RULES.items() if name != "mean"]
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
robust_rules = pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.__name__)


def drawn(peers: int, values: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return parts with values in common, and whole numbers of samples as weights."""
    random = torch.Generator().manual_seed(1000 * peers + seed)
    parts = torch.randn(peers, values, generator=random).mul(4).round().div(4)
    return parts, torch.randint(1, 9, (peers,), generator=random).float()


@pytest.mark.parametrize("peers", [2, 3, 7])
def test_mean_counts_each_peer_by_its_weight(peers):
    parts, weights = drawn(peers, 5)
    expected = sum(w * part.double() for w, part in zip(weights.tolist(), parts, strict=True)) / weights.sum()
    torch.testing.assert_close(mean(parts, weights).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("peers", [2, 3, 4, 5, 6, 7, 8, 11, 16, 33])
def test_coordinate_median_has_half_of_the_weight_on_each_side(peers):
    parts, weights = drawn(peers, 67)
    median = coordinate_median(parts, weights)
    assert torch.equal(median, written_plainly(coordinate_median)(parts.double(), weights.double()).float())
    if peers > 2:
        torch.testing.assert_close(median, parts.repeat_interleave(weights.long(), dim=0).quantile(0.5, dim=0))


@pytest.mark.parametrize("peers", [3, 4, 5, 8, 11])
def test_equal_weights_give_the_ordinary_median(peers):
    parts = torch.randn(peers, 29)
    torch.testing.assert_close(coordinate_median(parts, torch.full((peers,), 0.3)), parts.quantile(0.5, dim=0))


@pytest.mark.parametrize("cut", [0.0, 0.2, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("peers", [2, 3, 8, 11, 33])
def test_trimmed_mean_leaves_out_its_share_at_both_ends(peers, cut):
    parts, weights = drawn(peers, 23)
    expected = written_plainly(trimmed_mean)(parts.double(), weights.double(), cut)
    torch.testing.assert_close(trimmed_mean(parts, weights, cut).double(), expected.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", [0.0, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("peers", [3, 8, 11])
def test_the_middle_is_what_sorting_each_value_gives(peers, cut):
    parts, weights = drawn(peers, 29)
    expected = written_plainly(middle)(parts, weights, cut).float()
    torch.testing.assert_close(middle(parts, weights.double(), cut), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("peers", [1, 2, 5, 8, 13])
def test_exchanges_of_rows_sort_every_column(peers):
    values = torch.randn(peers, 37)
    expected = written_plainly(sorted_rows)(values.clone())
    assert torch.equal(torch.stack(sorted_rows(values)), torch.stack(expected))


def test_trimmed_mean_of_few_peers_cuts_a_whole_one_at_each_end():
    parts = torch.tensor([[1.0, -1e9], [2.0, 4.0], [4.0, 5.0], [1e9, 7.0]])
    torch.testing.assert_close(trimmed_mean(parts, torch.ones(4)), torch.tensor([3.0, 4.5]))
    torch.testing.assert_close(trimmed_mean(parts[1:], torch.ones(3)), torch.tensor([4.0, 5.0]))


@pytest.mark.parametrize("peers", [2, 3, 4, 7, 12])
@pytest.mark.parametrize("radius", [0.3, 2.0, 9.0, None])
def test_centered_clip_ends_where_the_papers_iteration_ends(peers, radius):
    parts, weights = drawn(peers, 19)
    expected = written_plainly(centered_clip)(parts.double(), weights.double(), radius).double()
    torch.testing.assert_close(centered_clip(parts, weights, radius).double(), expected, atol=2e-5, rtol=1e-5)


def test_the_radius_is_the_weighted_median_of_the_distances_unless_given():
    parts, _ = drawn(5, 13)
    weights = torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0])
    distances = (parts - coordinate_median(parts, weights)).norm(dim=1)
    radius = float(distances.repeat_interleave(weights.long()).median())
    torch.testing.assert_close(centered_clip(parts, weights), centered_clip(parts, weights, radius))


def test_centered_clip_without_a_bound_is_the_mean_and_with_none_is_the_median():
    parts, weights = drawn(6, 11)
    torch.testing.assert_close(centered_clip(parts, weights, radius=math.inf), mean(parts, weights))
    torch.testing.assert_close(centered_clip(parts, weights, radius=0.0), coordinate_median(parts, weights))


@pytest.mark.parametrize("lie", [1e9, -1e9, 3e38])
@pytest.mark.parametrize(("honest", "liars"), [(2, 1), (3, 2), (5, 4), (9, 7)])
def test_fewer_than_half_cannot_move_the_median_beyond_honest_values(honest, liars, lie):
    parts = torch.cat([torch.randn(honest, 17), torch.full((liars, 17), lie)])
    merged = coordinate_median(parts, torch.ones(honest + liars))
    assert (merged <= parts[:honest].amax(0)).all()
    assert (merged >= parts[:honest].amin(0)).all()


def test_liars_count_by_weight_not_by_number():
    parts = torch.cat([torch.randn(3, 17), torch.full((4, 17), 1e9)])
    merged = coordinate_median(parts, torch.tensor([4.0, 4.0, 4.0, 2.9999, 2.9999, 2.9999, 2.9999]))
    assert (merged <= parts[:3].amax(0)).all()


@pytest.mark.parametrize(("honest", "liars"), [(2, 1), (4, 1), (6, 2), (9, 3)])
def test_a_quarter_cannot_move_the_trimmed_mean_beyond_honest_values(honest, liars):
    parts = torch.cat([torch.randn(honest, 17), torch.full((liars, 17), -1e9)])
    merged = trimmed_mean(parts, torch.ones(honest + liars))
    assert (merged <= parts[:honest].amax(0)).all()
    assert (merged >= parts[:honest].amin(0)).all()


@pytest.mark.parametrize("lie", [1e9, -3e38])
@pytest.mark.parametrize(("honest", "liars"), [(2, 1), (3, 2), (5, 4), (9, 7)])
def test_fewer_than_half_cannot_move_centered_clip_farther_than_the_honest_are_apart(honest, liars, lie):
    torch.manual_seed(0)
    parts = torch.cat([3 + torch.randn(honest, 1009), torch.full((liars, 1009), lie)])
    moved = centered_clip(parts, torch.ones(honest + liars)) - parts[:honest].mean(0)
    assert moved.norm() <= torch.pdist(parts[:honest]).max()


@robust_rules
@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_claimed_weight_is_outvoted_once_it_is_capped(rule, count):
    torch.manual_seed(1)
    parts = torch.cat([torch.randn(2 * count, 101), torch.full((1, 101), -1e9)])
    weights = torch.cat([torch.full((2 * count,), 7.0), torch.tensor([1e12])])
    assert rule(parts, weights).min() < -1e8
    assert rule(parts, capped(weights)).abs().max() < 10


@every_rule
def test_the_order_of_peers_does_not_matter(rule):
    parts, weights = drawn(9, 31)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(rule(parts[order], weights[order]), rule(parts, weights))


@every_rule
def test_only_the_shares_of_the_weight_matter(rule):
    parts, weights = drawn(5, 31)
    for scale in (3.0, 2.0**-1050, 2.0**1000):
        torch.testing.assert_close(rule(parts, scale * weights.double()), rule(parts, weights))


@every_rule
def test_neither_sign_is_preferred(rule):
    parts, weights = drawn(6, 31)
    torch.testing.assert_close(rule(-parts, weights), -rule(parts, weights))


@every_rule
@pytest.mark.parametrize("present", [1, 2, 3, 6])
def test_a_peer_of_weight_zero_is_absent_whatever_it_sent(rule, present):
    parts, weights = drawn(present, 31)
    with_absent = torch.cat([torch.full((1, 31), torch.nan), parts, torch.full((1, 31), 1e30)])
    assert torch.equal(rule(with_absent, torch.cat([torch.zeros(1), weights, torch.zeros(1)])), rule(parts, weights))


@every_rule
@pytest.mark.parametrize("peers", [1, 3, 4, 8])
def test_peers_that_agree_are_believed(rule, peers):
    part = torch.randn(31)
    _, weights = drawn(peers, 1)
    torch.testing.assert_close(rule(part.repeat(peers, 1), weights), part, atol=1e-6, rtol=1e-6)


@every_rule
def test_one_part_is_taken_as_it_is_and_of_two_the_mean(rule):
    parts = torch.tensor([[1.0, -2.0, 4.0], [1e6, 0.0, 5.0]])
    assert torch.equal(rule(parts[:1], torch.tensor([7.0])), parts[0])
    torch.testing.assert_close(rule(parts, torch.tensor([3.0, 1.0])), torch.tensor([250000.75, -1.5, 4.25]))


@every_rule
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parts_of_any_precision_are_computed_in_float32(rule, dtype):
    parts, weights = drawn(5, 31)
    parts = parts.to(dtype)
    merged = rule(parts, weights)
    assert merged.dtype == torch.float32
    assert torch.equal(merged, rule(parts.float(), weights))


@every_rule
def test_parts_are_left_as_they_were(rule):
    parts, weights = drawn(5, 31)
    before = parts.clone(), weights.clone()
    rule(parts, weights)
    assert torch.equal(parts, before[0])
    assert torch.equal(weights, before[1])


@every_rule
def test_the_largest_numbers_of_float32_do_not_overflow(rule):
    parts = torch.full((4, 5), 3e38) * torch.tensor([1.0, 1.0, 1.0, -1.0])[:, None]
    assert rule(parts, torch.ones(4)).isfinite().all()


@every_rule
def test_an_empty_part_stays_empty(rule):
    assert rule(torch.empty(4, 0), torch.ones(4)).shape == (0,)


@pytest.mark.parametrize("rule", [coordinate_median, trimmed_mean])
def test_a_long_part_gives_what_its_pieces_give(rule):
    parts, weights = drawn(5, 100_003)
    pieces = [rule(piece, weights) for piece in parts.split(1009, dim=1)]
    assert torch.equal(rule(parts, weights), torch.cat(pieces))


def test_centered_clip_of_a_long_part_finds_the_same_centre():
    parts, weights = drawn(4, 70_001)
    parts, radius = parts + torch.linspace(0, 3, 70_001), 20.0
    centre = coordinate_median(parts, weights).double()
    shares = weights.double() / weights.sum()
    for _ in range(20):
        offsets = parts.double() - centre
        centre += (shares * (radius / offsets.norm(dim=1)).clamp(max=1.0)) @ offsets
    torch.testing.assert_close(centered_clip(parts, weights, radius).double(), centre, atol=1e-5, rtol=1e-5)


@every_rule
@pytest.mark.parametrize(
    "weights", [[1.0, -0.5, 1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0], [0.0, 0.0, 0.0]], ids=str
)
def test_weights_that_cannot_be_are_refused(rule, weights):
    with pytest.raises(ValueError, match="expected finite weights"):
        rule(torch.randn(3, 5), torch.tensor(weights))


def test_settings_that_cannot_be_are_refused():
    parts, weights = drawn(3, 5)
    with pytest.raises(ValueError, match="radius of at least 0"):
        centered_clip(parts, weights, radius=-1.0)
    with pytest.raises(ValueError, match="between 0 and 0"):
        trimmed_mean(parts, weights, cut=0.6)
