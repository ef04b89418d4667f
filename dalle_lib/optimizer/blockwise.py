"""Block-wise dynamic quantisation: tensors stored with one byte for each value.

The values of a tensor, in C order, are cut into blocks of `BLOCK` values. Block b has a scale in float32, its largest
magnitude. Value x of the block has a code, one byte, which is an index into a table of 256 values from -1 (or 0) to 1::

    scale_b = max |x|
    code    = index of the entry of the table that is nearest to x / scale_b
    x       ~ table[code] * scale_b

The table (`codebook`) is finest near zero, so that small values of a block keep some bits. A value takes one byte and
its share of its block's scale, a thousandth of a byte.

This is written out here because importing bitsandbytes takes longer than all else that a peer does to start, and its
kernel for CPUs (0.50.2) is slower and has large errors in values below a ten-thousandth of their block's largest. The
tests compare this module with it. Source: arXiv:2110.02861.
"""

from functools import cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

BLOCK = 4096
"""Number of values that share one scale."""
_DECADES = 7
"""Powers of ten that the table spans."""


@cache
def codebook(signed: bool, device: torch.device) -> Float[Tensor, "256"]:
    """Return the 256 values that codes stand for, in ascending order: from -1 to 1 if `signed`, else from 0 to 1.

    They are 0, 1 and the middles of intervals: decade d from 0 to 6 reaches from 10 ** (d - 7) to 10 ** (d - 6) and is
    cut into 2 ** d intervals of equal width for each sign, or 2 ** (d + 1) if there is only one.
    """
    values = [torch.tensor([0.0, 1.0])]
    for decade in range(_DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade + 1 - _DECADES)
        values += [middles, -middles] if signed else [middles]
    return torch.cat(values).sort().values.to(device)


@cache
def _nearest_by_half(signed: bool, device: torch.device) -> UInt8[Tensor, "65536"]:
    """Return the nearest code of each float16, by its bits: then quantising a value is one look-up."""
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).float().nan_to_num(0, 1, -1)
    book = codebook(signed, torch.device("cpu"))
    return torch.bucketize(halves, (book[:-1] + book[1:]) / 2).to(torch.uint8).to(device)


def quantize(
    values: Float[Tensor, "..."], signed: bool, block: int = BLOCK
) -> tuple[UInt8[Tensor, "..."], Float[Tensor, " blocks"]]:
    """Return the code of each value and the scale of each block.

    Values are rounded to float16 before they are compared with the table, by an error far below its steps.
    """
    rows = _in_blocks(values.flatten(), block)
    scales = rows.abs().amax(1)
    halves = (rows * scales.clamp_min(torch.finfo(rows.dtype).tiny).reciprocal()[:, None]).half()
    index = halves.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    codes = _nearest_by_half(signed, values.device).index_select(0, index.flatten())
    return codes[: values.numel()].view(values.shape), scales


def dequantize(
    codes: UInt8[Tensor, "..."], scales: Float[Tensor, " blocks"], signed: bool, block: int = BLOCK
) -> Float[Tensor, "..."]:
    """Return what the codes stand for, in float32: table[code] x scale of its block."""
    rows = _in_blocks(codebook(signed, codes.device).index_select(0, codes.flatten().int()), block)
    return (rows * scales[:, None]).flatten()[: codes.numel()].view(codes.shape)


def _in_blocks(flat: Float[Tensor, " values"], block: int) -> Float[Tensor, "blocks block"]:
    """Return rows of `block` values; zeros fill the last one."""
    missing = -flat.numel() % block
    return (F.pad(flat, (0, missing)) if missing else flat).view(-1, block)
