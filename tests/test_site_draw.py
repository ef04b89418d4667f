"""The page that draws: its networks against the package's, and drawing in Chromium."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from checkout import ROOT
from PIL import Image

from dalle_lib.inference import TextToImage
from dalle_lib.inference.captions import TrainingCaptions
from dalle_lib.model.sampling import Sampler, code_probabilities
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer

STATIC = ROOT / "site" / "_static"
BOUNDARY = 1e-4
"""How near a chance must lie to a boundary between two codes for another code to be drawn than in Python."""
SEED = 7
PROMPTS = [
    "penguin on a yellow background",
    "green frog",
    "a red apple on the blue background",
    "purple pizza",
    "three cats",
    "teal pig face on a grey background",
    "hotdog",
    "The Grinning Face!",
    "blue automobile, black background",
    "orange fish on pink",
    "kitten on a violet background",
    "light blue butterfly",
    "red",
    "rocket against black",
    "1st place medal",
    "pengiun",
    "green white flower",
    "gray elephant on a green background",
    "xyzzy",
    "white medium square",
]
WORDINGS = [
    *PROMPTS,
    "tomatoes",
    "red tomato",
    "yellow penguin on a blue background",
    "black cat",
    "pink dog with a red background",
    "elves and wolves and loaves",
    "jack-o-lantern",
    "red-apple in front of a yellow background",
    "dark grey ball on a pale orange background",
    "a quick brown fox jumps over the lazy dog and seven other things",
    "  many   spaces  ",
    "face with monocle",
    "CRÈME brûlée 素敵 – и ещё",
    "it's 8-ball's piñata",
    "</s> <unk> <null>",
    "cat on a background",
    "apple on a white background",
    "dog on a cat background",
    "violet",
]
FLAWS = "flaws => { document.documentElement.dataset.tested = '1'; return flaws; }"


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """What the site's step makes, in a process of its own: PyTorch's exporter takes no checked shapes."""
    folder = tmp_path_factory.mktemp("made")
    code = "import sys; from pathlib import Path; from making.draw import make; make(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=ROOT / "site", capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "static" / "draw"


@pytest.fixture(scope="session")
def draw() -> TextToImage:
    return TextToImage.from_run("emoji", "cpu")
