"""The published checkpoint's layout: its tensors' names in terms of ours, read and written.

It repeats each shared tensor under the name of every block that uses it, under one of two namings: that of the code the
paper trained with, and that of the code it drew with. A trainer's checkpoint has a prefix before each name.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dalle_lib.model.config import ModelConfig
from dalle_lib.model.rotary import rotary_angles

PREFIX = "model."
_LAYERS = {
    "attentions": {"qkv.weight": "to_qkv.weight", "out.weight": "to_out.0.weight", "out.bias": "to_out.0.bias"},
    "feed_forwards": {
        "expand.weight": "net.0.weight",
        "expand.bias": "net.0.bias",
        "contract.weight": "net.3.weight",
        "contract.bias": "net.3.bias",
    },
}
_HEAD = ("to_logits.1", "text_emb.linear", "image_emb.linear")
_ANGLES = "transformer.pos_emb"
"""A buffer; ours is computed from the configuration."""


def reference_names(config: ModelConfig) -> dict[str, list[str]]:
    """Return, for each of our tensors, the names under which the published layout repeats it, those for training."""
    names: dict[str, list[str]] = {}
    for i, weights in enumerate(config.weight_sets):
        for ours, theirs, layer in ("attention", "f", "attentions"), ("feed_forward", "g", "feed_forwards"):
            prefix = f"transformer.layers.blocks.{i}.{theirs}.net"
            names[f"transformer.blocks.{i}.{ours}_scale"] = [f"{prefix}.scale"]
            for kind in "weight", "bias":
                names[f"transformer.blocks.{i}.{ours}_norm.{kind}"] = [f"{prefix}.fn.norm.{kind}"]
            for our_name, their_name in _LAYERS[layer].items():
                copies = names.setdefault(f"transformer.{layer}.{weights}.{our_name}", [])
                copies.append(f"{prefix}.fn.fn.fn.{their_name}")
    for kind in "weight", "bias":
        names[f"norm.{kind}"] = [f"to_logits.0.{kind}"]
        names[f"head.{kind}"] = [f"{copy}.{kind}" for copy in _HEAD]
    return names


def inference_name(name: str) -> str:
    """Return a tensor's name in the code that draws, given that in the code that trains."""
    name = name.replace("net.fn.fn", "net.fn.fn.fn")
    return name.replace("to_qkv", "fn.to_qkv").replace("to_out", "fn.to_out")


def to_reference_names(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return our tensors under the published layout's names for training, copies sharing their memory."""
    tensors = {copy: ours[name] for name, copies in reference_names(config).items() for copy in copies}
    return tensors | {_ANGLES: _angles(config)}


def from_reference_names(
    published: Mapping[str, Tensor], ours: Mapping[str, Tensor], config: ModelConfig
) -> dict[str, Tensor]:
    """Return `published` under our names, each shared tensor once, after checking names, shapes, angles and copies."""
    expected = to_reference_names(ours, config)
    if all(name.startswith(PREFIX) for name in published):
        published = {name.removeprefix(PREFIX): tensor for name, tensor in published.items()}
    if any(inference_name(name) != name and inference_name(name) in published for name in expected):
        known_as = {inference_name(name): name for name in expected}
        published = {known_as.get(name, name): tensor for name, tensor in published.items()}
    counts = f"expected {len(expected)} tensors of {config}, got {len(published)}"
    if unknown := published.keys() - expected.keys():
        raise ValueError(f"unknown tensors in the checkpoint: {_some(unknown)}; {counts}.")
    if missing := expected.keys() - published.keys():
        raise ValueError(f"tensors missing from the checkpoint: {_some(missing)}; {counts}.")
    if wrong := [
        f"{name} has shape {list(published[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if published[name].shape != tensor.shape
    ]:
        raise ValueError(f"the checkpoint belongs to another configuration than {config}: {_some(wrong)}.")
    # Other angles are another model. They may have been rounded otherwise, or to half precision.
    if not torch.allclose(published[_ANGLES].float(), expected[_ANGLES], rtol=0.01, atol=0.01):
        raise ValueError(f"{_ANGLES} holds other rotary angles than {config} has.")
    tensors = {}
    for name, copies in reference_names(config).items():
        tensors[name] = published[copies[0]]
        if differing := [copy for copy in copies[1:] if not torch.equal(published[copy], tensors[name])]:
            raise ValueError(f"{_some(differing)} must equal {copies[0]}, whose weights they share.")
    return tensors


def _angles(config: ModelConfig) -> Tensor:
    return rotary_angles(config).repeat_interleave(2, dim=1)[None]


def _some(found: Iterable[str]) -> str:
    first, rest = sorted(found)[:3], len(list(found)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
