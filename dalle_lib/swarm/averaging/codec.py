"""The codecs of a run as parts of hivemind, which read and write the same bytes as hivemind's own.

hivemind 1.1.12 cannot decode its own 8-bit messages under numpy 2.4 or newer: it logs a successful round in which
nothing was exchanged (mended after that release: commit 4bd43b77 of 2026-01-05, pull request 670). None of its decoders
checks what strangers send. `install` replaces them in the process.
"""

import math

import numpy as np
import torch
from hivemind.compression import Float16Compression, NoCompression, SizeAdaptiveCompression, serialization
from hivemind.compression.base import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

from dalle_lib.compression import LEVELS, dequantize, quantize

_HEADER = 8
_FLOATS = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
_ALL = _FLOATS | {name: getattr(torch, name) for name in ("uint8", "int8", "int16", "int32", "int64")}
_MOST_DIMENSIONS = 8
_MOST_LOST = {"UNIFORM_8BIT": 0.05, "FLOAT16": 0.001, "NONE": 0.0}
"""What a codec may lose of a tensor on this machine, as the norm of the loss over the norm of the tensor."""


class Uniform8Bit(CompressionBase):
    """Message layout: codebook size as int64, codebook as float32, one byte a value; little-endian."""

    compression_type = runtime_pb2.UNIFORM_8BIT

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a tensor of finite floating-point values; `tensor` is never changed."""
        _require_floats(tensor)
        levels, codebook = quantize(tensor.detach().reshape(-1))
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=b"".join((LEVELS.to_bytes(_HEADER, "little"), codebook, levels.numpy())),
            size=tensor.shape,
            dtype=_name(tensor.dtype),
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor of a message. Raises ValueError if the message's parts do not fit together."""
        shape, dtype = _described(serialized_tensor, _FLOATS)
        buffer = serialized_tensor.buffer
        size = int.from_bytes(buffer[:_HEADER], "little")
        if not 0 < size <= LEVELS:
            raise ValueError(f"8-bit message with {size} levels: expected 1 to {LEVELS}.")
        levels_from = _HEADER + 4 * size
        _require_length(buffer, levels_from + math.prod(shape))
        codebook = torch.from_numpy(np.frombuffer(buffer, "<f4", size, _HEADER).astype(np.float32)).to(dtype)
        _require_finite(codebook)
        return dequantize(np.frombuffer(buffer, np.uint8, offset=levels_from), codebook).reshape(shape)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return bytes sent per byte of the tensor."""
        return 8 / torch.finfo(info.descriptor.dtype).bits


class Float16(Float16Compression):
    """Message layout: two bytes a value, little-endian. bfloat16 is sent too, which hivemind 1.1.12 can not read."""

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a tensor of finite floating-point values; those beyond float16 become its largest."""
        _require_floats(tensor)
        values = tensor.detach().float()
        _require_finite(values)
        message = super().compress(values, info)
        message.dtype = _name(tensor.dtype)
        return message

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor of a message. Raises ValueError if the message does not fit together or is not finite."""
        shape, dtype = _described(serialized_tensor, _FLOATS)
        _require_length(serialized_tensor.buffer, 2 * math.prod(shape))
        values = torch.from_numpy(np.frombuffer(serialized_tensor.buffer, "<f2").astype(np.float16)).float()
        _require_finite(values)
        return values.reshape(shape).to(dtype)


class Uncompressed(NoCompression):
    """hivemind's plain bytes, in which newcomers download parameters and statistics."""

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor of a message. Raises ValueError if the message does not fit together or is not finite."""
        shape, dtype = _described(serialized_tensor, _ALL)
        # hivemind sends bfloat16 as float32, or as it is where its user asked for that.
        widths = (4, 2) if dtype == torch.bfloat16 else (dtype.itemsize,)
        _require_length(serialized_tensor.buffer, *(width * math.prod(shape) for width in widths))
        tensor = super().extract(serialized_tensor)
        _require_finite(tensor)
        return tensor


class Refused(CompressionBase):
    """A compression that no run uses: some are slow, and bitsandbytes reads a malformed message beyond its end."""

    def __init__(self, name: str) -> None:
        self.compression_type = runtime_pb2.CompressionType.Value(name)
        self.reason = f"{name} message: expected {', '.join(_MOST_LOST)}, which are what peers of a run send."

    def extract(self, *_, **__):
        """Raise ValueError."""
        raise ValueError(self.reason)

    compress = estimate_compression_ratio = extract


def compression(eight_bit_from: int) -> SizeAdaptiveCompression:
    """Return the paper's mixture: 8 bits for tensors of at least `eight_bit_from` elements, 16 for smaller ones."""
    return SizeAdaptiveCompression(threshold=eight_bit_from, less=Float16(), greater_equal=Uniform8Bit())


def install() -> None:
    """Make hivemind decode with our codecs and refuse other compressions, and check that values survive.

    Call it before the first averager starts: averagers are forks of this process.
    Raises RuntimeError if they do not; training would then look right and exchange nothing.
    """
    registry = serialization._BASE_COMPRESSION_TYPES
    registry.update({name: Refused(name) for name in registry})
    registry.update(UNIFORM_8BIT=Uniform8Bit(), FLOAT16=Float16(), NONE=Uncompressed())
    values = torch.linspace(-1, 1, 4097)
    for name, most in _MOST_LOST.items():
        message = serialization.serialize_torch_tensor(values, runtime_pb2.CompressionType.Value(name))
        lost = (serialization.deserialize_torch_tensor(message) - values).norm() / values.norm()
        if not lost <= most:
            raise RuntimeError(
                f"{name} loses {lost:.0%} of a tensor on this machine (numpy {np.__version__}, "
                f"torch {torch.__version__}). Averaging would be wrong, so this peer does not join."
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(message: runtime_pb2.Tensor, dtypes: dict[str, torch.dtype]) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype that a message claims. Raises ValueError for those that no peer of a run sends."""
    shape, dtype = tuple(message.size), dtypes.get(message.dtype)
    if dtype is None:
        raise ValueError(f"message of dtype {message.dtype!r}: expected one of {', '.join(dtypes)}.")
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"message of {len(shape)} dimensions: expected at most {_MOST_DIMENSIONS}.")
    if message.requires_grad:  # torch would record what the receiver computes with it, round after round
        raise ValueError("message that asks for gradients: expected values alone.")
    return shape, dtype


def _require_length(buffer: bytes, *expected: int) -> None:
    if len(buffer) not in expected:
        raise ValueError(f"message of {len(buffer)} bytes: its shape, dtype and levels make {expected[0]}.")


def _require_floats(tensor: torch.Tensor) -> None:
    if tensor.dtype not in _FLOATS.values():
        raise ValueError(f"8 and 16 bits are for {', '.join(_FLOATS)}, but this is {_name(tensor.dtype)}.")


def _require_finite(values: torch.Tensor) -> None:
    # numpy tells it in a twentieth of torch's time.
    if values.is_floating_point() and not np.isfinite(values.float().numpy()).all():
        raise ValueError("values that are NaN, infinity, or beyond float32.")
