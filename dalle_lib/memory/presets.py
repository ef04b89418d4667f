"""Presets: models by name, as the fields of their Hub configs."""

from collections.abc import Mapping

from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.memory.decoders import GPT2, GPTJ, Llama, Mistral, Qwen2
from dalle_lib.memory.encoders import BERT, T5
from dalle_lib.memory.models import ModelDescription
from dalle_lib.names import did_you_mean, find_name

FAMILIES: dict[str, type[ModelDescription]] = {
    "gpt2": GPT2, "gptj": GPTJ, "llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "bert": BERT, "t5": T5,
    "dalle": DALLEDescription,
}  # fmt: skip
"""The described architectures, by the `model_type` of their Hub configs."""


def _gpt(width: int, layers: int, heads: int, positions: int = 1024, vocabulary: int = 50257) -> dict:
    return {
        "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions,
        "vocab_size": vocabulary,
    }  # fmt: skip


def _bert(width: int, layers: int, heads: int) -> dict:
    return {
        "model_type": "bert", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }  # fmt: skip


def _t5(width: int, inner: int, layers: int, heads: int, head_width: int = 64) -> dict:
    return {
        "model_type": "t5", "d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads,
        "d_kv": head_width,
    }  # fmt: skip


PRESETS: dict[str, dict] = {
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "t5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "t5-large": _t5(1024, 4096, 24, 16),
    "t5-3b": _t5(1024, 16384, 24, 32, 128),
    "t5-11b": _t5(1024, 65536, 24, 128, 128),
    "gpt2": _gpt(768, 12, 12),
    "gpt2-medium": _gpt(1024, 24, 16),
    "gpt2-large": _gpt(1280, 36, 20),
    "gpt2-xl": _gpt(1600, 48, 25),
    "gpt3-1.3b": _gpt(2048, 24, 16, 2048),
    "gpt3-2.7b": _gpt(2560, 32, 32, 2048),
    "gpt3-6.7b": _gpt(4096, 32, 32, 2048),
    "gpt3-13b": _gpt(5120, 40, 40, 2048),
    "gpt3-175b": _gpt(12288, 96, 96, 2048),
    "gpt-j-6b": {"model_type": "gptj"},
    "dalle-12b": _gpt(3968, 64, 62, 1280, 16384 + 256 + 8192),
    "dalle-paper": {"model_type": "dalle"},
    "dalle-emoji": {
        "model_type": "dalle", "dim": 192, "depth": 5, "heads": 6, "dim_head": 32, "text_length": 16,
        "text_vocab": 1024, "image_vocab": 2048, "grid": 8,
    },
}  # fmt: skip
"""Sizes from each model's Hub config. GPT-3 (arXiv:2005.14165, table 2.1) and DALL-E 12B (arXiv:2102.12092, section 2)
are not public: GPT-2's architecture with their papers' sizes. `dalle-paper` is the model of arXiv:2207.03481."""


def preset_name(name: str) -> str:
    """Return the preset called `name`, whatever the case of its letters. Raises ValueError if there is none."""
    found = find_name(name, PRESETS)
    if found is None:
        known = f"expected one of {', '.join(PRESETS)}, or the config.json of another model"
        raise ValueError(f"unknown model {name!r}: {did_you_mean(name, PRESETS)}{known}.")
    return found


def describe(model: str | Mapping, distinct_layers: int | None = None) -> ModelDescription:
    """Return the description of a model, given a preset's name or the fields of a Hub config (`model_type` and sizes).

    With `distinct_layers`, that many layers have weights of their own and the others share them. Raises ValueError for
    a name that is no preset, and for an architecture that is not described here.
    """
    if isinstance(model, str):
        model = PRESETS[preset_name(model)]
    family = model.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"expected a config whose model_type is one of {', '.join(FAMILIES)}, but it is {family!r}: "
            f"choose the nearest of these and give it the sizes of your model."
        )
    return FAMILIES[family](dict(model), distinct_layers)
