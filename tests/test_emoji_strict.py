"""The strict measure of drawn emoji: what it lets pass, and what is wrong by background, colour or shape alone."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture(scope="module")
def strict():
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("emoji_strict")
    sys.path.remove(str(SCRIPTS))


def disc(strict, colour=(200, 40, 30), background=(60, 170, 80), centre=32, stripes=40):
    """Return a picture of a disc with darker stripes."""
    from emoji_pictures import Picture, on_background

    y, x = np.mgrid[:64, :64]
    alpha = np.where((x - centre) ** 2 + (y - 32) ** 2 < 20**2, 255, 0).astype(np.uint8)
    dark = np.where(x // 6 % 2, stripes, 0)[..., None]
    rgb = (np.array(colour) - dark).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(np.dstack([rgb, alpha]), "RGBA")
    return Picture("disc", on_background(image, background), alpha, "disc", "plain", False)


def pixels(*pictures):
    return torch.from_numpy(np.stack([picture.pixels for picture in pictures]))


def noisy(values, levels):
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0)) * levels
    return (values + noise).round().clamp(0, 255).to(torch.uint8)


@pytest.fixture(scope="module")
def limits(strict):
    """Return the limits that copies keep whose pixels are 8 of 256 levels off."""
    true = [disc(strict)] * 50
    return strict.Limits.of_copies(noisy(pixels(*true), 8.0), true)


def test_distances_are_root_mean_squares_over_the_parts_of_a_picture(strict):
    true, red = disc(strict), np.array([10, 0, 0])
    inside = true.alpha[..., None] > 0
    shifted = torch.from_numpy(np.where(inside, true.pixels, true.pixels + red))[None]
    expected = 10 / 255 / 3**0.5
    assert strict.distances(shifted, [true])[0].tolist() == pytest.approx([expected, 0.0, 0.0], abs=0.004)
    assert strict.distances(pixels(true), [true]).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [
        ({}, [True, True, True]),
        ({"background": (60, 120, 160)}, [False, True, True]),
        ({"colour": (40, 100, 160)}, [True, False, True]),
        ({"stripes": 0}, [True, False, False]),
        ({"centre": 24}, [False, False, False]),
    ],
)
def test_each_part_is_wrong_by_itself(strict, limits, wrong, kept):
    drawn = noisy(pixels(disc(strict, **wrong)), 4.0)
    assert limits.kept(drawn, [disc(strict)])[0].tolist() == kept


def test_what_fills_its_picture_has_no_background_to_miss(strict, limits):
    true = disc(strict)
    filled = type(true)("full", true.pixels, np.full_like(true.alpha, 255), "full", "plain", False)
    assert strict.distances(pixels(true), [filled]).isnan()[0].tolist() == [True, False, False]
    assert limits.kept(noisy(pixels(true), 4.0), [filled])[0, 0]
