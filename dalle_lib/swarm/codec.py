"""The 8-bit codec as a part of hivemind, which reads and writes the same bytes as hivemind's own.

hivemind 1.1.12 cannot decode its own 8-bit messages under numpy 2.4 or newer: it logs a successful round in which
nothing was exchanged (fixed after that release, in its pull request 670). `install` replaces its codec in the process.
"""

import math

import numpy as np
import torch
from hivemind.compression import Float16Compression, SizeAdaptiveCompression, serialization
from hivemind.compression.base import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

from dalle_lib.compression import LEVELS, dequantize, quantize

_HEADER = 8
_MAX_RELATIVE_ERROR = 0.05


class Uniform8Bit(CompressionBase):
    """Message layout: codebook size as int64, codebook as float32, one byte a value; little-endian."""

    compression_type = runtime_pb2.UNIFORM_8BIT

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a floating-point tensor; `tensor` is never changed."""
        if not tensor.is_floating_point():
            raise ValueError(f"the 8-bit codec sends floating-point tensors only, but got {tensor.dtype}.")
        levels, codebook = quantize(tensor.detach().reshape(-1))
        size = np.int64(LEVELS).tobytes()
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=b"".join((size, codebook.tobytes(), levels.numpy().tobytes())),
            size=tensor.shape,
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor of a message. Raises ValueError if the message's parts do not fit together."""
        buffer, shape = serialized_tensor.buffer, tuple(serialized_tensor.size)
        dtype = getattr(torch, serialized_tensor.dtype, None)
        size = int.from_bytes(buffer[:_HEADER], "little")
        expected = _HEADER + 4 * size + math.prod(shape)
        if not 0 < size <= LEVELS or len(buffer) != expected or min(shape, default=0) < 0:
            raise ValueError(f"8-bit message of {len(buffer)} bytes does not fit shape {shape} and {size} levels.")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"8-bit message with unknown dtype {serialized_tensor.dtype!r}.")
        codebook = np.frombuffer(buffer, "<f4", size, _HEADER)
        if not np.isfinite(codebook).all():
            raise ValueError("8-bit message whose codebook holds NaN or infinity.")
        values = dequantize(np.frombuffer(buffer, np.uint8, offset=_HEADER + 4 * size), codebook)
        return values.reshape(shape).to(dtype).requires_grad_(serialized_tensor.requires_grad)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return bytes sent per byte of the tensor."""
        return 8 / torch.finfo(info.descriptor.dtype).bits


def compression(eight_bit_from: int) -> SizeAdaptiveCompression:
    """Return the paper's mixture: 8 bits for tensors of at least `eight_bit_from` elements, 16 for smaller ones."""
    return SizeAdaptiveCompression(threshold=eight_bit_from, less=Float16Compression(), greater_equal=Uniform8Bit())


def install() -> None:
    """Make hivemind decode 8-bit messages with our codec, and check that values survive both of our codecs.

    Call it before the first averager starts: averagers are forks of this process.
    Raises RuntimeError if they do not; training would then look right and exchange nothing.
    """
    serialization._BASE_COMPRESSION_TYPES["UNIFORM_8BIT"] = Uniform8Bit()
    values = torch.linspace(-1, 1, 4097)
    for codec in Uniform8Bit(), Float16Compression():
        message = codec.compress(values, CompressionInfo.from_tensor(values))
        error = (serialization.deserialize_torch_tensor(message) - values).norm() / values.norm()
        if not error < _MAX_RELATIVE_ERROR:
            raise RuntimeError(
                f"{type(codec).__name__} loses {error:.0%} of a tensor on this machine (numpy {np.__version__}, "
                f"torch {torch.__version__}). Averaging would be wrong, so this peer does not join."
            )
