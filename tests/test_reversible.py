import subprocess
import sys

import pytest
import torch
from small_models import EXACT, GOLDEN, ODD, SMALL, golden_model, gradients, largest_error, random_batch, random_model

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.reversible import Layer, run_reversibly


def test_the_gradient_of_embeddings_flows_through_the_reversible_path():
    model, (text, codes) = random_model(), random_batch()
    x = model.embed(text, codes).detach().requires_grad_()
    found = []
    for model.transformer.is_reversible in (True, False):
        (model.transformer(x) ** 2).sum().backward()
        found.append(x.grad)
        x.grad = None
    torch.testing.assert_close(*found)


def test_differentiating_a_reversible_gradient_is_an_error():
    model, (text, codes) = random_model(), random_batch()
    (gradient,) = torch.autograd.grad(model(text, codes).loss, [model.head.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_frozen_weights_get_no_gradient_and_the_others_do():
    model, batch = random_model(), random_batch()
    expected = gradients(model, *batch)
    model.transformer.attentions.requires_grad_(False)
    model.zero_grad()
    found = gradients(model, *batch)
    assert all((found[name] is None) == ("attentions" in name) for name in found)
    trained = {name: grad for name, grad in found.items() if grad is not None}
    assert largest_error(trained, {name: expected[name] for name in trained}) < 1e-12


@pytest.mark.parametrize("is_reversible", EXACT)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_trains_on_nearly_the_same_gradients(dtype, is_reversible):
    """Rounding moves each value by up to half an eps at random, and a whole gradient by a few eps, at initial weights.

    The streams stay in float32, so inputs that the reversible path recomputes are as good as inputs that were kept.
    """
    torch.manual_seed(0)
    model, batch = DALLE(SMALL), random_batch(SMALL)
    model.transformer.is_reversible = is_reversible
    exact = torch.cat([grad.flatten() for grad in gradients(model, *batch).values()])
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        loss = model(*batch).loss
    (2.0**10 * loss).backward()  # as a GradScaler does: float16 would round small gradients to zero
    found = torch.cat([parameter.grad.flatten() / 2.0**10 for parameter in model.parameters()])
    assert (found - exact).norm() < 2 * torch.finfo(dtype).eps * exact.norm()


def test_the_backward_pass_may_run_inside_autocast_too():
    model, batch = golden_model().float(), (GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    with torch.autocast("cpu", torch.bfloat16):
        inside = {name: grad.clone() for name, grad in gradients(model, *batch).items()}
        model.zero_grad()
        loss = model(*batch).loss
    loss.backward()
    assert all(torch.equal(inside[name], parameter.grad) for name, parameter in model.named_parameters())


def test_layers_are_run_again_in_the_precision_that_they_ran_in():
    ran = []

    def function(x: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
        y = linear(x)
        ran.append(y.dtype)
        return y.float()

    first, second = (Layer(function, (torch.nn.Linear(4, 4),)) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        x1, x2 = run_reversibly([(first, second)], torch.ones(2, 3, 4, requires_grad=True))
    (x1 + x2).sum().backward()
    assert ran == [torch.bfloat16] * 4


def test_a_grad_scaler_scales_and_skips_gradients_that_are_not_finite():
    model, batch = golden_model().float(), (GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for is_broken in (False, True):
        before = model.head.bias.clone()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(*batch).loss * (float("inf") if is_broken else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model.head.bias) == is_broken
    assert scaler.get_scale() == 2.0**9


def test_memory_kept_for_the_backward_pass_does_not_grow_with_depth():
    def kept(depth: int, is_reversible: bool) -> int:
        sizes = {}

        def keep(x: torch.Tensor) -> torch.Tensor:
            if not isinstance(x, torch.nn.Parameter):
                sizes[x.data_ptr()] = x.untyped_storage().nbytes()
            return x

        model = random_model(ModelConfig(**{**ODD.__dict__, "depth": depth}), is_reversible)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            output = model(*random_batch())
        assert output.loss.requires_grad
        return sum(sizes.values())

    assert kept(4, True) == kept(12, True) < kept(4, False) < kept(12, False) / 2


COMPILED = """
import torch
from torch._dynamo.backends.registry import lookup_backend
from dalle_lib.model import DALLE, ModelConfig, generate
torch.manual_seed(0)
model = DALLE(
    ModelConfig(dim=20, depth=12, heads=3, dim_head=14, text_length=6, text_vocab=11, image_vocab=13, grid=5)
).double()
model.transformer.is_reversible = True
text, codes = torch.randint(11, (3, 6)), torch.randint(13, (3, 25))
graphs = []

def backend(graph, inputs):
    found = [node.meta.get("example_value") for node in graph.graph.nodes]
    assert not any(isinstance(x, torch.Tensor) and x.is_complex() for x in found), "compilers make no kernels of these"
    graphs.append(graph)
    return lookup_backend("aot_eager")(graph, inputs)

def gradient(batch):
    model.zero_grad()
    model(text[:batch], codes[:batch]).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

expected, drawn = {batch: gradient(batch) for batch in (3, 2)}, generate(model, text, samples=2, seed=0)
model.transformer.compile_layers(backend=backend, fullgraph=True)
for _ in range(2):
    for batch, found in expected.items():
        torch.testing.assert_close(gradient(batch), found)
    assert len(graphs) == 2 * 8, "three kinds of attention and a feed-forward layer, both ways, for each batch size"
assert torch.equal(generate(model, text, samples=2, seed=0), drawn)
assert len(graphs) == 2 * 8
"""


def test_layers_compile_to_one_graph_a_kind():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
