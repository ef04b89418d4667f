"""An own VQ-GAN for pictures unlike those of the published one: a codebook of their patches and a small decoder."""

import copy
import importlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import trange

from dalle_lib.optimizer import linear_warmup_schedule
from dalle_lib.vqgan import VQGAN, VQGANConfig
from dalle_lib.vqgan_patches import make_codebook, require_sizes, set_codebook, start_as_patches

WRONG_CODES = 0.2
"""Up to this share of a picture's codes are replaced while the decoder learns to mend what a model gets wrong."""
COLUMNS = 8
"""Pictures in a row of a sheet."""
_GAP, _WHITE = 4, 255
_PACKAGES = {"sklearn.cluster": "scikit-learn", "taming.modules.vqvae.quantize": "taming-transformers-rom1504"}
"""Modules that are loaded for training alone, and where they come from."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How much of some pictures their codes keep."""

    psnr_db: float
    """Mean peak signal-to-noise ratio of the pictures."""
    worst_db: float
    """The PSNR of the worst picture, in dB."""
    used: int
    """Different codes that the pictures have."""
    codebook_size: int
    """Different codes that there are."""

    def __str__(self) -> str:
        return (
            f"{self.psnr_db:.2f} dB on average, {self.worst_db:.2f} dB at worst, "
            f"with {self.used:,} of {self.codebook_size:,} codes"
        )


def train_vqgan(
    pixels: Tensor,
    config: VQGANConfig,
    *,
    steps: int,
    seed: int,
    batch_size: int = 8,
    lr: float = 3e-4,
    alike: Sequence[str] | None = None,
    start: VQGAN | None = None,
) -> VQGAN:
    """Return a VQ-GAN for pictures like `pixels`, uint8 [pictures, height, width, 3], without gradients of its weights.

    Its codebook is made by k-means of the pictures' patches, and its decoder trained for `steps` batches on the codes
    that this gives. With `start`, training goes on with that VQ-GAN, whose codebook stays. `alike` names what each
    picture shows: the decoder then sees some codes of other pictures of the same name, and learns to mend what a model
    gets wrong. The same seed gives the same VQ-GAN on the same machine with as many threads.

    `lr` suits the sizes of `local_config`, whose decoder starts from the codebook's own patches: at 1e-3, it lost them
    within a hundred steps. A decoder of fewer channels starts from less, and 2e-3 is better.

    Raises ValueError for pictures or sizes that cannot be trained on, and if the decoder diverges; RuntimeError if a
    package is missing.
    """
    _require_installed()
    require_sizes(config)
    _require_pictures(pixels, config, batch_size)
    if steps < 0 or batch_size < 1:
        raise ValueError(f"expected steps >= 0 and batch_size >= 1, but got {steps} and {batch_size}.")
    if alike is not None and len(alike) != len(pixels):
        raise ValueError(f"expected a name in `alike` for each of {len(pixels)} pictures, but got {len(alike)}.")
    if start is not None and start.config != config:
        raise ValueError(f"expected to go on with a VQ-GAN of {config}, but `start` is one of {start.config}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if start is None:
            vqgan = VQGAN(config)
            set_codebook(vqgan, make_codebook(pixels, config, seed))
            start_as_patches(vqgan)
        else:
            vqgan = copy.deepcopy(start).requires_grad_(True)
        if steps:
            _train_decoder(vqgan, pixels, steps, batch_size, lr, alike, random.Random(seed))
    return vqgan.eval().requires_grad_(False)


def _train_decoder(
    vqgan: VQGAN,
    pixels: Tensor,
    steps: int,
    batch_size: int,
    lr: float,
    alike: Sequence[str] | None,
    choices: random.Random,
) -> None:
    codes = vqgan.encode(pixels)
    same: dict[str, list[int]] = {}
    for place, name in enumerate(alike or ()):
        same.setdefault(name, []).append(place)
    learned = nn.ModuleList([vqgan.decoder, vqgan.post_quant_conv, vqgan.quantize.embed])
    optimizer = torch.optim.Adam(learned.parameters(), lr=lr, fused=True)
    schedule = linear_warmup_schedule(optimizer, steps // 50, steps)
    for step in (progress := trange(steps, desc="decoder")):
        shown = torch.randint(len(codes), (batch_size,))
        seen, target = codes[shown], pixels[shown].permute(0, 3, 1, 2).float() / 127.5 - 1
        if alike is not None:
            others = torch.tensor([choices.choice(same[alike[place]]) for place in shown.tolist()])
            wrong = torch.rand(batch_size, codes.shape[1]) < torch.rand(batch_size, 1) * WRONG_CODES
            seen = torch.where(wrong, codes[others], seen)
        decoded = vqgan.to_pixels(seen)
        error = F.mse_loss(decoded, target)
        loss = error + F.l1_loss(decoded, target)  # absolute errors keep plain backgrounds plain
        if not math.isfinite(loss.item()):
            raise ValueError(f"the decoder's error is {loss.item()} at step {step} of {steps}: lower lr, now {lr}.")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            progress.set_postfix(db=round(-10 * float((error.detach() / 4).log10()), 2))


def psnr(a: UInt8[Tensor, "pictures height width 3"], b: UInt8[Tensor, "pictures height width 3"]) -> float:
    """Return the peak signal-to-noise ratio in dB, as the mean over pictures; infinite where two are equal."""
    return float(_decibels(a, b).mean())


def report_fidelity(
    vqgan: VQGAN, pixels: UInt8[Tensor, "pictures height width 3"], sheet: str | Path | None = None, shown: int = 16
) -> Fidelity:
    """Return how much of `pixels` their codes keep, and write a sheet of pictures: each original above its decoding.

    The sheet has `shown` pictures, evenly spread over all. Use pictures that the VQ-GAN was not trained on.
    Raises RuntimeError if a sheet is to be written and pillow is missing.
    """
    codes = vqgan.encode(pixels)
    decoded = vqgan.decode(codes)
    if sheet is not None:
        places = torch.linspace(0, len(pixels) - 1, min(shown, len(pixels))).round().long()
        _write_sheet(Path(sheet), pixels[places], decoded[places])
    each = _decibels(decoded, pixels)
    return Fidelity(
        psnr_db=float(each.mean()),
        worst_db=float(each.min()),
        used=len(codes.unique()),
        codebook_size=vqgan.config.codebook_size,
    )


def _decibels(a: Tensor, b: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each picture, a few of which are in float32 at a time."""
    pairs = zip(a.split(64), b.split(64), strict=True)
    errors = [(one.float() - other.float()).div(255).square().mean((1, 2, 3)) for one, other in pairs]
    return -10 * torch.cat(errors).log10()


def _write_sheet(file: Path, originals: Tensor, decoded: Tensor) -> None:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise RuntimeError('a sheet needs pillow, which is not installed: pip install "dalle-lib[prepare]"') from error

    rows = [
        torch.cat([F.pad(picture, (0, 0, 0, _GAP, 0, _GAP), value=_WHITE) for picture in row], dim=1)
        for pair in zip(originals.split(COLUMNS), decoded.split(COLUMNS), strict=True)
        for row in pair
    ]
    width = rows[0].shape[1]
    rows = [F.pad(row, (0, 0, 0, width - row.shape[1]), value=_WHITE) for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(torch.cat(rows).numpy()).save(file)


def _require_installed() -> None:
    for module, package in _PACKAGES.items():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f'training a VQ-GAN needs {package}, which is not installed ({error}): pip install "dalle-lib[prepare]"'
            ) from error


def _require_pictures(pixels: Tensor, config: VQGANConfig, batch_size: int) -> None:
    side = config.resolution
    if pixels.dtype != torch.uint8 or pixels.shape[1:] != (side, side, 3):
        found = f"{str(pixels.dtype).removeprefix('torch.')} of shape {list(pixels.shape)}"
        if pixels.is_floating_point() and not pixels.isfinite().all():
            found += " with values that are no finite numbers"
        raise ValueError(
            f"expected pictures as uint8 of shape [pictures, {side}, {side}, 3], but got {found}: scale and crop them "
            f"to {side}x{side} pixels, and round their values to whole numbers from 0 to 255."
        )
    if len(pixels) < batch_size:
        raise ValueError(
            f"expected at least as many pictures as a batch has, {batch_size}, but got {len(pixels)}: give more "
            "pictures, or lower batch_size."
        )
