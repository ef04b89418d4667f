"""Names of the published checkpoint's tensors, in terms of ours."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dalle_lib.model.config import ModelConfig

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
_IGNORED = "transformer.pos_emb"  # a buffer; ours is computed from the configuration


def reference_names(config: ModelConfig) -> dict[str, list[str]]:
    """Return, for each of our tensors, the names under which the published layout repeats it."""
    body = min(4, config.depth - 1)
    names: dict[str, list[str]] = {}
    for i in range(config.depth):
        weights = body if i == config.depth - 1 else i % 4
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


def from_reference_names(
    state_dict: Mapping[str, Tensor], ours: Mapping[str, Tensor], config: ModelConfig
) -> dict[str, Tensor]:
    """Return `state_dict` under our names, each shared tensor once, after checking names, shapes and copies."""
    names = reference_names(config)
    known = {copy for copies in names.values() for copy in copies} | {_IGNORED}
    if unknown := sorted(set(state_dict) - known):
        raise ValueError(f"unknown tensors in the checkpoint: {_some(unknown)}. Is it a model of this kind and depth?")
    if missing := [copies[0] for copies in names.values() if not any(copy in state_dict for copy in copies)]:
        raise ValueError(f"tensors missing from the checkpoint: {_some(missing)}.")
    tensors = {}
    for name, copies in names.items():
        present = [copy for copy in copies if copy in state_dict]
        first = state_dict[present[0]]
        if first.shape != ours[name].shape:
            raise ValueError(
                f"{present[0]} must have shape {list(ours[name].shape)}, but has {list(first.shape)}: "
                f"the checkpoint belongs to another configuration."
            )
        if differing := [copy for copy in present[1:] if not torch.equal(state_dict[copy], first)]:
            raise ValueError(f"{_some(differing)} must equal {present[0]}, whose weights they share.")
        tensors[name] = first
    return tensors


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
