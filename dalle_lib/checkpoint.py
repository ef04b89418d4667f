"""Weights on disk: safetensors with the model's configuration inside."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dalle_lib.files import replace_file
from dalle_lib.model import DALLE, ModelConfig

_CONFIG = "config"
_EPOCH = "epoch"


def save_tensors(file: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all: a crash leaves the old one."""
    with replace_file(file) as unfinished:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, unfinished, metadata)


def load_tensors(file: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    with safe_open(file, "pt") as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118


def save_model(file: str | Path, model: DALLE, epoch: int = 0, dtype: torch.dtype = torch.float32) -> None:
    """Write a model's weights with its configuration; shared weights once."""
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_tensors(file, tensors, {_CONFIG: json.dumps(asdict(model.config)), _EPOCH: str(epoch)})


def load_model(file: str | Path, expected: ModelConfig | None = None) -> DALLE:
    """Return the model of a checkpoint, in float32. Raises ValueError if it is not `expected`, or is no checkpoint."""
    tensors, metadata = load_tensors(file)
    if _CONFIG not in metadata:
        raise ValueError(f"{file} holds no model configuration: expected a file written by dalle_lib.checkpoint.")
    config = ModelConfig(**json.loads(metadata[_CONFIG]))
    if expected is not None and config != expected:
        raise ValueError(f"{file} holds another model: expected {expected}, but it has {config}.")
    model = DALLE(config)
    model.load_state_dict(tensors)
    return model
