"""Models and batches that are small enough to check number by number, and the golden data of the published code."""

import json

import pytest
import torch
from conftest import DATA
from safetensors.torch import load_file

from dalle_lib.model import DALLE, ModelConfig

GOLDEN = load_file(DATA / "dalle_small.safetensors")
TOLERANCES = json.loads((DATA / "dalle_small.json").read_text())["tolerances"]
SMALL = ModelConfig(dim=32, depth=10, heads=2, dim_head=32, text_length=16, text_vocab=100, image_vocab=64, grid=8)
ODD = ModelConfig(dim=20, depth=7, heads=3, dim_head=14, text_length=6, text_vocab=11, image_vocab=13, grid=5)
"""Sizes that are all different. The last group of four blocks is not whole, and a window does not fill the grid."""
EXACT = [pytest.param(True, id="reversible"), pytest.param(False, id="plain autograd")]


WEIGHTS = {name[7:]: tensor.double() for name, tensor in GOLDEN.items() if name[:7] == "params/"}
WEIGHTS["transformer.pos_emb"] = GOLDEN["pos_emb"]
"""The golden weights in the published layout, each under its first name alone."""


def golden_model(is_reversible: bool = True) -> DALLE:
    """Return the model whose logits and gradients are in the golden data, in float64."""
    model = DALLE.from_reference(WEIGHTS, SMALL)
    model.transformer.is_reversible = is_reversible
    return model


def random_model(config: ModelConfig = ODD, is_reversible: bool = True) -> DALLE:
    """Return a model in float64 in which every layer matters."""
    torch.manual_seed(0)
    model = DALLE(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(model.norm.weight)  # small gains would leave the prediction to the head's bias
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
    """Return the gradient of the loss with respect to each parameter, by name."""
    model.zero_grad()
    model(*batch).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def largest_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest error of any gradient, relative to the largest entry of that gradient."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - e).abs().max() / e.abs().max()) for name, e in expected.items())
