from collections.abc import Callable

import pytest
import torch
from docstring_code import written_plainly
from small_models import ODD, SMALL, random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.attention import WholeRows


@pytest.fixture(scope="module")
def attend_densely() -> Callable[..., torch.Tensor]:
    """The function in the docstring of `WholeRows.attend`."""
    return written_plainly(WholeRows.attend, "attend_densely")


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("kind", ["row", "column", "convolution"])
@pytest.mark.parametrize(("config", "rows"), [(ODD, 0), (ODD, 3), (ODD, 5), (SMALL, 1), (SMALL, 6), (SMALL, 8)])
def test_strips_attend_like_the_dense_mask_in_the_docstring(kind, config, rows, attend_densely):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, config.text_part + rows * config.grid, 3, 14, dtype=torch.float64)
    expected = attend_densely(kind, q, k, v, config.text_part, config.grid)
    torch.testing.assert_close(WholeRows(kind, config, rows, q.device).attend(q, k, v), expected)


def test_no_matrix_of_all_positions_by_all_positions_is_built():
    config = ModelConfig(dim=16, depth=6, heads=2, dim_head=12, text_length=8, text_vocab=9, image_vocab=9, grid=16)

    class Largest(TorchDispatchMode):
        scores = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for x in made if isinstance(made, tuple | list) else [made]:
                if isinstance(x, torch.Tensor):
                    self.scores = max(self.scores, x.numel())
            return made

    text, codes = random_batch(config, batch=1)
    with Largest() as largest:
        DALLE(config)(text, codes).loss.backward()
    assert largest.scores < config.length**2 // 2
