"""What all peers of a run must agree on, as a short hash.

It is made of a fixed list of fields, and one that has its default is left out. So a field that a later version of the
card adds separates nobody who does not use it. Where a field gets another default or meaning, PROTOCOL must be raised.
"""

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

SHARED = {
    "": ("seed",),
    "model": ("dim", "depth", "heads", "dim_head", "text_length", "text_vocab", "image_vocab", "grid"),
    "data": ("manifest", "train", "revision"),
    "data.format": ("grid", "codebook_size", "vqgan_sha256"),
    "data.filters": ("min_caption", "max_aspect", "nsfw"),
    "tokenizer": ("sha256",),
    "vqgan": ("sha256",),
    "optimizer": (
        *("lr", "warmup_epochs", "total_epochs", "betas", "eps", "weight_decay"),
        *("max_grad_norm", "max_weight_norm", "bits"),
    ),
    "averaging": (
        *("target_batch_size", "matchmaking_s", "timeout_s", "state_every", "delayed", "strategy", "outer_lr"),
        *("outer_momentum", "eight_bit_from", "upload_bits", "part_bytes", "rule", "reducers", "parts", "audits"),
        *("least_wait_s", "longest_matchmaking_s"),
    ),
    "members": ("max_peers", "max_share"),
    "recipe": ("code_corruption", "caption_dropout"),
}
"""The fields that peers must share, by the part of the card that they are in."""
ADDRESSES = ("data.train", "data.revision")
"""Where the data are, which counts only if no manifest says what they are."""


def fingerprint_of(card: Any) -> str:
    """Return the short hash of all that the peers of a card must agree on, as 16 hexadecimal digits."""
    told = {"protocol": card.protocol, "has members": card.members is not None}
    for place, names in SHARED.items():
        part = card
        for step in filter(None, place.split(".")):
            part = getattr(part, step)
        for name in names if part is not None else ():
            if (value := getattr(part, name)) != _default(type(part), name):
                told[f"{place}.{name}"] = value
    if "data.manifest" in told:
        told = {name: value for name, value in told.items() if name not in ADDRESSES}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _default(kind: type, name: str) -> Any:
    """Return the default of a field; of one that has none, what equals nothing else."""
    if not is_dataclass(kind):
        return kind.model_fields[name].get_default()
    found = next(field.default for field in fields(kind) if field.name == name)
    return object() if found is MISSING else found
