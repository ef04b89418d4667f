"""Build the embedded run from Debian's emoji font: captions, codebook, codes, tokenizer, young model, run card.

    apt-get install fonts-noto-color-emoji unicode-data
    pip install scikit-learn
    python scripts/build_emoji.py [--out dalle_lib/assets/emoji]

Everything is seeded: the same packages on the same kind of processor give the same files.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from sklearn.cluster import KMeans
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tqdm import trange

from dalle_lib.checkpoint import save_model
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import AveragingCard, DataCard, OptimizerCard, RecipeCard, RunCard, file_card, sha256_of
from dalle_lib.streaming import CodeRow, CodesFormat, write_codes
from dalle_lib.swarm.settings import PeerSettings
from dalle_lib.swarm.trainer import batches_of
from dalle_lib.vqgan import PatchCodebook, to_patches

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
NAMES = "/usr/share/unicode/emoji/emoji-test.txt"
EMOJI = [
    "🍕",
    "🍌",
    "🍔",
    "🍎",
    "🍐",
    "🍊",
    "🍋",
    "🍉",
    "🍇",
    "🍓",
    "🍒",
    "🍍",
    "🥝",
    "🍅",
    "🥑",
    "🍆",
    "🥔",
    "🥕",
    "🌽",
    "🍄",
    "🥐",
    "🍞",
    "🧀",
    "🍟",
    "🌭",
    "🌮",
    "🍩",
    "🎂",
    "🍦",
    "🍫",
    "🍭",
    "☕",
    "🐱",
    "🐶",
    "🐭",
    "🐰",
    "🦊",
    "🐻",
    "🐼",
    "🐯",
    "🦁",
    "🐮",
    "🐷",
    "🐸",
    "🐵",
    "🐔",
    "🐧",
    "🐦",
    "🦆",
    "🦉",
    "🐝",
    "🐞",
    "🦋",
    "🐌",
    "🐢",
    "🐍",
    "🐙",
    "🐟",
    "🐬",
    "🐳",
    "🦀",
    "😀",
    "😎",
    "😍",
    "😭",
    "🤖",
    "👻",
    "👽",
    "💀",
    "🎃",
    "❤",
    "⭐",
    "🌈",
    "🔥",
    "🌙",
    "🌻",
    "🌹",
    "🌷",
    "🌵",
    "🌲",
    "🚀",
    "🚗",
    "🚌",
    "🚲",
    "⛵",
    "🎈",
    "🎁",
    "⚽",
    "🎸",
    "🔑",
]
HUES = {"red": 0, "green": 120, "blue": 215, "purple": 275}
BACKGROUNDS = {"yellow": (255, 214, 64), "pink": (244, 130, 180), "black": (20, 20, 24), "blue": (48, 120, 240)}
COLOURLESS = 0.12
"""Emoji less colourful than this get no colour variants."""
NEAR_DEGREES = 20
"""Nor do those whose main hue is this near to the variant's."""


@dataclass
class Picture:
    """One picture of the set."""

    caption: str
    pixels: np.ndarray
    held_out: bool
    """The caption, and so this combination, is in no training data."""


def render(emoji: str, background: int) -> np.ndarray:
    """Return the 128x128 glyph over a grey level, as float RGB."""
    canvas = Image.new("RGB", (140, 140), (background,) * 3)
    font = ImageFont.truetype(FONT, 109)
    ImageDraw.Draw(canvas).text((0, 0), emoji, font=font, embedded_color=True)
    return np.asarray(canvas, np.float32)[0:128, 4:132]


def glyph(emoji: str) -> Image.Image:
    """Return the 64x64 emoji with its transparency, recovered from renderings on white and on black."""
    white, black = render(emoji, 255), render(emoji, 0)
    alpha = (1 - (white - black).mean(-1, keepdims=True) / 255).clip(0, 1)
    premultiplied = np.concatenate([black, alpha * 255], -1).reshape(64, 2, 64, 2, 4).mean((1, 3))
    colour = premultiplied[..., :3] / (premultiplied[..., 3:] / 255).clip(1e-3)
    rgba = np.concatenate([colour.clip(0, 255), premultiplied[..., 3:]], -1)
    return Image.fromarray(rgba.round().astype(np.uint8), "RGBA")


def on_background(picture: Image.Image, background: tuple[int, int, int]) -> np.ndarray:
    """Return the emoji over a plain colour."""
    canvas = Image.new("RGBA", picture.size, (*background, 255))
    return np.asarray(Image.alpha_composite(canvas, picture).convert("RGB"))


def main_hue(picture: Image.Image) -> tuple[float, float]:
    """Return the most common hue in degrees, weighted by how colourful it is, and how colourful the emoji is."""
    hue, saturation, value = np.moveaxis(np.asarray(picture.convert("RGB").convert("HSV"), np.float32), -1, 0)
    alpha = np.asarray(picture, np.float32)[..., 3] / 255
    weight = saturation / 255 * value / 255 * alpha
    bins = np.bincount((hue / 256 * 36).astype(int).ravel(), weight.ravel(), minlength=36)
    smooth = bins + np.roll(bins, 1) + np.roll(bins, -1)
    return (smooth.argmax() + 0.5) * 10, float(weight.sum() / max(alpha.sum(), 1))


def turn_hue(picture: Image.Image, degrees: float) -> Image.Image:
    """Return the emoji with all hues turned around the colour circle."""
    hsv = np.array(picture.convert("RGB").convert("HSV"))
    hsv[..., 0] = (hsv[..., 0].astype(int) + round(degrees / 360 * 256)) % 256
    turned = Image.fromarray(hsv, "HSV").convert("RGB")
    turned.putalpha(picture.getchannel("A"))
    return turned


def emoji_names() -> dict[str, str]:
    """Return Unicode's short name of each emoji, without the mark that asks for colour."""
    lines = re.findall(r"# (\S+) E[\d.]+ (.+)", Path(NAMES).read_text(encoding="utf-8"))
    return {emoji.replace("\ufe0f", ""): name.lower().replace("’", "'") for emoji, name in lines}


def chosen(key: str, count: int) -> int:
    """Return a number below `count` that depends on `key` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % count


def make_pictures() -> list[Picture]:
    """Return the set: each emoji plain, in other colours and on coloured backgrounds; one of each kind is held out."""
    names = emoji_names()
    plain = [names[emoji] for emoji in EMOJI]
    pictures = []
    for emoji, name in zip(EMOJI, plain, strict=True):
        picture = glyph(emoji)
        pictures.append(Picture(name, on_background(picture, (255,) * 3), held_out=False))
        hue, colourful = main_hue(picture)
        bare = re.sub(r"^(red|orange|yellow|green|blue|purple|pink) ", "", name)
        for i, (colour, target) in enumerate(HUES.items()):
            near = abs((hue - target + 180) % 360 - 180) < NEAR_DEGREES
            caption = f"{colour} {bare}"
            if colourful < COLOURLESS or near or caption in plain:
                continue
            turned = on_background(turn_hue(picture, target - hue), (255,) * 3)
            pictures.append(Picture(caption, turned, held_out=i == chosen(name, len(HUES))))
        for i, (colour, rgb) in enumerate(BACKGROUNDS.items()):
            caption = f"{name} on a {colour} background"
            held_out = i == chosen(f"{name} background", len(BACKGROUNDS))
            pictures.append(Picture(caption, on_background(picture, rgb), held_out))
    captions = [picture.caption for picture in pictures]
    assert len(set(captions)) == len(captions), "two pictures share a caption"
    return pictures


def make_codebook(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Return the k-means centres of all patches, common ones counted by the root of their number."""
    patches, counts = torch.unique(to_patches(pixels).flatten(0, 1), dim=0, return_counts=True)
    kmeans = KMeans(size, random_state=0, max_iter=30).fit(patches.numpy(), sample_weight=counts.sqrt().numpy())
    return torch.from_numpy(kmeans.cluster_centers_).half()


def make_tokenizer(captions: list[str], vocab: int) -> Tokenizer:
    """Return a byte-pair tokenizer of lower-case words; ids 0, 1, 2 are "no caption", padding and unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["<null>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(captions, trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials))
    return tokenizer


def make_data(out: Path, config: ModelConfig) -> CodesFormat:
    """Write the codebook, the codes of both splits and the tokenizer; return what the codes are."""
    pictures = make_pictures()
    pixels = torch.from_numpy(np.stack([picture.pixels for picture in pictures]))
    save_file({"patches": make_codebook(pixels, config.image_vocab)}, out / "vqgan.safetensors")
    codebook = PatchCodebook.from_file(out / "vqgan.safetensors")
    codes = codebook.encode(pixels)
    error = (codebook.decode(codes).float() - pixels.float()).div(255).square().mean((1, 2, 3))
    codes_format = CodesFormat(
        grid=config.grid, codebook_size=config.image_vocab, vqgan_sha256=sha256_of(out / "vqgan.safetensors")
    )
    for split, held_out in ("train", False), ("held_out", True):
        rows = [CodeRow(p.caption, c.numpy()) for p, c in zip(pictures, codes, strict=True) if p.held_out == held_out]
        (out / split).mkdir(exist_ok=True)
        write_codes(out / split / "codes.parquet", rows, codes_format)
        print(f"{split}: {len(rows)} pictures")

    tokenizer = make_tokenizer([p.caption for p in pictures if not p.held_out], config.text_vocab)
    tokenizer.save(str(out / "tokenizer.json"))
    longest = max(len(tokenizer.encode(p.caption).ids) for p in pictures)
    print(f"codebook: {-10 * error.log10().mean():.1f} dB")
    print(f"tokenizer: {tokenizer.get_vocab_size()} ids, longest caption {longest} tokens")
    return codes_format


def make_card(out: Path, codes_format: CodesFormat) -> RunCard:
    """Return the run card, still without a checkpoint."""
    return RunCard(
        name="emoji",
        model=ModelConfig.emoji(),
        data=DataCard(train="train", held_out="held_out", format=codes_format),
        tokenizer=file_card(out / "tokenizer.json"),
        vqgan=file_card(out / "vqgan.safetensors"),
        optimizer=OptimizerCard(lr=1e-2, warmup_epochs=5, total_epochs=60),
        averaging=AveragingCard(target_batch_size=256, matchmaking_s=3, timeout_s=20),
        recipe=RecipeCard(code_corruption=0.15, caption_dropout=0.1),
    )


def train_young(card: RunCard, steps: int, batch_size: int) -> DALLE:
    """Return the model after a few small steps from random weights: it knows backgrounds, and hardly any shape."""
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    torch.manual_seed(card.seed)
    model = DALLE(card.model)
    optimizer = LAMB8bit(parameter_groups(model, card.optimizer.weight_decay), lr=1e-2, bits=32)
    schedule = linear_warmup_schedule(optimizer, 10, 400)
    batches = batches_of(card, PeerSettings(run="emoji", batch_size=batch_size, seed=card.seed))
    for _, batch in zip(trange(steps, desc="young model"), batches, strict=False):
        model(batch.text, batch.codes, batch.input_codes).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def main(out: Path = Path("dalle_lib/assets/emoji"), steps: int = 85, batch_size: int = 32) -> None:
    """Write the run to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    card = make_card(out, make_data(out, ModelConfig.emoji())).in_folder(out)
    save_model(out / "model.safetensors", train_young(card, steps, batch_size), dtype=torch.float16)
    card.with_changes(checkpoint=file_card(out / "model.safetensors")).save(out)


if __name__ == "__main__":
    tyro.cli(main)
