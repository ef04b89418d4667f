"""Block-wise dynamic quantisation: tensors stored with one byte a value.

Written out here because importing bitsandbytes takes longer than anything else that a peer does to start, and its
kernel for CPUs (0.50.2) takes longer than this and puts values below a ten-thousandth of their block's largest far off;
the tests hold ours against it. Source: arXiv:2110.02861.
"""

from functools import cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

BLOCK = 4096
"""Values that share one scale."""
_DECADES = 7


@cache
def codebook(signed: bool, device: torch.device) -> Float[Tensor, "256"]:
    """Return the 256 values from -1, or 0, to 1 that a byte stands for, sorted.

    Each decade below 1 is cut into twice as many parts as the one below it, each value being the middle of its part.
    """
    values = [torch.tensor([0.0, 1.0])]
    for decade in range(_DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade + 1 - _DECADES)
        values += [middles, -middles] if signed else [middles]
    return torch.cat(values).sort().values.to(device)


@cache
def _nearest_by_half(signed: bool, device: torch.device) -> UInt8[Tensor, "65536"]:
    """Return the nearest code of each number that 16 bits can write, so that quantising is one look-up a value."""
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).float().nan_to_num(0, 1, -1)
    book = codebook(signed, torch.device("cpu"))
    return torch.bucketize(halves, (book[:-1] + book[1:]) / 2).to(torch.uint8).to(device)


def quantize(
    values: Float[Tensor, "..."], signed: bool, block: int = BLOCK
) -> tuple[UInt8[Tensor, "..."], Float[Tensor, " blocks"]]:
    """Return the code of each value and the largest magnitude of each block of values, in C order."""
    rows = _in_blocks(values.flatten(), block)
    scales = rows.abs().amax(1)
    halves = (rows * scales.clamp_min(torch.finfo(rows.dtype).tiny).reciprocal()[:, None]).half()
    index = halves.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    codes = _nearest_by_half(signed, values.device).index_select(0, index.flatten())
    return codes[: values.numel()].view(values.shape), scales


def dequantize(
    codes: UInt8[Tensor, "..."], scales: Float[Tensor, " blocks"], signed: bool, block: int = BLOCK
) -> Float[Tensor, "..."]:
    """Return the values that `quantize` stored, in float32."""
    rows = _in_blocks(codebook(signed, codes.device).index_select(0, codes.flatten().int()), block)
    return (rows * scales[:, None]).flatten()[: codes.numel()].view(codes.shape)


def _in_blocks(flat: Float[Tensor, " values"], block: int) -> Float[Tensor, "blocks block"]:
    """Return rows of `block` values, the last one filled up with zeros."""
    missing = -flat.numel() % block
    return (F.pad(flat, (0, missing)) if missing else flat).view(-1, block)
