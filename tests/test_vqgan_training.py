"""A VQ-GAN trained for somebody's own pictures: codes against a float64 search, learning, and what cannot be used."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dalle_lib.vqgan import VQGAN, VQGANConfig, load_vqgan, save_vqgan
from dalle_lib.vqgan_patches import local_config
from dalle_lib.vqgan_training import COLUMNS, psnr, report_fidelity, train_vqgan

TINY = local_config(12, factor=2, codebook_size=24)
FEW_CHANNELS = replace(TINY, channels=32)
"""Sizes whose decoder has no spare channels for its norms."""


def pictures_of(count: int, side: int = 12, seed: int = 1) -> torch.Tensor:
    """Return smooth pictures: each rises from one random colour to another."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(count, 2, 3, generator=generator)[:, :, None, None]
    slope = torch.linspace(0, 1, side)[:, None, None] * torch.linspace(0.5, 1, side)[:, None]
    return ((ends[:, 0] * (1 - slope) + ends[:, 1] * slope) * 255).round().to(torch.uint8)


def train(pixels: torch.Tensor, config: VQGANConfig = TINY, **settings) -> VQGAN:
    return train_vqgan(pixels, config, **{"steps": 2, "seed": 0, "batch_size": 3, **settings})


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return pictures_of(20)


def test_a_code_is_that_of_the_nearest_entry_of_the_codebook(pixels):
    vqgan = train(pixels)
    centres = vqgan.quantize.proj.weight.double().flatten(1) / 2
    scaled = pixels.permute(0, 3, 1, 2).double() / 127.5 - 1
    patches = F.pixel_unshuffle(scaled, TINY.factor).flatten(2).transpose(1, 2)
    distances = (patches[:, :, None] - centres).square().sum(3)
    found = distances.gather(2, vqgan.encode(pixels)[:, :, None])[:, :, 0]
    assert (found - distances.min(2).values).max() < 1e-5
    assert len(vqgan.encode(pixels).unique()) > TINY.codebook_size / 2


def test_the_codebook_is_closer_to_the_patches_than_as_many_of_them(pixels):
    patches = F.pixel_unshuffle(pixels.permute(0, 3, 1, 2), TINY.factor).flatten(2).transpose(1, 2).flatten(0, 1)
    patches = patches.double() / 127.5 - 1
    chosen = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))[: TINY.codebook_size]]
    centres = train(pixels, steps=0).quantize.embed.weight.double()
    assert torch.cdist(patches, centres).min(1).values.mean() < 0.9 * torch.cdist(patches, chosen).min(1).values.mean()


def test_an_untrained_decoder_puts_down_the_patches_of_the_codebook(pixels):
    vqgan = train(pixels, steps=0)
    codes = vqgan.encode(pixels)
    patches = vqgan.quantize.embed(codes).transpose(1, 2).unflatten(2, (TINY.grid, -1))
    expected = F.pixel_shuffle(patches, TINY.factor)
    assert (vqgan.to_pixels(codes) - expected).abs().max() < 0.05
    assert expected.std() > 0.2


@pytest.mark.parametrize(("config", "lr", "gain"), [(TINY, 3e-4, 0.1), (FEW_CHANNELS, 2e-3, 3)], ids=["spare", "few"])
def test_training_brings_pictures_nearer(config, lr, gain, pixels):
    before, after = (train(pixels, config, steps=steps, lr=lr) for steps in (0, 150))
    assert torch.equal(before.encode(pixels), after.encode(pixels))
    dbs = [psnr(vqgan.decode(vqgan.encode(pixels)), pixels) for vqgan in (before, after)]
    assert dbs[1] > dbs[0] + gain


def test_the_same_seed_gives_the_same_vqgan_and_leaves_other_random_numbers_alone(pixels):
    torch.manual_seed(5)
    one = train(pixels)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    again, other = train(pixels), train(pixels, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(one.quantize.embed.weight, other.quantize.embed.weight)
    assert not any(parameter.requires_grad for parameter in one.parameters())


def test_training_goes_on_with_the_codebook_that_is_there(pixels):
    first = train(pixels)
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = train(pixels, start=first, steps=20)
    assert torch.equal(second.encode(pixels), first.encode(pixels))
    assert not torch.equal(second.decoder.conv_out.weight, first.decoder.conv_out.weight)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items()), "start is changed"
    with pytest.raises(ValueError, match=r"expected to go on with a VQ-GAN of .*codebook_size=24"):
        train(pixels, replace(TINY, codebook_size=23), start=first)


def test_the_decoder_learns_to_mend_codes_of_pictures_alike(pixels):
    mended, plain = (train(pixels, steps=200, lr=1e-3, alike=alike) for alike in (["a", "b"] * 10, None))
    codes = plain.encode(pixels)
    wrong = torch.rand(codes.shape, generator=torch.Generator().manual_seed(3)) < 0.1
    with_wrong = torch.where(wrong, codes.roll(2, 0), codes)
    assert psnr(mended.decode(with_wrong), pixels) > psnr(plain.decode(with_wrong), pixels) + 0.5


def test_codes_survive_a_file_in_16_bits(pixels, tmp_path):
    vqgan = train(pixels)
    save_vqgan(tmp_path / "own.safetensors", vqgan, dtype=torch.float16)
    again = load_vqgan(tmp_path / "own.safetensors")
    assert again.config == TINY
    assert torch.equal(again.encode(pixels), vqgan.encode(pixels))


def test_psnr_is_that_of_its_definition():
    a, b = pictures_of(3), pictures_of(3, seed=4)
    error = ((a.double() - b.double()) ** 2).mean((1, 2, 3))
    assert psnr(a, b) == pytest.approx(float((10 * torch.log10(255**2 / error)).mean()), abs=1e-4)
    assert psnr(a, a) == float("inf")


def test_the_sheet_has_each_original_above_its_decoding(pixels, tmp_path):
    vqgan = train(pixels)
    told = report_fidelity(vqgan, pixels, tmp_path / "new" / "sheet.png", shown=COLUMNS + 2)
    decoded = vqgan.decode(vqgan.encode(pixels))
    assert told.psnr_db == pytest.approx(psnr(decoded, pixels), abs=1e-4)
    assert told.worst_db <= told.psnr_db
    assert told.used == len(vqgan.encode(pixels).unique())
    assert f"{told.psnr_db:.2f} dB on average" in str(told)
    sheet = torch.from_numpy(np.array(Image.open(tmp_path / "new" / "sheet.png")))
    cells = [[sheet[y : y + 12, x : x + 12] for x in range(0, sheet.shape[1], 16)] for y in range(0, len(sheet), 16)]
    assert torch.equal(cells[0][0], pixels[0])
    assert torch.equal(cells[1][0], decoded[0])
    assert torch.equal(cells[2][1], pixels[-1])
    assert torch.equal(cells[3][1], decoded[-1])
    assert (cells[3][2] == 255).all()


BAD = {
    "floats": (pictures_of(20) / 255, r"as uint8 of shape \[pictures, 12, 12, 3\], but got float32 of .*: scale"),
    "no numbers": (torch.full((20, 12, 12, 3), torch.nan), "with values that are no finite numbers"),
    "another size": (pictures_of(20, side=14), r"got uint8 of shape \[20, 14, 14, 3\]: .* to 12x12 pixels"),
    "channels first": (pictures_of(20).permute(0, 3, 1, 2), r"got uint8 of shape \[20, 3, 12, 12\]"),
    "one picture": (pictures_of(1)[0], r"got uint8 of shape \[12, 12, 3\]"),
    "few pictures": (pictures_of(2), "as a batch has, 3, but got 2: give more pictures"),
    "no pictures": (pictures_of(0), "as a batch has, 3, but got 0"),
    "one colour": (torch.zeros(20, 12, 12, 3, dtype=torch.uint8), "has codes, 24, but 20 pictures have 1: give more"),
}


@pytest.mark.parametrize("case", BAD)
def test_pictures_that_cannot_be_trained_on_are_refused(case):
    bad, reason = BAD[case]
    with pytest.raises(ValueError, match=reason):
        train(bad)


@pytest.mark.parametrize(
    "changes",
    [
        {"local_encoder": False},
        {"channels": 24},
        {"channels": 65},
        {"channels": 32, "decoder_shuffle": 4, "latent_dim": 48},
        {"channel_mult": (1, 1), "decoder_shuffle": 1},
    ],
    ids=str,
)
def test_sizes_whose_decoder_cannot_start_from_patches_are_refused(changes, pixels):
    with pytest.raises(ValueError, match=r"expected a local encoder and one level .*: local_config\(\) returns such"):
        train(pixels, replace(TINY, **changes))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"steps": -1}, "expected steps >= 0 and batch_size >= 1, but got -1 and 3"),
        ({"batch_size": 0}, "but got 2 and 0"),
        ({"alike": ["a"]}, "a name in `alike` for each of 20 pictures, but got 1"),
        ({"lr": 1e30, "steps": 30}, r"error is (nan|inf) at step \d+ of 30: lower lr, now 1e\+30"),
    ],
    ids=["steps", "batch", "names", "learning rate"],
)
def test_settings_that_cannot_be_trained_with_are_refused(settings, reason, pixels):
    with pytest.raises(ValueError, match=reason):
        train(pixels, **settings)


@pytest.mark.parametrize(
    ("module", "package"),
    [("sklearn.cluster", "scikit-learn"), ("taming.modules.vqvae.quantize", "taming-transformers-rom1504")],
)
def test_a_missing_package_is_named_with_what_brings_it(module, package, pixels, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RuntimeError, match=rf'needs {package}, .*: pip install "dalle-lib\[prepare\]"'):
        train(pixels)


def test_a_sheet_without_pillow_says_what_brings_it(pixels, monkeypatch, tmp_path):
    vqgan = train(pixels)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RuntimeError, match=r'needs pillow, .*: pip install "dalle-lib\[prepare\]"'):
        report_fidelity(vqgan, pixels, tmp_path / "sheet.png")
    assert report_fidelity(vqgan, pixels).used > 1


@pytest.mark.parametrize(("resolution", "factor"), [(64, 4), (128, 8), (256, 8), (24, 3)])
def test_local_sizes_can_all_be_trained(resolution, factor):
    config = local_config(resolution, factor=factor, codebook_size=5)
    assert config.grid == resolution // factor
    assert config.channels % 32 == 0
    vqgan = VQGAN(config)
    assert vqgan.to_pixels(torch.zeros(1, config.grid**2, dtype=torch.long)).shape == (1, 3, resolution, resolution)
