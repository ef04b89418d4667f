"""`dalle-lib convert-vqgan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.files import require_writable, sha256_of


@dataclass(frozen=True, kw_only=True)
class ConvertVqgan:
    """Turn the published VQ-GAN into safetensors.

    Only numbers are taken from the Lightning checkpoint; the Python objects in it are never made, so nothing in it can
    run. You still trust the numbers: compare the hash that is printed with the one that the publisher names.

    For example:

    dalle-lib convert-vqgan last.ckpt vqgan.safetensors

    dalle-lib convert-vqgan last.ckpt vqgan.safetensors --sha256 HASH
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """The .ckpt file."""
    out: Annotated[Path, tyro.conf.Positional]
    """The .safetensors file to write."""
    sha256: str | None = None
    """Refuse a checkpoint with another hash."""

    def run(self) -> None:
        """Convert, and print both files' hashes."""
        if self.out.is_dir():
            raise ValueError(f"expected the .safetensors file to write, but {self.out} is a folder: add a file's name.")
        require_writable(self.out.parent)

        from dalle_lib.vqgan import convert_vqgan

        converted = convert_vqgan(self.checkpoint, self.out, self.sha256)
        print(
            f"read    {self.checkpoint}  SHA-256 {sha256_of(self.checkpoint)}\nwritten {self.out}  SHA-256 {converted}"
        )
