"""Models on disk: safetensors files with the model's configuration in their metadata."""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dalle_lib.files import ANEW, BrokenFile, reading, replace_file, require_file
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.one_line import in_one_line

_CONFIG = "config"
_EPOCH = "epoch"
MAX_HEADER_BYTES = 2**22
"""Length of the header of a file beyond which it belongs to no model: one of 87 MB takes 2 GB, and a minute."""
_NAMED_IN_ERRORS = 5
"""How many of a file's faults an error names."""

Config = TypeVar("Config")


@dataclass(frozen=True)
class Kind:
    """Type and shape of a tensor in a file."""

    dtype: str
    """The type's name in safetensors, such as F32 for float32 or U8 for bytes."""
    shape: tuple[int, ...]

    @property
    def is_floating(self) -> bool:
        """Whether its values are floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))


def save_tensors(
    file: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], before: Path | None = None
) -> None:
    """Write a safetensors file, whole or not at all: an error, a crash or a power cut leaves the old one.

    The old one is kept as `before`, where that is given.

    Raises OSError if it cannot be written, as on a full disk: safetensors 0.8 says so in words alone.
    """
    with replace_file(file, durable=True, before=before) as unfinished:
        given = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(given, unfinished, metadata)
        except SafetensorError as error:
            if (said := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(said[1]), os.strerror(int(said[1])), str(file)) from error


def load_tensors(file: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises FileNotFoundError if there is none, and BrokenFile if it is something else or cut off.
    """
    with _opened(file) as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118


def read_header(file: str | Path) -> tuple[dict[str, Kind], dict[str, str]]:
    """Return what tensors a safetensors file holds, and its metadata, without reading a tensor.

    Raises the errors of `load_tensors`: the header is compared with the size of the file.
    """
    with _opened(file) as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
        return {name: Kind(s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}, handle.metadata() or {}


def configured(file: str | Path, text: str, make: Callable[..., Config]) -> Config:
    """Return what `make` makes of the JSON object `text`, a configuration in a file's metadata.

    Raises BrokenFile, which names `file`, if nothing can be made of it.
    """
    try:
        return make(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        why = f"{in_one_line(error)}; it holds {text:.80}"
        raise BrokenFile(f"{file} has a configuration that cannot be: {why}. {ANEW}") from error


def require_fit(file: str | Path, found: Mapping[str, Kind], expected: nn.Module, what: str) -> None:
    """Raise BrokenFile, which names `file`, unless it holds the tensors of the module `expected`, and no others.

    Names, shapes and floating-point types are compared, so nothing needs to be read: `expected` can be on the device
    "meta". `what` says in the error what was expected.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.state_dict().items()}
    wrong = [f"lacks {name}" for name in shapes if name not in found]
    wrong += [f"has an unknown {name}" for name in found if name not in shapes]
    for name, kind in found.items():
        if name in shapes and kind.shape != shapes[name]:
            wrong.append(f"has {name} of shape {list(kind.shape)} instead of {list(shapes[name])}")
        elif not kind.is_floating:
            wrong.append(f"has {name} in {kind.dtype}, no floating-point type")
    if wrong:
        more = f" and {len(wrong) - _NAMED_IN_ERRORS} more faults" if len(wrong) > _NAMED_IN_ERRORS else ""
        raise BrokenFile(f"{file} is not {what}: it {', '.join(wrong[:_NAMED_IN_ERRORS])}{more}. {ANEW}")


def require_stored(file: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise BrokenFile, which names `file`, if a tensor that torch read from it has more numbers than it stores."""
    for name, tensor in tensors.items():
        is_whole = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)
        if not is_whole or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise BrokenFile(f"{file} does not hold all numbers of {name}, of shape {list(tensor.shape)}. {ANEW}")


def save_model(file: str | Path, model: DALLE, epoch: int = 0, dtype: torch.dtype = torch.float32) -> None:
    """Write a model's weights in `dtype`, each once, with its configuration and the epoch that they are of."""
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_tensors(file, tensors, {_CONFIG: json.dumps(asdict(model.config)), _EPOCH: str(epoch)})


def load_model(file: str | Path, expected: ModelConfig | None = None) -> DALLE:
    """Return the model that `save_model` wrote, in float32.

    Raises FileNotFoundError if there is no file, and ValueError if it was not written by `save_model`, or its
    configuration is not the `expected` one. No memory is taken for a model that the file does not hold.
    """
    found, metadata = read_header(file)
    if _CONFIG not in metadata:
        raise BrokenFile(f"expected a file written by checkpoint.save_model, but {file} holds no configuration.")
    config = configured(file, metadata[_CONFIG], ModelConfig)
    if expected is not None and config != expected:
        raise ValueError(f"{file} holds another model: expected {expected}, but found {config}.")
    with torch.device("meta"):
        outline = DALLE(config)
    require_fit(file, found, outline, f"a model of {config}")
    model = DALLE(config)
    model.load_state_dict(load_tensors(file)[0])
    return model


@contextmanager
def _opened(file: str | Path) -> Iterator:
    """Yield an open safetensors file. Raises FileNotFoundError, or BrokenFile, which names it."""
    path = Path(file)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    with reading(file, "safetensors"):
        require_file(path)
        with open(path, "rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"expected a header of at most {MAX_HEADER_BYTES:,} bytes, but it has {length:,}")
        with safe_open(path, "pt") as handle:
            yield handle
