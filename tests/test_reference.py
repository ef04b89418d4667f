import json
from dataclasses import replace

import pytest
import torch
from conftest import DATA, same_weights
from safetensors.torch import load_file, save_model
from small_models import GOLDEN, ODD, SMALL, WEIGHTS, random_model
from torch import nn

from dalle_lib.inference.published import load_published, save_published
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.reference import inference_name, reference_names


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


def tied_modules(tensors: dict[str, torch.Tensor]) -> nn.Module:
    """Return modules whose state has these names; tensors that share memory are one parameter."""
    root, parameters = nn.Module(), {}
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        parameter = parameters.setdefault(tensor.data_ptr(), nn.Parameter(tensor, requires_grad=False))
        module.register_parameter(last, parameter)
    return root


PAPER_SHAPED = replace(
    ModelConfig.paper(), dim=4, heads=1, dim_head=12, text_length=2, text_vocab=5, image_vocab=7, grid=2
)
"""The paper's layers and sharing, so its 841 names, with tiny tensors."""


@pytest.mark.parametrize("renamed", [lambda name: name, inference_name], ids=["training", "inference"])
def test_a_safetensors_file_that_stores_shared_weights_once_is_read(tmp_path, renamed):
    model = random_model(PAPER_SHAPED).float()
    tensors = {f"model.{renamed(name)}": tensor for name, tensor in model.to_reference().items()}
    save_model(tied_modules(tensors), tmp_path / "model.safetensors")
    counts = json.loads((DATA / "dalle_paper_state_dict.json").read_text())["counts"]
    assert len(tensors) == counts["state_dict_keys"]
    assert len(load_file(tmp_path / "model.safetensors")) == counts["unique_parameter_tensors"] + 1  # the angles
    assert same_weights(load_published(tmp_path / "model.safetensors", PAPER_SHAPED), model)


def test_any_name_of_a_shared_weight_will_do_and_several_must_agree():
    model = random_model().float()
    tensors = model.to_reference()
    last = {copies[-1] for copies in reference_names(ODD).values()} | {"transformer.pos_emb"}
    assert same_weights(DALLE.from_reference({name: tensors[name] for name in last}, ODD), model)
    several = {name: tensors[name] for name in last} | {"text_emb.linear.bias": tensors["to_logits.1.bias"] + 1}
    with pytest.raises(ValueError, match=r"image_emb\.linear\.bias must equal text_emb\.linear\.bias"):
        DALLE.from_reference(several, ODD)
    fewer = {name: tensor for name, tensor in tensors.items() if name not in reference_names(ODD)["head.bias"]}
    with pytest.raises(ValueError, match=r"missing.*: to_logits\.1\.bias \(or any of its 2 other names\)"):
        DALLE.from_reference(fewer, ODD)


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
