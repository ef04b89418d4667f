import dense_dalle
import pytest
import torch
from checkout import load_script
from small_models import (
    EXACT,
    GOLDEN,
    ODD,
    SMALL,
    TOLERANCES,
    golden_model,
    gradients,
    largest_error,
    random_batch,
    random_model,
)

from dalle_lib.model import DALLE, ModelConfig, generate
from dalle_lib.model.reference import reference_names


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


@pytest.fixture(scope="module")
def dense() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, loss and gradients of the model of odd sizes, with dense masks."""
    batch = list(zip(*random_batch(), strict=True))
    weights = {name: tensor.requires_grad_() for name, tensor in random_model().to_reference().items()}
    logits = [dense_dalle.logits(weights, ODD, *one) for one in batch]
    loss = sum(dense_dalle.loss(found, ODD, *one) for found, one in zip(logits, batch, strict=True)) / len(batch)
    loss.backward()
    gradients = {ours: weights[copies[0]].grad for ours, copies in reference_names(ODD).items()}
    return torch.stack(logits).detach(), loss.detach(), gradients


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("is_reversible", EXACT)
def test_a_model_of_odd_sizes_is_that_of_the_dense_masks(is_reversible, dense):
    logits, loss, expected = dense
    model, batch = random_model(is_reversible=is_reversible), random_batch()
    output = model(*batch)
    torch.testing.assert_close(output.logits, logits, rtol=0, atol=TOLERANCES["float64_logits_abs"])
    assert abs(output.loss - loss) < TOLERANCES["float64_loss_abs"]
    error = largest_error(gradients(model, *batch), expected)
    assert error < TOLERANCES["float64_grads_abs_over_max_abs_of_that_grad"]


def test_a_code_depends_on_nothing_after_it():
    model, (text, codes) = random_model(), random_batch(batch=1)
    before = model(text, codes).image_logits
    changed = codes.clone()
    changed[0, 12] = (codes[0, 12] + 1) % 13
    after = model(text, changed).image_logits
    torch.testing.assert_close(before[:, :13], after[:, :13], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 13:], after[:, 13:])


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
