"""A sketch of tensors is as far from another as the tensors are, and the same wherever it is made."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dalle_lib.swarm.peer.sketch import sketch
from dalle_lib.swarm.process.drift import SIZE

GOLDEN = [-14329.0, 14507.0, -14685.0]
"""The first numbers of the sketch of 0 to 129, squared."""
SHAPES = (3, 5, 7), (64 * 256 + 11,), (130, 192), (1,)


def tensors(seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in SHAPES]


def norm(values) -> float:
    return float(sum((each.double() ** 2).sum() for each in values)) ** 0.5


def test_a_sketch_is_linear():
    a, b = tensors(1), tensors(2)
    both = sketch([2.0 * x.double() - y.double() for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(both, 2 * sketch(a) - sketch(b), rtol=0, atol=1e-3)


def test_each_value_is_in_one_number_and_not_all_in_the_same():
    ones = [torch.zeros(shape).reshape(-1) for shape in SHAPES]
    rows = []
    for tensor, place in (1, 0), (1, 1), (1, SIZE), (1, 64 * 256), (2, 0), (2, SIZE), (3, 0):
        ones[tensor][place] = 1.0
        rows.append(sketch(ones))
        assert sorted(abs(rows[-1]))[-2:] == [0.0, 1.0], "each value is in one number, with its sign"
        ones[tensor][place] = 0.0
    assert len({row.tobytes() for row in rows}) > 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_sketch_is_that_of_the_same_values_in_any_type(dtype):
    values = [(8 * each).round() / 8 for each in tensors()]  # exact in all of them
    np.testing.assert_array_equal(sketch(v.to(dtype) for v in values), sketch(v.float() for v in values))


def test_a_sketch_is_the_same_in_another_process_and_by_other_strides():
    code = (
        "import torch; from dalle_lib.swarm.peer.sketch import sketch; "
        "print(sketch([torch.arange(40_000.0).reshape(200, 200).T.contiguous()]).tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    own = sketch([torch.arange(40_000.0).reshape(200, 200).T])
    assert told.stdout.strip() == str(own.tolist())


def test_a_sketch_is_what_its_formula_says():
    values, total, random = torch.arange(130.0).square(), np.zeros(SIZE), np.random.Philox(key=0)
    words = [int(word) for word in random.random_raw(6)]
    for place, value in enumerate(values.tolist()):
        row, column = divmod(place, SIZE)
        bits = f"{int.from_bytes(words[row].to_bytes(8, 'little'), 'big'):064b}"
        total[(column + words[3 + row]) % SIZE] += -value if bits[column] == "1" else value
    np.testing.assert_array_equal(sketch([values]), total)
    assert total[:3].tolist() == GOLDEN, "peers of another version would have other numbers"


def test_the_norm_of_a_sketch_is_that_of_the_values_to_some_percent():
    found = [np.linalg.norm(sketch(tensors(seed))) / norm(tensors(seed)) for seed in range(50)]
    assert abs(np.mean(found) - 1) < 0.05
    assert np.std(found) < 0.15
    assert min(found) > 0.6
    assert max(found) < 1.4


def test_a_damaged_tensor_and_a_damaged_column_are_seen():
    before, scaled, column = tensors(), tensors(), tensors()
    scaled[2] *= 1.5
    column[2][:, 3] = 40.0
    for after in scaled, column:
        apart = norm(a - b for a, b in zip(after, before, strict=True))
        assert np.linalg.norm(sketch(after) - sketch(before)) == pytest.approx(apart, rel=0.5)
