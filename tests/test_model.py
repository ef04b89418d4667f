import json
import subprocess
import sys

import dense_dalle
import pytest
import torch
from checkout import load_script
from conftest import DATA, same_weights
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.inference.published import load_published, save_published
from dalle_lib.model import DALLE, ModelConfig, generate
from dalle_lib.model.reference import inference_name, reference_names
from dalle_lib.model.reversible import Layer, run_reversibly
from dalle_lib.model.rotary import rotary_angles

GOLDEN = load_file(DATA / "dalle_small.safetensors")
TOLERANCES = json.loads((DATA / "dalle_small.json").read_text())["tolerances"]
SMALL = ModelConfig(dim=32, depth=10, heads=2, dim_head=32, text_length=16, text_vocab=100, image_vocab=64, grid=8)
ODD = ModelConfig(dim=20, depth=7, heads=3, dim_head=14, text_length=6, text_vocab=11, image_vocab=13, grid=5)
"""Sizes that are all different; the last group of four blocks is not whole, and a window does not fill the grid."""
EXACT = [pytest.param(True, id="reversible"), pytest.param(False, id="plain autograd")]


def published(config: ModelConfig, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors that are known by their first names alone under all their names."""
    names = reference_names(config)
    copies = {copy: values[all_copies[0]] for all_copies in names.values() for copy in all_copies}
    return {**copies, "transformer.pos_emb": GOLDEN["pos_emb"]}


WEIGHTS = published(SMALL, {name[7:]: tensor.double() for name, tensor in GOLDEN.items() if name[:7] == "params/"})


def golden_model(is_reversible: bool = True) -> DALLE:
    model = DALLE.from_reference(WEIGHTS, SMALL)
    model.transformer.is_reversible = is_reversible
    return model


def random_model(config: ModelConfig = ODD, is_reversible: bool = True) -> DALLE:
    """Return a model in float64 in which every layer matters."""
    torch.manual_seed(0)
    model = DALLE(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(model.norm.weight)  # or the head's bias would decide
    model.transformer.is_reversible = is_reversible
    return model


def random_batch(config: ModelConfig = ODD, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Return captions, padded with id 0 here and there, and codes."""
    torch.manual_seed(1)
    text, codes = (
        torch.randint(config.text_vocab, (batch, config.text_length)),
        torch.randint(config.image_vocab, (batch, config.image_length)),
    )
    text[:, -2:] = 0
    return text, codes


def gradients(model: DALLE, *batch: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(*batch).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def largest_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of a gradient, over the largest entry of that gradient."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - e).abs().max() / e.abs().max()) for name, e in expected.items())


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("is_reversible", EXACT)
def test_losses_logits_and_gradients_are_those_of_the_published_code(is_reversible):
    model = golden_model(is_reversible)
    output = model(GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    for name, value in ("loss", output.loss), ("loss_text", output.text_loss), ("loss_img", output.image_loss):
        assert abs(value - GOLDEN[f"outputs/{name}"]) < TOLERANCES["float64_loss_abs"]
    expected = GOLDEN["outputs/logits"]
    allowed = expected > -1e300
    assert (output.logits - expected)[allowed].abs().max() < TOLERANCES["float64_logits_abs"]
    assert (output.logits[~allowed] == torch.finfo(torch.float64).min).all()
    found = gradients(model, GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    expected = {ours: GOLDEN[f"grads/{copies[0]}"] for ours, copies in reference_names(SMALL).items()}
    assert largest_error(found, expected) < TOLERANCES["float64_grads_abs_over_max_abs_of_that_grad"]


def test_float32_is_as_close_as_the_published_code_in_float32():
    model = golden_model().float()
    output = model(GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    expected = GOLDEN["outputs/logits"]
    allowed = expected > -1e300
    assert (output.logits.double() - expected)[allowed].abs().max() < TOLERANCES["float32_logits_abs"]
    found = gradients(model, GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    expected = {ours: GOLDEN[f"grads/{copies[0]}"] for ours, copies in reference_names(SMALL).items()}
    assert largest_error(found, expected) < TOLERANCES["float32_grads_abs_over_max_abs_of_that_grad"]


def test_the_plain_version_that_benchmarks_compare_with_is_the_same_function():
    model, (text, codes) = random_model(), random_batch()
    plain = load_script("benchmarks/plain").Plain(model)
    assert abs(plain.loss(text, codes) - model(text, codes).loss) < TOLERANCES["float64_loss_abs"]
    assert torch.equal(plain.draw(text, ODD.image_length, top_k=1), generate(model, text, top_k=1)[:, 0])


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("is_reversible", EXACT)
def test_a_model_of_odd_sizes_is_that_of_the_dense_masks(is_reversible):
    model = random_model(is_reversible=is_reversible)
    text, codes = random_batch()
    weights = {name: tensor.requires_grad_() for name, tensor in model.to_reference().items()}
    output = model(text, codes)
    expected = torch.stack([dense_dalle.logits(weights, ODD, *one) for one in zip(text, codes, strict=True)])
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=TOLERANCES["float64_logits_abs"])
    loss = sum(dense_dalle.loss(weights, ODD, *one) for one in zip(text, codes, strict=True)) / len(text)
    assert abs(output.loss - loss) < TOLERANCES["float64_loss_abs"]
    loss.backward()
    expected = {ours: weights[copies[0]].grad for ours, copies in reference_names(ODD).items()}
    error = largest_error(gradients(model, text, codes), expected)
    assert error < TOLERANCES["float64_grads_abs_over_max_abs_of_that_grad"]


def test_the_gradient_of_embeddings_flows_through_the_reversible_path():
    model, (text, codes) = random_model(), random_batch()
    x = model.embed(text, codes).detach().requires_grad_()
    found = []
    for model.transformer.is_reversible in (True, False):
        (model.transformer(x) ** 2).sum().backward()
        found.append(x.grad)
        x.grad = None
    torch.testing.assert_close(*found)


def test_a_reversible_gradient_cannot_be_differentiated_in_silence():
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
    """Each value is off by up to half its eps, at random: together by a few eps, at weights as training starts with.

    The streams stay in float32, so what the reversible path takes back from them is as good as what was kept.
    """
    torch.manual_seed(0)
    model, batch = DALLE(SMALL), random_batch(SMALL)
    model.transformer.is_reversible = is_reversible
    exact = torch.cat([grad.flatten() for grad in gradients(model, *batch).values()])
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        loss = model(*batch).loss
    (2.0**10 * loss).backward()  # as a GradScaler does, for float16 has no small numbers
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
    layer, ran = torch.nn.Linear(4, 4), []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        ran.append(y.dtype)
        return y.float()

    with torch.autocast("cpu", torch.bfloat16):
        x1, x2 = run_reversibly([Layer(function, (layer,))], torch.ones(2, 3, 4, requires_grad=True))
    (x1 + x2).sum().backward()
    assert ran == [torch.bfloat16] * 2


def test_a_grad_scaler_scales_and_finds_what_is_not_finite():
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


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_depth():
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


def test_half_precision_keeps_its_angles():
    exact, half = DALLE(ODD), DALLE(ODD).half().float()
    assert torch.equal(exact.transformer.rotary(torch.float32), half.transformer.rotary(torch.float32))


def test_angles_of_the_paper_are_exact():
    golden = load_file(DATA / "dalle_paper_pos_emb.safetensors")
    angles = rotary_angles(ModelConfig.paper()).repeat_interleave(2, dim=1)
    assert torch.equal(angles[golden["rows"]], golden["pos_emb_rows"])
    assert (angles.double().sum(1) - golden["row_sums_float64"]).abs().max() < 1e-9


def test_the_paper_has_the_published_tensors_and_ties():
    facts = json.loads((DATA / "dalle_paper_state_dict.json").read_text())
    model = DALLE(ModelConfig.paper())
    assert sum(p.numel() for p in model.parameters()) == facts["counts"]["unique_parameters"]
    exported = model.to_reference()
    assert {name: list(tensor.shape) for name, tensor in exported.items()} == {
        name: shape for name, shape, _unique in facts["keys"]
    }
    unique = {name for name, _shape, is_unique in facts["keys"] if is_unique}
    places = {exported[name].data_ptr() for name in unique}
    assert len(places) == len(unique)
    assert all(tensor.data_ptr() in places for name, tensor in exported.items() if name != "transformer.pos_emb")


def test_a_code_depends_on_nothing_after_it():
    model, (text, codes) = random_model(), random_batch(batch=1)
    before = model(text, codes).image_logits
    changed = codes.clone()
    changed[0, 12] = (codes[0, 12] + 1) % 13
    after = model(text, changed).image_logits
    torch.testing.assert_close(before[:, :13], after[:, :13], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 13:], after[:, 13:])


def test_saved_weights_come_back_with_their_configuration(tmp_path):
    model = DALLE(ODD)
    save_model(tmp_path / "model.safetensors", model)
    loaded = load_model(tmp_path / "model.safetensors", ODD)
    assert same_weights(model, loaded)
    with pytest.raises(ValueError, match="another model"):
        load_model(tmp_path / "model.safetensors", SMALL)


def test_a_model_goes_to_a_folder_of_the_hub_and_back(tmp_path):
    model = DALLE(ODD)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == ODD.__dict__
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    loaded = DALLE.from_pretrained(tmp_path)
    assert loaded.config == ODD
    assert same_weights(model, loaded)
    del stored["norm.bias"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match=r"norm\.bias"):
        DALLE.from_pretrained(tmp_path)


@pytest.mark.parametrize("renamed", [lambda name: name, inference_name], ids=["training", "inference"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_published_file_comes_back_as_it_was(tmp_path, renamed, prefix):
    model = DALLE(ODD)
    tensors = {prefix + renamed(name): tensor for name, tensor in model.to_reference().items()}
    torch.save(tensors, tmp_path / "theirs.pt")
    loaded = load_published(tmp_path / "theirs.pt", ODD)
    assert same_weights(model, loaded)
    save_published(tmp_path / "ours.pt", loaded)
    again = torch.load(tmp_path / "ours.pt", weights_only=True)
    names = reference_names(ODD)
    assert set(again) == {f"model.{copy}" for copies in names.values() for copy in copies} | {
        "model.transformer.pos_emb"
    }
    for ours, copies in names.items():
        assert len({again[f"model.{copy}"].data_ptr() for copy in copies}) == 1
        assert torch.equal(again[f"model.{copies[0]}"], model.state_dict()[ours])


@pytest.mark.parametrize("found", [[torch.zeros(3)], torch.zeros(3), {"epoch": 3}, {"state_dict": None}])
def test_a_file_of_something_else_is_refused(tmp_path, found):
    torch.save(found, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="expected a dictionary of tensors"):
        load_published(tmp_path / "other.pt", ODD)


def test_the_names_for_drawing_are_those_of_the_published_code():
    prefix = "transformer.layers.blocks.0"
    assert inference_name(f"{prefix}.f.net.fn.fn.fn.to_qkv.weight") == f"{prefix}.f.net.fn.fn.fn.fn.fn.to_qkv.weight"
    assert inference_name(f"{prefix}.g.net.fn.fn.fn.net.0.weight") == f"{prefix}.g.net.fn.fn.fn.fn.net.0.weight"
    for name in f"{prefix}.f.net.fn.norm.weight", f"{prefix}.f.net.scale", "transformer.pos_emb", "to_logits.1.bias":
        assert inference_name(name) == name


def test_a_wrong_checkpoint_is_refused_by_name():
    fewer = {name: tensor for name, tensor in WEIGHTS.items() if "blocks.3." not in name}
    with pytest.raises(ValueError, match=r"missing.*blocks\.3\.f.* more; expected .* tensors of ModelConfig"):
        DALLE.from_reference(fewer, SMALL)
    with pytest.raises(ValueError, match=r"unknown tensors.*strange"):
        DALLE.from_reference({**WEIGHTS, "strange": torch.zeros(1)}, SMALL)
    with pytest.raises(ValueError, match=r"to_logits\.0\.bias has shape \[31\], not \[32\]"):
        DALLE.from_reference({**WEIGHTS, "to_logits.0.bias": torch.zeros(31)}, SMALL)
    with pytest.raises(ValueError, match=r"pos_emb holds other rotary angles"):
        DALLE.from_reference({**WEIGHTS, "transformer.pos_emb": GOLDEN["pos_emb"].flip(1)}, SMALL)
    with pytest.raises(ValueError, match=r"image_emb.* must equal to_logits"):
        DALLE.from_reference({**WEIGHTS, "image_emb.linear.bias": torch.zeros(180)}, SMALL)


def test_wrong_input_is_refused():
    model = DALLE(ODD)
    text, codes = torch.ones(1, 6, dtype=torch.long), torch.zeros(1, 25, dtype=torch.long)
    with pytest.raises(ValueError, match=r"text must have shape \[batch, 6\]"):
        model(text[:, :5], codes)
    with pytest.raises(ValueError, match=r"codes must have shape \[batch, 25\]"):
        model(text, codes[:, :20])
    with pytest.raises(ValueError, match=r"codes must hold ids from 0 to 12"):
        model(text, codes + 13)
    with pytest.raises(ValueError, match=r"codes must hold ids from 0 to 12"):
        model(text, codes, codes - 1)
    with pytest.raises(ValueError, match=r"codes must have shape \[batch, 25\]"):
        model(text, codes, codes[:, :20])
    with pytest.raises(ValueError, match=r"codes must hold ids as torch\.int64, but has torch\.int32"):
        model(text, codes.int())
    with pytest.raises(ValueError, match="divisible by 4"):
        ModelConfig(dim=22, depth=3, heads=3, dim_head=14, text_length=7, text_vocab=11, image_vocab=13, grid=5)
