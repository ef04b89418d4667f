"""Codes as bytes: as many bits each as the codebook needs, or 16."""

from typing import Literal

import numpy as np

Packing = Literal["bits", "uint16"]
"""How the codes of a picture become bytes: without a gap, at `bits_of` each; or as little-endian 16-bit numbers."""


def bits_of(codebook_size: int) -> int:
    """Return how many bits number the entries of a codebook."""
    return max(1, (codebook_size - 1).bit_length())


def bytes_of(packing: Packing, count: int, codebook_size: int) -> int:
    """Return how many bytes `count` codes take."""
    return 2 * count if packing == "uint16" else -(-count * bits_of(codebook_size) // 8)


def pack(packing: Packing, codes: np.ndarray, codebook_size: int) -> list[bytes]:
    """Return the bytes of each row of whole numbers [rows, codes], which are below `codebook_size`.

    In "bits", the first code has the highest bits of the first byte, and the last byte is filled up with zeros.
    """
    if packing == "uint16":
        return [row.tobytes() for row in codes.astype("<u2")]
    wide = np.unpackbits(codes.astype(">u2").view(np.uint8), axis=1).reshape(*codes.shape, 16)
    narrow = wide[:, :, 16 - bits_of(codebook_size) :]
    return [row.tobytes() for row in np.packbits(narrow.reshape(len(codes), narrow.shape[1] * narrow.shape[2]), axis=1)]


def unpack(packing: Packing, packed: bytes, count: int, codebook_size: int) -> np.ndarray:
    """Return the `count` codes that `pack` made these bytes of, as int64; some may be `codebook_size` or more.

    The bytes must be as many as `bytes_of` says.
    """
    if packing == "uint16":
        return np.frombuffer(packed, "<u2").astype(np.int64)
    bits = bits_of(codebook_size)
    narrow = np.unpackbits(np.frombuffer(packed, np.uint8), count=count * bits).reshape(count, bits)
    return narrow @ (1 << np.arange(bits - 1, -1, -1))
