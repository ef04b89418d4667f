"""The 8-bit codec against the plain version in its docstring; what goes over the wire is in test_codec."""

import numpy as np
import pytest
import torch
from docstring_code import written_plainly

from dalle_lib.compression import LEVELS, dequantize, quantize

DRAWS = {
    "normal": lambda: torch.randn(20_000),
    "few": lambda: torch.randn(1000),
    "one value": lambda: torch.full((5,), 7.0),
    "zeros": lambda: torch.zeros(5),
    "half are zeros": lambda: torch.randn(20_000).relu(),
    "heavy tails": lambda: torch.distributions.StudentT(1.5).sample((20_000,)),
    "positive": lambda: torch.randn(20_000).exp(),
    "far from zero": lambda: 100 + torch.randn(20_000),
    "beyond all cells": lambda: torch.randn(20_000) * (9 * torch.randn(20_000)).exp(),
    "bfloat16": lambda: torch.randn(20_000).bfloat16().float(),
    "tiny": lambda: 1e-36 * torch.randn(20_000),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_levels_and_codebook_are_those_of_the_plain_version(draw):
    torch.manual_seed(0)
    values = draw()
    levels, codebook = quantize(values)
    plain_levels, plain_codebook = written_plainly(quantize)(values)
    assert torch.equal(levels, plain_levels)
    np.testing.assert_allclose(codebook, plain_codebook, rtol=1e-6, atol=1e-10 * float(values.abs().max()))
    assert codebook.shape == (LEVELS,)


def test_dequantized_values_are_looked_up_in_the_codebook():
    levels, codebook = np.array([2, 0, 2, 1], np.uint8), torch.tensor([-1.0, 0.5, 3.0])
    assert torch.equal(dequantize(levels, codebook), torch.tensor([3.0, -1.0, 3.0, 0.5]))
    with pytest.raises(ValueError, match="level 2 in a message whose codebook has 2 entries"):
        dequantize(levels, codebook[:2])
