import json

import pytest
import torch
from conftest import DATA
from safetensors.torch import load_file

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.model import DALLE, ModelConfig, generate
from dalle_lib.model.reference import reference_names
from dalle_lib.model.rotary import rotary_angles
from dalle_lib.model.sampling import code_probabilities

GOLDEN = load_file(DATA / "dalle_small.safetensors")
FACTS = json.loads((DATA / "dalle_small.json").read_text())
TOLERANCES = FACTS["tolerances"]
SMALL = ModelConfig(dim=32, depth=10, heads=2, dim_head=32, text_length=16, text_vocab=100, image_vocab=64, grid=8)
ODD = ModelConfig(dim=20, depth=3, heads=3, dim_head=14, text_length=7, text_vocab=11, image_vocab=13, grid=5)
WEIGHTS = {name.removeprefix("params/"): t.double() for name, t in GOLDEN.items() if name.startswith("params/")}


@pytest.fixture(scope="module")
def model() -> DALLE:
    return DALLE.from_reference(WEIGHTS, SMALL)


@pytest.fixture(scope="module")
def output(model):
    output = model(GOLDEN["inputs/text"], GOLDEN["inputs/image"])
    output.loss.backward()
    return output


def test_losses_and_logits_are_those_of_the_published_code(output):
    for name, value in ("loss", output.loss), ("loss_text", output.text_loss), ("loss_img", output.image_loss):
        assert abs(value - GOLDEN[f"outputs/{name}"]) < TOLERANCES["float64_loss_abs"]
    expected = GOLDEN["outputs/logits"]
    allowed = expected > -1e300
    assert (output.logits - expected)[allowed].abs().max() < TOLERANCES["float64_logits_abs"]
    assert (output.logits[~allowed] == torch.finfo(torch.float64).min).all()


def test_gradients_are_those_of_the_published_code(model, output):
    parameters = dict(model.named_parameters())
    names = reference_names(SMALL)
    assert set(names) == set(parameters)
    for ours, copies in names.items():
        expected = GOLDEN[f"grads/{copies[0]}"]
        error = (parameters[ours].grad - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCES["float64_grads_abs_over_max_abs_of_that_grad"], ours


def test_greedy_codes_are_those_of_the_published_code(model):
    codes = generate(model, GOLDEN["inputs/text"], top_p=0.0)
    assert torch.equal(codes, GOLDEN["outputs/greedy_image_tokens"])


@pytest.mark.parametrize("case", FACTS["sampling_cases"], ids=lambda case: str(case["index"]))
def test_filters_give_the_published_probabilities(case):
    settings = {name: case[name] for name in ("top_k", "top_p", "temperature")}
    probabilities = code_probabilities(GOLDEN["sampling/logits"], **settings)
    expected = GOLDEN[f"sampling/probs_{case['index']}"]
    assert (probabilities - expected).abs().max() < TOLERANCES["sampling_probs_abs"]
    assert (probabilities > 0).sum(1).tolist() == case["kept_per_row"]


def test_angles_of_the_paper_are_exact():
    golden = load_file(DATA / "dalle_paper_pos_emb.safetensors")
    angles = rotary_angles(ModelConfig.paper()).repeat_interleave(2, dim=1)
    assert torch.equal(angles[golden["rows"]], golden["pos_emb_rows"])
    assert (angles.double().sum(1) - golden["row_sums_float64"]).abs().max() < 1e-9


def test_the_paper_has_the_published_tensors():
    facts = json.loads((DATA / "dalle_paper_state_dict.json").read_text())
    with torch.device("meta"):
        model = DALLE(ModelConfig.paper())
    assert sum(p.numel() for p in model.parameters()) == facts["counts"]["unique_parameters"]
    published = {name: tuple(shape) for name, shape, _unique in facts["keys"]}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = reference_names(ModelConfig.paper())
    copies = {copy: shapes[ours] for ours, all_copies in names.items() for copy in all_copies}
    assert copies == {name: shape for name, shape in published.items() if name != "transformer.pos_emb"}


def test_a_code_depends_on_nothing_after_it():
    torch.manual_seed(0)
    model = DALLE(ODD).double()
    text, codes = torch.randint(1, 11, (1, 7)), torch.randint(13, (1, 25))
    before = model(text, codes).image_logits
    changed = codes.clone()
    changed[0, 12] = (codes[0, 12] + 1) % 13
    after = model(text, changed).image_logits
    assert torch.equal(before[:, :13], after[:, :13])
    assert not torch.allclose(before[:, 13:], after[:, 13:])


def test_drawing_with_history_gives_the_logits_of_the_whole_sequence():
    torch.manual_seed(0)
    model = DALLE(ODD).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    text = torch.randint(1, 11, (2, 7))
    codes = generate(model, text, top_p=0.0)
    assert torch.equal(model(text, codes).image_logits.argmax(-1), codes)


def test_guidance_draws_between_caption_and_no_caption():
    torch.manual_seed(0)
    model = DALLE(ODD).double()
    text = torch.randint(1, 11, (2, 7))
    unguided = generate(model, text, seed=3, guidance=1.0)
    assert torch.equal(unguided, generate(model, text, seed=3))
    no_caption = generate(model, torch.zeros_like(text), top_p=0.0)
    assert torch.equal(generate(model, text, top_p=0.0, guidance=0.0), no_caption)


def test_a_seed_repeats_a_drawing_and_another_does_not():
    torch.manual_seed(0)
    model = DALLE(ODD)
    text = torch.randint(1, 11, (2, 7))
    assert torch.equal(generate(model, text, seed=1), generate(model, text, seed=1))
    assert not torch.equal(generate(model, text, seed=1), generate(model, text, seed=2))


def test_saved_weights_come_back_with_their_configuration(tmp_path):
    model = DALLE(ODD)
    save_model(tmp_path / "model.safetensors", model)
    loaded = load_model(tmp_path / "model.safetensors", ODD)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    with pytest.raises(ValueError, match="another model"):
        load_model(tmp_path / "model.safetensors", SMALL)


def test_a_wrong_checkpoint_is_refused_by_name():
    with pytest.raises(ValueError, match=r"missing.*to_logits\.0\.bias"):
        DALLE.from_reference({k: v for k, v in WEIGHTS.items() if k != "to_logits.0.bias"}, SMALL)
    with pytest.raises(ValueError, match=r"unknown tensors.*strange"):
        DALLE.from_reference({**WEIGHTS, "strange": torch.zeros(1)}, SMALL)
    with pytest.raises(ValueError, match=r"must have shape \[32\]"):
        DALLE.from_reference({**WEIGHTS, "to_logits.0.bias": torch.zeros(31)}, SMALL)
    with pytest.raises(ValueError, match="must equal to_logits"):
        DALLE.from_reference({**WEIGHTS, "text_emb.linear.bias": torch.zeros(180)}, SMALL)


def test_wrong_input_is_refused():
    model = DALLE(ODD)
    text, codes = torch.ones(1, 7, dtype=torch.long), torch.zeros(1, 25, dtype=torch.long)
    with pytest.raises(ValueError, match=r"text must have shape \[batch, 7\]"):
        model(text[:, :6], codes)
    with pytest.raises(ValueError, match=r"codes must hold ids from 0 to 12"):
        model(text, codes + 13)
    with pytest.raises(ValueError, match="top_p"):
        generate(model, text, top_p=1.5)
    with pytest.raises(ValueError, match="divisible by 4"):
        ModelConfig(dim=22, depth=3, heads=3, dim_head=14, text_length=7, text_vocab=11, image_vocab=13, grid=5)
