import pytest
import torch
from torch.nn import functional as F

from dalle_lib.model import linear as dense
from dalle_lib.model.linear import Linear, linear

SHAPES = {
    "more outputs": ((3, 5), 4, 9),
    "more inputs": ((7,), 9, 4),
    "one position": ((1, 1), 6, 6),
    "one vector": ((), 6, 4),
    "no position": ((2, 0), 4, 3),
}


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    """Let oneDNN compute, whether or not it is faster on this processor."""
    monkeypatch.setattr(dense, "_ONEDNN_IS_FASTER", True)


def is_by_onednn(y: torch.Tensor) -> bool:
    return y.grad_fn.name() == "_OneDNNBackward"


def operands(shape: tuple[int, ...], inputs: int, outputs: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    sizes = (*shape, inputs), (outputs, inputs), (outputs,)
    return [torch.randn(size).requires_grad_() for size in sizes]


def with_gradients(layer, *operands: torch.Tensor) -> list[torch.Tensor]:
    y = layer(*operands)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return [y, *torch.autograd.grad(y, [x for x in operands if x.requires_grad], dy)]


def assert_like_float64(operands: list[torch.Tensor]) -> None:
    found = with_gradients(linear, *operands)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in operands]
    for one, expected in zip(found, with_gradients(F.linear, *exact), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_and_gradients_are_those_of_float64(sizes, has_bias):
    found = operands(*sizes)
    assert_like_float64(found if has_bias else found[:2])


@pytest.mark.parametrize("has_bias", [True, False])
def test_products_are_the_same_where_no_gradient_is_needed(has_bias):
    found = operands(*SHAPES["more inputs"])[: 2 + has_bias]
    expected = linear(*found)
    assert is_by_onednn(expected)
    for without_gradients in torch.no_grad, torch.inference_mode:
        with without_gradients():
            assert torch.equal(linear(*found), expected)


def test_parts_of_tensors_and_frozen_weights_are_taken_as_they_are():
    x, weight, bias = operands((3, 8), 6, 10)
    assert_like_float64([x[:, 2:7], weight[3:], bias[3:]])
    assert_like_float64([x.transpose(0, 1), weight.detach(), bias])
    assert_like_float64([x.detach(), weight, bias.detach()])
    assert_like_float64([x, weight[::2], bias[::2]])
    assert_like_float64([x, weight, bias[:1].expand(10)])
    assert_like_float64([x, weight, bias[0]])


def test_onednn_computes_more_than_one_position_in_float32_and_nothing_else(monkeypatch):
    x, weight, bias = operands((3, 5), 4, 9)
    assert is_by_onednn(linear(x, weight, bias))
    assert is_by_onednn(linear(x, weight))
    assert not is_by_onednn(linear(x[:1, :1], weight, bias))
    assert not is_by_onednn(linear(x.double(), weight.double(), bias.double()))
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(x, weight, bias)
    assert not is_by_onednn(y)
    assert torch.equal(y, F.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not is_by_onednn(linear(x, weight, bias))


def test_nothing_is_kept_that_no_gradient_needs():
    x, weight, bias = operands((3, 5), 4, 9)
    for of_x, of_weight in (True, False), (False, True), (True, True):
        y = linear(x if of_x else x.detach(), weight if of_weight else weight.detach(), bias)
        assert [t is not None for t in y.grad_fn.saved_tensors] == [of_weight, of_x]


def test_a_layer_is_drop_in_for_pytorchs():
    ours, theirs = Linear(6, 4), torch.nn.Linear(6, 4)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 6)

    def gradients(layer: torch.nn.Linear) -> dict[str, torch.Tensor]:
        weights = dict(layer.named_parameters())
        return torch.func.grad(lambda weights: torch.func.functional_call(layer, weights, x).sin().sum())(weights)

    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(gradients(ours), gradients(theirs))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        ours(torch.randn(5, 7))
