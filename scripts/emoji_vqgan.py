"""The stage `vqgan` of build_emoji.py: pictures as codes, by a codebook of patches and a small decoder."""

from dataclasses import dataclass
from pathlib import Path

import torch
from emoji_data import ASSETS, SIZES, single_thread
from emoji_pictures import make_pictures, pixels_of
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from dalle_lib.optimizer import linear_warmup_schedule
from dalle_lib.vqgan import VQGAN, VQGANConfig, load_vqgan, save_vqgan

SMALL_SET_WEIGHT = 2.0
"""How much a picture of the small set counts in the codebook, against 1."""


@dataclass
class Vqgan:
    """Make the codebook by k-means over 8x8 patches, then train the decoder on the codes that it gives.

    The one in the kit had 5000 steps, then 2000 and 1500 with smaller rates and weights, each time from `start`.
    """

    out: Path = ASSETS
    steps: int = 5000
    batch_size: int = 16
    lr: float = 3e-3
    decoder_small_set_weight: float = 6.0
    """How much more often than others the pictures of the small set are shown to the decoder."""
    start: Path | None = None
    """Go on with the decoder of this VQ-GAN, and with its entries for codes that mean the same patch there."""

    def run(self) -> None:
        """Write vqgan.safetensors."""
        single_thread()
        pictures = make_pictures()
        pixels, small = pixels_of(pictures), torch.tensor([picture.small for picture in pictures])
        vqgan = VQGAN(VQGANConfig.emoji())
        set_codebook(vqgan, make_codebook(pixels, torch.where(small, SMALL_SET_WEIGHT, 1.0), SIZES.image_vocab))
        start_as_patches(vqgan.decoder) if self.start is None else start_from(vqgan, load_vqgan(self.start))
        self._train_decoder(vqgan, pixels, torch.where(small, self.decoder_small_set_weight, 1.0))
        self.out.mkdir(parents=True, exist_ok=True)
        save_vqgan(self.out / "vqgan.safetensors", vqgan, dtype=torch.float16)
        vqgan = load_vqgan(self.out / "vqgan.safetensors")
        decoded = vqgan.decode(vqgan.encode(pixels))
        print(f"{psnr(decoded[small], pixels[small]):.2f} dB on the small set, {psnr(decoded, pixels):.2f} dB on all")

    def _train_decoder(self, vqgan: VQGAN, pixels: Tensor, weights: Tensor) -> None:
        codes = vqgan.encode(pixels)
        target = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        learned = nn.ModuleList([vqgan.decoder, vqgan.post_quant_conv, vqgan.quantize.embed])
        optimizer = torch.optim.Adam(learned.parameters(), lr=self.lr, fused=True)
        schedule = linear_warmup_schedule(optimizer, self.steps // 50, self.steps)
        for step in (progress := trange(self.steps, desc="decoder")):
            shown = torch.multinomial(weights, self.batch_size)
            decoded = vqgan.to_pixels(codes[shown])
            error = F.mse_loss(decoded, target[shown])
            loss = error + F.l1_loss(decoded, target[shown])  # absolute errors keep plain backgrounds plain
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 100 == 0:
                progress.set_postfix(db=round(-10 * float((error.detach() / 4).log10()), 2))


def make_codebook(pixels: Tensor, weights: Tensor, size: int) -> Tensor:
    """Return the k-means centres of all patches, [size, 192] values from -1 to 1.

    A patch counts by the square root of how often it occurs, so that plain backgrounds do not take the whole codebook.
    """
    patches = F.pixel_unshuffle(pixels.permute(0, 3, 1, 2).float() / 255, 8).flatten(2).transpose(1, 2)
    distinct, place = torch.unique(patches.flatten(0, 1), dim=0, return_inverse=True)
    counts = torch.zeros(len(distinct)).scatter_add_(0, place, weights.repeat_interleave(patches.shape[1]))
    kmeans = KMeans(size, random_state=0, init="random", n_init=1, max_iter=20)
    centres = kmeans.fit(distinct.numpy(), sample_weight=counts.sqrt().numpy()).cluster_centers_
    return torch.from_numpy(centres).half().float() * 2 - 1


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


@torch.no_grad()
def start_from(vqgan: VQGAN, earlier: VQGAN) -> None:
    """Take over the decoder of `earlier`, and its entries for codes that mean the same patch in both."""
    vqgan.decoder.load_state_dict(earlier.decoder.state_dict())
    vqgan.post_quant_conv.load_state_dict(earlier.post_quant_conv.state_dict())
    same = (vqgan.quantize.proj.weight - earlier.quantize.proj.weight).abs().amax((1, 2, 3)) < 0.1
    vqgan.quantize.embed.weight[same] = earlier.quantize.embed.weight[same]


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
