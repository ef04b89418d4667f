"""The codecs of a run, in hivemind's interface: they read and write the same bytes as hivemind's own.

hivemind 1.1.12 cannot decode its own 8-bit messages under numpy 2.4 or newer: it logs a successful round in which
nothing was exchanged (repaired after that release: commit 4bd43b77 of 2026-01-05, pull request 670). None of its
decoders checks what strangers send. `install` replaces its decoders in this process.
"""

import math

import numpy as np
import torch
from hivemind.compression import Float16Compression, NoCompression, SizeAdaptiveCompression, serialization
from hivemind.compression.base import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

from dalle_lib.compression import LEVELS, dequantize, quantize
from dalle_lib.four_bits import BLOCK, pack, unpack

_HEADER = 8
_IN_4_BITS = b"4bits\0\0\0"
"""Where an 8-bit message tells the size of its codebook, 256 at most, a message in 4 bits has these bytes."""
_FLOATS = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
_ALL = _FLOATS | {name: getattr(torch, name) for name in ("uint8", "int8", "int16", "int32", "int64")}
_MAX_DIMENSIONS, _MAX_VALUES = 8, 2**40
_MAX_LOSS = {"UNIFORM_8BIT": 0.05, "FLOAT16": 0.001, "NONE": 0.0}
"""Largest relative error of each codec on this machine: |decoded - tensor| / |tensor|, as Euclidean norms."""
_MAX_LOSS_IN_4_BITS = 0.2


class Uniform8Bit(CompressionBase):
    """Sends one byte for each value: its index in a codebook of 256 levels, which `dalle_lib.compression` chooses.

    Message layout, little-endian: codebook size as int64, codebook as float32, one byte for each value.
    """

    compression_type = runtime_pb2.UNIFORM_8BIT

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a floating-point tensor, which stays unchanged.

        Raises ValueError for other dtypes, and for values that are not finite.
        """
        _require_floats(tensor)
        levels, codebook = quantize(tensor.detach().reshape(-1))
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=b"".join((LEVELS.to_bytes(_HEADER, "little"), codebook, levels.numpy())),
            size=tensor.shape,
            dtype=_name(tensor.dtype),
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor in a message. Raises ValueError if it is malformed or its values are not finite."""
        buffer = serialized_tensor.buffer
        if buffer.startswith(_IN_4_BITS):
            return FourBits().extract(serialized_tensor)
        shape, dtype = _described(serialized_tensor, _FLOATS)
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


class FourBits(CompressionBase):
    """Sends half a byte for each value, as `dalle_lib.four_bits` rounds it: a tenth of a gradient's norm is lost.

    hivemind has no type for this, so a message is of the 8-bit type, whose decoder in hivemind refuses it, as that in
    earlier kits does. Layout, little-endian: _IN_4_BITS, a bfloat16 scale for each block of values, and their levels.
    """

    compression_type = runtime_pb2.UNIFORM_8BIT

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a floating-point tensor, which stays unchanged.

        Raises ValueError for other dtypes, and for values that are not finite.
        """
        _require_floats(tensor)
        scales, packed = pack(tensor.detach().reshape(-1))
        scales = scales.view(torch.int16).numpy().astype("<i2")
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=b"".join((_IN_4_BITS, scales, packed.numpy())),
            size=tensor.shape,
            dtype=_name(tensor.dtype),
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor in a message. Raises ValueError if it is malformed or its values are not finite."""
        shape, dtype = _described(serialized_tensor, _FLOATS)
        buffer, n = serialized_tensor.buffer, math.prod(shape)
        blocks = -(-n // BLOCK)
        _require_length(buffer, _HEADER + 2 * blocks + (n + 1) // 2)
        scales = np.frombuffer(buffer, "<i2", blocks, _HEADER).astype(np.int16)
        if (scales < 0).any():
            raise ValueError("4-bit message with a negative scale: expected the largest magnitude of each block.")
        scales = torch.from_numpy(scales).view(torch.bfloat16)
        _require_finite(scales.to(dtype))
        values = unpack(scales, np.frombuffer(buffer, np.uint8, offset=_HEADER + 2 * blocks), n)
        return values.reshape(shape).to(dtype)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return the ratio of 8 bits: tensors are cut by the longer message, which is the answer."""
        return Uniform8Bit().estimate_compression_ratio(info)


class Float16(Float16Compression):
    """Sends each value as float16; hivemind's own codec does the same, but cannot read bfloat16 tensors.

    Message layout: two bytes for each value, little-endian.
    """

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a floating-point tensor; values beyond float16 become its largest value.

        Raises ValueError for other dtypes, and for values that are not finite.
        """
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
    """Sends tensors as they are, as newcomers download parameters and statistics; hivemind's codec, with checks."""

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the tensor of a message. Raises ValueError if the message does not fit together or is not finite."""
        shape, dtype = _described(serialized_tensor, _ALL)
        # hivemind sends bfloat16 as float32, or as it is where its user asked for that.
        widths = (4, 2) if dtype == torch.bfloat16 else (dtype.itemsize,)
        _require_length(serialized_tensor.buffer, *(width * math.prod(shape) for width in widths))
        tensor = super().extract(serialized_tensor)
        _require_finite(tensor)
        return tensor


class RefusedCompression(CompressionBase):
    """Stands for a compression that no run uses, and refuses to encode and decode it.

    hivemind's decoders for these check nothing: bitsandbytes reads a malformed message beyond its end.
    """

    def __init__(self, name: str) -> None:
        self.compression_type = runtime_pb2.CompressionType.Value(name)
        self.reason = f"{name} message: expected {', '.join(_MAX_LOSS)}, which peers of a run send."

    def extract(self, *_, **__):
        """Raise ValueError."""
        raise ValueError(self.reason)

    compress = estimate_compression_ratio = extract


class Uploads(SizeAdaptiveCompression):
    """How peers send tensors to reducers where answers have more bits: the answer is the average itself."""

    def __init__(self, answers: SizeAdaptiveCompression, greater_equal: CompressionBase) -> None:
        super().__init__(answers.threshold, answers.less, greater_equal)
        self.answers = answers
        """How reducers send averages, the same bytes to all."""


def compression(eight_bit_from: int, upload_bits: int = 8) -> SizeAdaptiveCompression:
    """Return the paper's mixture: 8 bits a value for tensors of at least `eight_bit_from` values, 16 for others.

    With 4 as `upload_bits`, the large tensors travel in 4 bits to reducers, and averages in this mixture.
    """
    mixture = SizeAdaptiveCompression(threshold=eight_bit_from, less=Float16(), greater_equal=Uniform8Bit())
    return mixture if upload_bits == 8 else Uploads(mixture, FourBits())


def install() -> None:
    """Make hivemind use these codecs in this process, and refuse other compressions.

    Call it before the first averager starts: averagers are forks of this process.
    Raises RuntimeError if a codec loses too much of a tensor on this machine: training would look right and exchange
    nothing.
    """
    registry = serialization._BASE_COMPRESSION_TYPES
    registry.update({name: RefusedCompression(name) for name in registry})
    registry.update(UNIFORM_8BIT=Uniform8Bit(), FLOAT16=Float16(), NONE=Uncompressed())
    values = torch.linspace(-1, 1, 4097)
    checks = [(name, registry[name], limit) for name, limit in _MAX_LOSS.items()]
    for name, encoder, limit in [*checks, ("4 bits", FourBits(), _MAX_LOSS_IN_4_BITS)]:
        message = encoder.compress(values, CompressionInfo.from_tensor(values))
        loss = (serialization.deserialize_torch_tensor(message) - values).norm() / values.norm()
        if not loss <= limit:
            raise RuntimeError(
                f"{name} loses {loss:.0%} of a tensor on this machine (numpy {np.__version__}, "
                f"torch {torch.__version__}). Averaging would be wrong, so this peer does not join."
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(message: runtime_pb2.Tensor, dtypes: dict[str, torch.dtype]) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype that a message claims. Raises ValueError if no peer of a run sends such tensors."""
    shape, dtype = tuple(message.size), dtypes.get(message.dtype)
    if dtype is None:
        raise ValueError(f"message of dtype {message.dtype!r}: expected one of {', '.join(dtypes)}.")
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"message of {len(shape)} dimensions: expected at most {_MAX_DIMENSIONS}.")
    if math.prod(max(1, size) for size in shape) > _MAX_VALUES:  # torch fails at these, though one size is 0
        raise ValueError(f"message of shape {shape}: expected at most {_MAX_VALUES:,} values.")
    if message.requires_grad:  # torch would record what the receiver computes with it, round after round
        raise ValueError("message that asks for gradients: expected only values.")
    return shape, dtype


def _require_length(buffer: bytes, *expected: int) -> None:
    if len(buffer) not in expected:
        raise ValueError(f"message of {len(buffer)} bytes: its shape, dtype and levels need {expected[0]}.")


def _require_floats(tensor: torch.Tensor) -> None:
    if tensor.dtype not in _FLOATS.values():
        raise ValueError(
            f"expected one of {', '.join(_FLOATS)} to send in 8 or 16 bits, but this is {_name(tensor.dtype)}."
        )


def _require_finite(values: torch.Tensor) -> None:
    # numpy takes a twentieth of torch's time for this.
    if values.is_floating_point() and not np.isfinite(values.float().numpy()).all():
        raise ValueError("values that are NaN, infinite, or beyond float32: expected finite ones.")
