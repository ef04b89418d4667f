"""The stage `vqgan` of build_emoji.py: pictures as codes, by a codebook of patches and a small decoder."""

import random
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from emoji_data import ASSETS, KINDS, LARGE, single_thread
from emoji_pictures import pixels_of
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from dalle_lib.optimizer import linear_warmup_schedule
from dalle_lib.vqgan import VQGAN, VQGANConfig, load_vqgan, save_vqgan

MAX_PATCHES = 200_000
"""Different patches from which the codebook is made."""
WRONG_CODES = 0.2
"""Up to this share of a picture's codes are replaced while the decoder learns."""


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
        if self.start is None:
            vqgan = VQGAN(kind.vqgan)
            set_codebook(vqgan, make_codebook(pixels, vqgan.config))
            start_as_patches(vqgan.decoder)
        else:
            vqgan = load_vqgan(self.start).requires_grad_(True)
        self.out.mkdir(parents=True, exist_ok=True)
        self._train_decoder(vqgan, pixels, [picture.name for picture in pictures])
        file = self.out / kind.vqgan_file
        save_vqgan(file, vqgan, dtype=torch.float16)
        vqgan = load_vqgan(file)
        for split, shown in ("training", pixels), ("held-out", held_out):
            print(f"{psnr(vqgan.decode(vqgan.encode(shown)), shown):.2f} dB on the {split} pictures")

    def _train_decoder(self, vqgan: VQGAN, pixels: Tensor, names: list[str]) -> None:
        codes = vqgan.encode(pixels)
        same = pd.Series(range(len(names))).groupby(names).apply(list)
        target = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        learned = nn.ModuleList([vqgan.decoder, vqgan.post_quant_conv, vqgan.quantize.embed])
        optimizer = torch.optim.Adam(learned.parameters(), lr=self.lr, fused=True)
        schedule = linear_warmup_schedule(optimizer, self.steps // 50, self.steps)
        for step in (progress := trange(self.steps, desc="decoder")):
            shown = torch.randint(len(codes), (self.batch_size,))
            others = torch.tensor([random.choice(same[names[place]]) for place in shown.tolist()])
            wrong = torch.rand(self.batch_size, codes.shape[1]) < torch.rand(self.batch_size, 1) * WRONG_CODES
            decoded = vqgan.to_pixels(torch.where(wrong, codes[others], codes[shown]))
            error = F.mse_loss(decoded, target[shown])
            loss = error + F.l1_loss(decoded, target[shown])  # absolute errors keep plain backgrounds plain
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 100 == 0:
                progress.set_postfix(db=round(-10 * float((error.detach() / 4).log10()), 2))


def make_codebook(pixels: Tensor, config: VQGANConfig) -> Tensor:
    """Return the k-means centres of the patches, [codebook_size, latent_dim] values from -1 to 1.

    A patch counts by the square root of how often it occurs, so that plain backgrounds do not take the whole codebook.
    """
    patches = F.pixel_unshuffle(pixels.permute(0, 3, 1, 2), config.factor).flatten(2).transpose(1, 2)
    distinct, counts = torch.unique(patches.flatten(0, 1), dim=0, return_counts=True)
    sampled = torch.randperm(len(distinct))[:MAX_PATCHES]
    kmeans = KMeans(config.codebook_size, random_state=0, init="random", n_init=1, max_iter=20)
    kmeans.fit(distinct[sampled].float().numpy() / 255, sample_weight=counts[sampled].sqrt().numpy())
    return torch.from_numpy(kmeans.cluster_centers_).half().float() * 2 - 1


def set_codebook(vqgan: VQGAN, centres: Tensor) -> None:
    """Set the weights so that a patch's code is that of its nearest centre, and the decoder starts from the centre.

    |x - c|^2 = |x|^2 - (2 c.x - |c|^2), so the centre c that is nearest to x has the largest 2 c.x - |c|^2.
    """
    centres = centres.half().float()  # as the file will hold them
    identity = torch.eye(centres.shape[1])[:, :, None, None]
    with torch.no_grad():
        vqgan.quantize.proj.weight.copy_(2 * centres[:, :, None, None])
        vqgan.quantize.proj.bias.copy_(-centres.square().sum(1))
        vqgan.quantize.embed.weight.copy_(centres)
        for conv in vqgan.quant_conv, vqgan.post_quant_conv:
            conv.weight.copy_(identity)
            conv.bias.zero_()


def start_as_patches(decoder: nn.Module) -> None:
    """Make the decoder pass its input on, with residual layers that add nothing: from there it learns 2.5x as fast."""
    for name, module in decoder.named_modules():
        if name.endswith(("conv2", "proj_out")):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    for conv in decoder.conv_in, decoder.conv_out:
        nn.init.dirac_(conv.weight)
        nn.init.zeros_(conv.bias)


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB, as the mean over pictures [pictures, height, width, 3]."""
    error = (a.float() - b.float()).div(255).square().mean((1, 2, 3))
    return float(-10 * error.log10().mean())
