"""The published checkpoint's layout: the names of its tensors in terms of ours, read and written.

It repeats each weight that several layers share under a name for each of them. There are two namings, that of the code
the paper trained with and that of the code it drew with, and a trainer's checkpoint has a prefix before each name.
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
"""Name of the rotary angles, which that code saves; ours computes them from the configuration."""


def reference_names(config: ModelConfig) -> dict[str, list[str]]:
    """Return all names of each of our tensors in the published layout, as the training code names them."""
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
    """Return a tensor's name in the paper's drawing code, given its name in the training code."""
    name = name.replace("net.fn.fn", "net.fn.fn.fn")
    return name.replace("to_qkv", "fn.to_qkv").replace("to_out", "fn.to_out")


def to_reference_names(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return our tensors under all names of the published layout, and its angles; names of one tensor share memory."""
    tensors = {copy: ours[name] for name, copies in reference_names(config).items() for copy in copies}
    return tensors | {_ANGLES: _angles(config)}


def from_reference_names(
    published: Mapping[str, Tensor], ours: Mapping[str, Tensor], config: ModelConfig
) -> dict[str, Tensor]:
    """Return the tensors of a published checkpoint under our names, each once; `ours` has the shapes they must have.

    Either naming will do, with or without the prefix, and of a tensor's names any that are there.

    Raises ValueError if a tensor has none of its names there, a name is unknown, a shape is another, names of one
    tensor hold different values, or the angles are not those of `config`.
    """
    expected = to_reference_names(ours, config)
    published = _as_in_training(published, expected)
    names = reference_names(config)
    counts = f"expected {len(names) + 1} to {len(expected)} tensors of {config}, got {len(published)}"
    if unknown := published.keys() - expected.keys():
        raise ValueError(f"unknown tensors in the checkpoint: {_some(unknown)}; {counts}.")
    present = {name: [copy for copy in copies if copy in published] for name, copies in names.items()}
    missing = [_any_of(names[name]) for name, copies in present.items() if not copies]
    if missing := missing + [_ANGLES] * (_ANGLES not in published):
        raise ValueError(f"tensors missing from the checkpoint: {_some(missing)}; {counts}.")
    if wrong := [
        f"{name} has shape {list(tensor.shape)}, not {list(expected[name].shape)}"
        for name, tensor in published.items()
        if tensor.shape != expected[name].shape
    ]:
        raise ValueError(f"the checkpoint belongs to another configuration than {config}: {_some(wrong)}.")
    # Other angles make another model. Those of the checkpoint may be rounded in another way, or to half precision.
    if not torch.allclose(published[_ANGLES].float(), expected[_ANGLES], rtol=0.01, atol=0.01):
        raise ValueError(f"{_ANGLES} holds other rotary angles than {config} has.")
    for first, *others in present.values():
        if differing := [other for other in others if not torch.equal(published[other], published[first])]:
            raise ValueError(f"{_some(differing)} must equal {first}, whose weights they share.")
    return {name: published[copies[0]] for name, copies in present.items()}


def _as_in_training(published: Mapping[str, Tensor], expected: Iterable[str]) -> Mapping[str, Tensor]:
    """Return the tensors under the names of the training code, without the prefix; unknown names stay."""
    if all(name.startswith(PREFIX) for name in published):
        published = {name.removeprefix(PREFIX): tensor for name, tensor in published.items()}
    training_name = {inference_name(name): name for name in expected}
    if any(name in published for name, renamed in training_name.items() if name != renamed):
        published = {training_name.get(name, name): tensor for name, tensor in published.items()}
    return published


def _any_of(names: list[str]) -> str:
    return names[0] + (f" (or any of its {len(names) - 1} other names)" if len(names) > 1 else "")


def _angles(config: ModelConfig) -> Tensor:
    return rotary_angles(config).repeat_interleave(2, dim=1)[None]


def _some(found: Iterable[str]) -> str:
    first, rest = sorted(found)[:3], len(list(found)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
