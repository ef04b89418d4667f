"""The stage `data` of build_emoji.py: tokenizer, codes and cards of both runs; and what all stages know of the runs."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from emoji_pictures import (
    FEW,
    GROUPS,
    MANY,
    Palette,
    Picture,
    bare_name,
    emoji_of,
    make_pictures,
    own_colours,
    pixels_of,
)
from tokenizers import Tokenizer

from dalle_lib.files import sha256_of
from dalle_lib.inference.captions import WORDS
from dalle_lib.model import ModelConfig
from dalle_lib.run import AveragingCard, DataCard, OptimizerCard, RecipeCard, RunCard, file_card
from dalle_lib.streaming import CodeRow, CodesFormat, Manifest, write_codes
from dalle_lib.streaming.tokenizer import train_tokenizer
from dalle_lib.vqgan import VQGANConfig, load_vqgan

ASSETS = Path("dalle_lib/assets")


@dataclass(frozen=True)
class Kind:
    """What differs between the two runs."""

    palette: Palette
    model: ModelConfig
    vqgan: VQGANConfig
    tokenizer_file: str
    vqgan_file: str

    def pictures(self) -> list[Picture]:
        """Return all pictures of the run."""
        return make_pictures(self.palette)


LARGE, SMALL = "emoji", "emoji-mini"
"""Names of the runs."""
KINDS = {
    SMALL: Kind(FEW, ModelConfig.emoji(), VQGANConfig.emoji(), "tokenizer.json", "vqgan.safetensors"),
    LARGE: Kind(
        MANY,
        replace(ModelConfig.emoji(), grid=16),
        replace(VQGANConfig.emoji(), channels=96, latent_dim=48, decoder_shuffle=4),
        "emoji-tokenizer.json",
        "emoji-vqgan.safetensors",
    ),
}


def single_thread() -> None:
    """Compute with one thread, so that numbers are added in the same order on all machines, from a fixed seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)


@dataclass
class Data:
    """Make a run's tokenizer, codes and captions, and its card, still without a checkpoint."""

    name: str = LARGE
    out: Path = ASSETS
    keep_tokenizer: bool = False
    """Take the tokenizer that is there, so that a model which was trained with it can train on."""

    def run(self) -> None:
        """Write the tokenizer, the card, and a folder of codes for each split."""
        kind = KINDS[self.name]
        pictures = kind.pictures()
        vqgan_file = self.out / kind.vqgan_file
        codes = load_vqgan(vqgan_file).encode(pixels_of(pictures))
        sizes = kind.model
        codes_format = CodesFormat(grid=sizes.grid, codebook_size=sizes.image_vocab, vqgan_sha256=sha256_of(vqgan_file))
        if self.keep_tokenizer:
            tokenizer = Tokenizer.from_file(str(self.out / kind.tokenizer_file))
        else:
            tokenizer = train_tokenizer([p.caption for p in pictures if not p.held_out], sizes.text_vocab)
            tokenizer.save(str(self.out / kind.tokenizer_file))
        longest = max(len(tokenizer.encode(p.caption, add_special_tokens=False).ids) for p in pictures)
        print(f"tokenizer: {tokenizer.get_vocab_size()} ids, longest caption {longest} text tokens")
        for split, held_out in ("train", False), ("held_out", True):
            rows = [
                CodeRow(picture.caption, row.numpy())
                for picture, row in zip(pictures, codes, strict=True)
                if picture.held_out == held_out
            ]
            if self.name == LARGE:  # a reader's first windows are one row group each, which shall hold all emoji
                random.Random(0).shuffle(rows)
            folder = self.out / self.name / split
            folder.mkdir(parents=True, exist_ok=True)
            write_codes(folder / "codes.parquet", rows, codes_format)
            Manifest.of_folder(folder, codes_format).save(folder)
            print(f"{self.name}/{split}: {len(rows)} pictures")
        write_words(self.out, self.name, pictures)
        make_card(self.out, self.name, codes_format).save(self.out, f"{self.name}.json")


def write_words(out: Path, name: str, pictures: list[Picture]) -> None:
    """Write beside a run's training data which things, colours and backgrounds their captions name.

    `own_colours` are those that no caption gives a thing, as it has about that hue by itself.
    """
    palette, seen = KINDS[name].palette, [picture for picture in pictures if not picture.held_out]
    captions = [picture.caption for picture in seen]
    shown, own = {picture.name for picture in seen}, {}
    for symbol, thing in emoji_of(GROUPS).items():
        if thing in shown and (colours := own_colours(symbol, palette.hues)):
            own[bare_name(thing)] = colours
    words = {
        "things": sorted({thing for picture in seen for thing in (picture.name, bare_name(picture.name))}),
        "colours": [colour for colour in palette.hues if any(caption.startswith(f"{colour} ") for caption in captions)],
        "backgrounds": [
            colour
            for colour in palette.backgrounds
            if any(caption.endswith(f" on a {colour} background") for caption in captions)
        ],
        "plain_background": ["white"],
        "own_colours": dict(sorted(own.items())),
    }
    text = json.dumps(words, ensure_ascii=False, indent=1)
    (out / name / "train" / WORDS).write_text(text + "\n", encoding="utf-8")


def make_card(out: Path, name: str, codes_format: CodesFormat) -> RunCard:
    """Return the card of one run, whose files are in `out`."""
    manifest = Manifest.of_folder(out / name / "train", codes_format).sha256
    return RunCard(
        name=name,
        model=KINDS[name].model,
        data=DataCard(train=f"{name}/train", held_out=f"{name}/held_out", manifest=manifest, format=codes_format),
        tokenizer=file_card(out / KINDS[name].tokenizer_file),
        vqgan=file_card(out / KINDS[name].vqgan_file),
        clip="clip",
        optimizer=OptimizerCard(lr=1e-2, warmup_epochs=5, total_epochs=60),
        averaging=AveragingCard(target_batch_size=192, matchmaking_s=3, timeout_s=20),
        recipe=RecipeCard(code_corruption=0.15, caption_dropout=0.1),
    ).in_folder(out)
