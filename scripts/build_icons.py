"""Build the pictures with captions that notebook 05 makes a data set of: the icons of Debian's tango-icon-theme.

    apt-get install librsvg2-bin tango-icon-theme
    python scripts/build_icons.py

They are in the public domain (dalle_lib/assets/LICENSES/tango.txt). Captions are the icons' names. The same package
gives the same file.
"""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from PIL import Image

SIDE = 128
"""Pixels on a side."""
QUALITY = 90
"""Of WebP: 2.2 kB an icon, where a PNG takes 8.0 kB."""


@dataclass
class Icons:
    """Draw the icons, and pack them with their captions as WebDataset does."""

    source: Path = Path("/usr/share/icons/Tango/scalable")
    out: Path = Path("dalle_lib/assets/icons.tar")

    def run(self) -> None:
        """Write the tar."""
        files = sorted(file for file in self.source.rglob("*.svg") if not file.is_symlink())
        with tarfile.open(self.out, "w", format=tarfile.USTAR_FORMAT) as tar:
            for file in files:
                add(tar, f"{file.stem}.txt", caption_of(file.stem).encode())
                add(tar, f"{file.stem}.webp", drawn(file))
        print(f"{len(files)} icons in {self.out.stat().st_size:,} bytes")


def caption_of(name: str) -> str:
    """Return an icon's name as words: "weather-few-clouds" is "weather few clouds"."""
    return name.removesuffix("-x-generic").replace("-x-", "-").removeprefix("x-").replace("-", " ")


def drawn(file: Path) -> bytes:
    """Return an icon on white, as a WebP."""
    command = ["rsvg-convert", f"--width={SIDE}", f"--height={SIDE}", "--background-color=white", file]
    picture = Image.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout))
    made = io.BytesIO()
    picture.convert("RGB").save(made, "WEBP", quality=QUALITY, method=6)
    return made.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file without a time or an owner."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    tyro.cli(Icons).run()
