"""The stage `vqgan` of build_emoji.py: pictures as codes, by a codebook of patches and a small decoder."""

from dataclasses import dataclass
from pathlib import Path

import torch
from emoji_data import ASSETS, KINDS, LARGE, single_thread
from emoji_pictures import pixels_of

from dalle_lib.vqgan import load_vqgan, save_vqgan
from dalle_lib.vqgan_training import report_fidelity, train_vqgan


@dataclass
class Vqgan:
    """Make a run's codebook by k-means over patches, then train the decoder on the codes that it gives.

    The decoder also sees some codes of other pictures of the same emoji, in another colour or on another background, so
    that it learns to mend what a model gets wrong. `emoji-mini` has an older one, made from more emoji in fewer
    colours, without wrong codes.
    """

    name: str = LARGE
    out: Path = ASSETS
    steps: int = 9000
    batch_size: int = 8
    lr: float = 2e-3
    start: Path | None = None
    """Go on with this VQ-GAN: its codebook stays."""

    def run(self) -> None:
        """Write the run's VQ-GAN."""
        single_thread()
        kind = KINDS[self.name]
        pictures = kind.pictures()
        held_out = pixels_of([picture for picture in pictures if picture.held_out])
        pictures = [picture for picture in pictures if not picture.held_out]
        pixels = pixels_of(pictures)
        vqgan = train_vqgan(
            pixels,
            kind.vqgan,
            steps=self.steps,
            seed=0,
            batch_size=self.batch_size,
            lr=self.lr,
            alike=[picture.name for picture in pictures],
            start=self.start and load_vqgan(self.start),
        )
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / kind.vqgan_file
        save_vqgan(file, vqgan, dtype=torch.float16)
        vqgan = load_vqgan(file)
        for split, shown in ("training", pixels), ("held-out", held_out):
            print(f"{split} pictures: {report_fidelity(vqgan, shown)}")
