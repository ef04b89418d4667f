"""The model's function a second time, with dense masks and loops; it shares nothing with `dalle_lib.model`.

It takes weights in the published layout and follows the rules of the published code one by one. It loops over every
position and head, so it suits small models only.
"""

import functools
import math

import torch
from torch import Tensor


@functools.cache
def angles(config, position: int) -> list[float]:
    """Return the angle of each pair of a head's entries, with float32's rounding."""
    share = config.dim_head // 3
    count = share // 2
    is_text = position <= config.text_length
    cell = position - config.text_length - 1
    text = position if is_text else 8192
    row, column = (-10.0, -10.0) if is_text else divmod(cell, config.grid)
    line = torch.linspace(-1, 1, config.grid)
    found = [torch.tensor(float(text)) / (10000 ** (2 * torch.tensor(float(k)) / share)) for k in range(count)]
    steps = torch.linspace(1, 5, count) * math.pi
    for place in row, column:
        found += [(torch.tensor(place) if is_text else line[place]) * step for step in steps]
    return [float(angle) for angle in found]


def turn(x: Tensor, config, position: int) -> Tensor:
    """Return one head's entries rotated."""
    turned = x.clone()
    for j, angle in enumerate(angles(config, position)):
        a, b = x[2 * j], x[2 * j + 1]
        turned[2 * j] = a * math.cos(angle) - b * math.sin(angle)
        turned[2 * j + 1] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def sees(kind: str, config, query: int, key: int) -> bool:
    """Return whether one position may look at another."""
    part = config.text_length + 1
    if key > query:
        return False
    if query < part or key < part:
        return key < part
    (row, column), (key_row, key_column) = (divmod(p - part, config.grid) for p in (query, key))
    return {
        "row": key_row == row,
        "column": key_column == column,
        "convolution": abs(key_row - row) <= 2 and abs(key_column - column) <= 2,
    }[kind]


def shift(h: Tensor, config) -> Tensor:
    """Return one sequence with half of each position's entries from its neighbours."""
    d, part, grid = config.dim, config.text_length + 1, config.grid
    rows = []
    for p in range(len(h)):
        if p < part:
            rows.append(torch.cat([h[p - 1, : d // 2] if p else h.new_zeros(d // 2), h[p, d // 2 :]]))
            continue
        row, column = divmod(p - part, grid)
        above = h[p - grid, : d // 4] if row else h.new_zeros(d // 4)
        left = h[p - 1, d // 4 : d // 2] if column else h.new_zeros(d // 4)
        rows.append(torch.cat([above, left, h[p, d // 2 :]]))
    return torch.stack(rows)


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def attention(h: Tensor, w: dict[str, Tensor], prefix: str, kind: str, config) -> Tensor:
    """Return what an attention layer gives for one sequence."""
    heads, width = config.heads, config.dim_head
    q, k, v = (h @ w[f"{prefix}.to_qkv.weight"].T).split(heads * width, dim=-1)
    mask = torch.tensor([[sees(kind, config, i, j) for j in range(len(h))] for i in range(len(h))])
    read = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        turned = (torch.stack([turn(x[p, own], config, p) for p in range(len(h))]) for x in (q, k, v))
        query, key, value = turned
        scores = (query @ key.T / math.sqrt(width)).masked_fill(~mask, -math.inf)
        read.append(scores.softmax(-1) @ value)
    return torch.cat(read, dim=-1) @ w[f"{prefix}.to_out.0.weight"].T + w[f"{prefix}.to_out.0.bias"]


def feed_forward(h: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    value, gate = (h @ w[f"{prefix}.net.0.weight"].T + w[f"{prefix}.net.0.bias"]).chunk(2, dim=-1)
    gated = value * gate * (1 + torch.erf(gate / math.sqrt(2))) / 2
    return gated @ w[f"{prefix}.net.3.weight"].T + w[f"{prefix}.net.3.bias"]


def logits(w: dict[str, Tensor], config, text: Tensor, codes: Tensor) -> Tensor:
    """Return the logits over the whole vocabulary for one caption [text] and the codes so far, without the last."""
    text = torch.where(text == 0, config.text_vocab + torch.arange(len(text)), text)
    rows = config.text_vocab + config.text_length
    ids = torch.cat([torch.zeros(1, dtype=torch.long), text, codes + rows])[: config.text_length + config.grid**2]
    x1 = x2 = w["to_logits.1.weight"][ids]
    for i in range(config.depth):
        kind = "convolution" if i == config.depth - 1 else ("row", "column", "row", "row")[i % 4]
        f, g = (f"transformer.layers.blocks.{i}.{half}.net" for half in "fg")
        h = shift(norm(x2, w[f"{f}.fn.norm.weight"], w[f"{f}.fn.norm.bias"]), config)
        x1 = x1 + w[f"{f}.scale"][0, 0] * attention(h, w, f"{f}.fn.fn.fn", kind, config)
        h = shift(norm(x1, w[f"{g}.fn.norm.weight"], w[f"{g}.fn.norm.bias"]), config)
        x2 = x2 + w[f"{g}.scale"][0, 0] * feed_forward(h, w, f"{g}.fn.fn.fn")
    y = norm((x1 + x2) / 2, w["to_logits.0.weight"], w["to_logits.0.bias"])
    found = y @ w["to_logits.1.weight"].T + w["to_logits.1.bias"]
    follows_text = torch.arange(len(ids)) < config.text_length
    is_text = torch.arange(found.shape[1]) < rows
    return found.masked_fill(follows_text[:, None] != is_text, torch.finfo(found.dtype).min)


def loss(found: Tensor, config, text: Tensor, codes: Tensor) -> Tensor:
    """Return the training loss of one picture from its logits."""
    labels = torch.where(text == 0, config.text_vocab + torch.arange(len(text)), text)
    labels = torch.cat([labels, codes + config.text_vocab + config.text_length])
    each = -found.log_softmax(-1)[torch.arange(len(labels)), labels]
    return (each[: len(text)].mean() + 7 * each[len(text) :].mean()) / 8
