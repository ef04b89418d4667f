"""Four bits a value against the plain version in the docstring; what goes over the wire is in test_codec."""

import numpy as np
import pytest
import torch
from docstring_code import written_plainly

from dalle_lib.four_bits import BLOCK, LEVELS, pack, unpack

DRAWS = {
    "normal": lambda: torch.randn(2000),
    "one block": lambda: torch.randn(BLOCK),
    "an odd number": lambda: torch.randn(2 * BLOCK + 3),
    "one value": lambda: torch.full((1,), -7.0),
    "half are zeros": lambda: torch.randn(2000).relu(),
    "heavy tails": lambda: torch.distributions.StudentT(1.5).sample((2000,)),
    "positive": lambda: torch.randn(2000).exp(),
    "bfloat16": lambda: torch.randn(2000).bfloat16(),
    "too small": lambda: 1e-38 * torch.randn(300),
    "huge": lambda: 5e37 * torch.randn(300),
}
TAILS = {
    "normal": (torch.distributions.Normal(0.0, 1.0), 0.1),
    "Laplace": (torch.distributions.Laplace(0.0, 1.0), 0.115),
    "Student's t with 3 degrees": (torch.distributions.StudentT(3.0), 0.145),
}


def round_trip(values: torch.Tensor) -> torch.Tensor:
    scales, packed = pack(values)
    return unpack(scales, packed.numpy(), len(values))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_scales_and_levels_are_those_of_the_plain_version(draw):
    torch.manual_seed(0)
    values = draw()
    (scales, packed), (plain_scales, plain_packed) = pack(values), written_plainly(pack)(values)
    assert torch.equal(scales, plain_scales)
    assert torch.equal(packed, plain_packed)
    numbers = torch.stack([packed & 15, packed >> 4], 1).reshape(-1)[: len(values)].long()
    expected = torch.from_numpy(LEVELS)[numbers] * scales.double().repeat_interleave(BLOCK)[: len(values)]
    torch.testing.assert_close(unpack(scales, packed.numpy(), len(values)), expected.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("distribution", "limit"), TAILS.values(), ids=TAILS)
def test_a_tenth_of_the_norm_is_lost_and_the_mean_is_kept(distribution, limit):
    torch.manual_seed(0)
    values = distribution.sample((2**20,))
    lost = (round_trip(values) - values).double()
    assert float(lost.norm() / values.norm()) < limit
    assert abs(float(lost.sum() / values.double().abs().sum())) < 0.004


def test_the_largest_value_of_a_block_and_zeros_arrive_as_they_are():
    values = torch.zeros(3 * BLOCK)
    values[4], values[BLOCK + 7] = -0.75, 1.5
    assert torch.equal(round_trip(values), values)
    assert np.array_equal(LEVELS[[0, 7, 15]], [-1, 0, 1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3.4028e38])
def test_what_has_no_scale_is_refused(bad):
    values = torch.ones(300)
    values[200] = -bad
    with pytest.raises(ValueError, match="NaN, infinity, or values beyond"):
        pack(values)
