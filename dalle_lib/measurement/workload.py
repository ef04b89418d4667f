"""The real models and optimizers that the options of `Training` stand for."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from dalle_lib.files import read_record
from dalle_lib.memory import PRESETS, Training
from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.memory.presets import FAMILIES, describe, preset_name
from dalle_lib.one_line import in_one_line

_SMALL = 256
"""Elements up to which a statistic is not moved: step counts, and code tables that all tensors share."""


def read_config(text: str) -> dict:
    """Return the fields of a Hub config, given as JSON text, or as `owner/name` of a model on the Hub.

    Raises ValueError if `text` is neither, or the config of this kit's model without its sizes, and ConnectionError if
    the Hub cannot be reached or has no such file.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            return _with_sizes(json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"expected a config.json's text, but it is not whole: {error}.") from error
    if len(text.split("/")) != 2 or len(text.split()) != 1:
        raise ValueError(f"expected a config.json's text, or owner/name of a model on the Hub, but got {text[:40]!r}.")
    from huggingface_hub import hf_hub_download

    from dalle_lib.hub_http import httpx, require_here_or_hub

    instead = "if you have its config.json elsewhere, name that file on the command line, or paste its text instead"
    require_here_or_hub(text, "config.json", instead)
    try:
        config = Path(hf_hub_download(text, "config.json"))
    except (httpx.HTTPError, OSError) as error:
        raise ConnectionError(f"the Hub gave no config.json of {text} ({in_one_line(error)}): {instead}.") from error
    return read_record(config, _with_sizes, "Ask the model's owner for another.")


def _with_sizes(fields: dict) -> dict:
    """Return a config's fields. Raises ValueError for one of this kit's model that lacks sizes: it has no defaults."""
    missing = [name for name in DALLEDescription.defaults if name not in fields]
    if fields.get("model_type") == "dalle" and missing:
        raise ValueError(
            f"expected all sizes of a model of type 'dalle', but this config lacks {', '.join(missing)}. The paper's "
            "model is named dalle-paper."
        )
    return fields


def build_model(model: str | Mapping, training: Training, from_file: bool = False) -> nn.Module:
    """Return the real model of a preset, of config fields, or (`from_file`) of a folder, set up as `training` says.

    The attention kernel, dropout, the type of the weights, checkpointing and reversible layers are set.
    """
    fields = {} if from_file else PRESETS[preset_name(model)] if isinstance(model, str) else dict(model)
    if fields.get("model_type") == "dalle":
        from dalle_lib.model import DALLE, ModelConfig

        sizes = vars(describe(fields).config)
        built = DALLE(ModelConfig(**{name: sizes[name] for name in ModelConfig.__dataclass_fields__}))
        built.transformer.is_reversible = training.reversible
        return built
    import transformers

    if from_file:
        config = transformers.AutoConfig.from_pretrained(model)
    else:
        config = transformers.AutoConfig.for_model(**fields)
    for name in vars(config):
        if name.endswith(("pdrop", "dropout_prob", "dropout_rate", "attention_dropout")):
            setattr(config, name, 0.1 if training.dropout else 0.0)
    kinds = {
        "bert": transformers.AutoModelForMaskedLM,
        "t5": transformers.AutoModelForSeq2SeqLM,
    }
    kind = kinds.get(config.model_type, transformers.AutoModelForCausalLM)
    attention = training.attention or FAMILIES[config.model_type].attentions[-1]
    dtype = torch.bfloat16 if training.precision == "pure-bf16" else torch.float32
    if from_file:
        built = kind.from_pretrained(model, config=config, dtype=dtype, attn_implementation=attention)
    else:
        config._attn_implementation = attention
        if config.model_type == "t5":
            config.decoder_start_token_id = 0
        built = kind.from_config(config, dtype=dtype)
    if training.checkpointing:
        checkpoint_layers(built)
    return built.train()


def checkpoint_layers(model: nn.Module) -> None:
    """Switch on gradient checkpointing in a transformers model."""
    # transformers 5.15, which Colab has, knows only the old name; version 6 will know only the new one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def optimizer_of(training: Training, parameters: Iterable[nn.Parameter], lr: float, model: nn.Module):
    """Return the optimizer that `training` names, over the parameters of `model` or over copies in the same order."""
    parameters = list(parameters)
    name, is_paged = training.optimizer, training.offload == "statistics" and parameters[0].is_cuda
    if name == "adamw8bit":
        bnb = load_bitsandbytes()
        manager = bnb.optim.GlobalOptimManager.get_instance()
        manager.initialize()  # all optimizers of the process share it
        manager.register_parameters(parameters)
        if training.embeddings_32bit:
            embeddings = {id(weight) for weight in embedding_weights(model)}
            for own, parameter in zip(model.parameters(), parameters, strict=True):
                if id(own) in embeddings:
                    manager.override_config(parameter, "optim_bits", 32)
        return (bnb.optim.PagedAdamW8bit if is_paged else bnb.optim.AdamW8bit)(parameters, lr=lr)
    if name == "adamw" and is_paged:
        return load_bitsandbytes().optim.PagedAdamW(parameters, lr=lr)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, fused=True)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=lr, foreach=False)
    from dalle_lib.optimizer import LAMB8bit

    return LAMB8bit(parameters, lr=lr, bits=8 if name == "lamb8bit" else 32)


def load_bitsandbytes() -> ModuleType:
    """Return the module `bitsandbytes`, which is slow to import, without a warning that it logs on some processors.

    The warning is about a missing package for products of 4-bit weights, which nothing here computes.
    """
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    import bitsandbytes

    logger.setLevel(level)
    return bitsandbytes


def embedding_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the embedding tables of `model`; those of this kit's model are in its head."""
    from dalle_lib.model import DALLE

    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    return [model.head.weight] if isinstance(model, DALLE) else tables


class Offloaded:
    """An optimizer over 32-bit copies of the parameters, which are in RAM; without a GPU they are in files."""

    def __init__(self, model: nn.Module, make: Callable, folder: Path) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.folder = None if self.parameters[0].is_cuda else folder
        self.copies = [nn.Parameter(self.lower(p.detach(), f"weight{i}")) for i, p in enumerate(self.parameters)]
        for i, (parameter, copy) in enumerate(zip(self.parameters, self.copies, strict=True)):
            copy.grad = self.lower(torch.zeros_like(parameter), f"grad{i}")
        self.optimizer = make(self.copies)

    @torch.no_grad()
    def step(self) -> None:
        """Copy the gradients down, update the copies, and copy the weights back."""
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad.copy_(parameter.grad)
            parameter.grad = None
        self.optimizer.step()
        if self.folder:
            lower_statistics(self.optimizer, self.folder)
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            parameter.copy_(copy)

    def lower(self, tensor: Tensor, name: str) -> Tensor:
        """Return a 32-bit copy of `tensor` in RAM; without a GPU, in the file `name`."""
        return mapped(self.folder / name, tensor.float()) if self.folder else tensor.float().cpu()


def mapped(file: Path, tensor: Tensor) -> Tensor:
    """Return a copy of `tensor` whose memory is mapped to `file`."""
    copy = torch.from_file(str(file), shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return copy.view(tensor.shape).copy_(tensor)


def lower_statistics(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Move an optimizer's statistics from a CPU's memory into files in `folder`; those already there stay."""
    for number, state in enumerate(optimizer.state.values()):
        for name, value in state.items():
            file = folder / f"{name}{number}"
            if isinstance(value, Tensor) and value.numel() > _SMALL and not file.exists():
                state[name] = mapped(file, value)
