"""What the page that draws loads: networks, tables and words of the embedded run, and onnxruntime-web from npm."""

import hashlib
import json
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from dalle_lib.checkpoint import load_model
from dalle_lib.files import files_in
from dalle_lib.inference.captions import WORDS, training_rows
from dalle_lib.inference.text_to_image import GUIDANCE
from dalle_lib.model import DALLE
from dalle_lib.model.cache import ROWS
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.vqgan import VQGAN, load_vqgan
from making import graphs
from making.repository import ROOT

NPM = ROOT / "site" / "_npm"
"""Where npm puts what site/package-lock.json names; it stays from build to build."""
RUNTIME = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
"""Files of onnxruntime-web that draw on one thread: 0.1 MB of scripts, and the runtime."""
KEPT = ROOT / "site" / "_build" / "networks"
"""Where the exported networks stay from build to build, in a folder named by what they are made of."""
SHAPED_BY = [
    Path(graphs.__file__),
    *sorted((ROOT / "dalle_lib" / "model").glob("*.py")),
    *(ROOT / "dalle_lib" / name for name in ("rerank.py", "vqgan.py")),
]
"""The code that the exported networks have; the run's card has the hashes of their weights."""
EXPORTED_WITH = ("torch", "transformers", "taming-transformers-rom1504", "onnx", "onnxscript")
AROUND = 3
"""Like codes on each side of the one whose patch is taken: with one alone, the decoder draws the edge of a picture."""


def make(made: Path) -> None:
    """Write `made/static/draw/`: the files that the page loads on the first click, and `about.js`, which lists them."""
    folder = made / "static" / "draw"
    folder.mkdir(parents=True, exist_ok=True)
    has_runtime = copy_runtime(folder)
    card = RunCard.load("emoji")
    model = load_model(card.path(card.checkpoint), card.model).float().eval()
    vqgan, ranker = load_vqgan(card.path(card.vqgan)), CLIPRanker(card.clip_source(), "cpu", card.clip_commit)
    copy_networks(card, model, vqgan, ranker, folder)
    (folder / "turns.bin").write_bytes(graphs.turns_of(model).numpy().tobytes())
    (folder / "patches.bin").write_bytes(patches(vqgan).numpy().tobytes())
    (folder / "words.json").write_text(json.dumps(words(card), ensure_ascii=False, separators=(",", ":")), "utf-8")
    about = {"hasRuntime": has_runtime, "model": sizes(model, vqgan, ranker), "files": files(folder)}
    about["version"] = version_of(about, folder)
    (folder / "about.js").write_text(f'"use strict";\n(globalThis.dalle ??= {{}}).drawing = {json.dumps(about)};\n')


def copy_networks(card: RunCard, model: DALLE, vqgan: VQGAN, ranker: CLIPRanker, folder: Path) -> None:
    """Copy the networks into `folder`; they are exported (40 s of one core) only where something has changed."""
    code = [file.read_bytes() for file in SHAPED_BY]
    told = [card.model_dump_json(), *map(version, EXPORTED_WITH)]
    kept = KEPT / hashlib.sha256(b"".join(code) + "".join(told).encode()).hexdigest()[:16]
    if not kept.exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        began = kept.with_suffix(".part")
        began.mkdir(parents=True)
        graphs.export_step(model, began / "step.onnx")
        graphs.export_pictures(vqgan, began / "pictures.onnx")
        graphs.export_scores(ranker, began / "scores.onnx")
        began.rename(kept)
    shutil.copytree(kept, folder, dirs_exist_ok=True)


def copy_runtime(folder: Path) -> bool:
    """Copy onnxruntime-web, which npm installs as site/package-lock.json says; return whether it is there."""
    npm, lock = shutil.which("npm"), (ROOT / "site" / "package-lock.json").read_bytes()
    kept, dist = NPM / "package-lock.json", NPM / "node_modules" / "onnxruntime-web" / "dist"
    is_whole = (NPM / "node_modules" / ".package-lock.json").exists()  # npm writes it when all else is there
    if not (is_whole and kept.exists() and kept.read_bytes() == lock):
        if npm is None:
            print("draw: npm is missing, so the page that draws will say that it cannot.")
            return False
        NPM.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / "site" / "package.json", NPM / "package.json")
        kept.write_bytes(lock)
        options = ["--ignore-scripts", "--no-audit", "--no-fund"]
        installed = subprocess.run([npm, "ci", *options], cwd=NPM, capture_output=True, text=True, check=False)
        if installed.returncode:
            kept.unlink()
            print(f"draw: npm ci failed, so the page that draws will say that it cannot: {installed.stderr.strip()}")
            return False
    for name in RUNTIME:
        shutil.copyfile(dist / name, folder / name)
    return True


def sizes(model: DALLE, vqgan: VQGAN, ranker: CLIPRanker) -> dict:
    """Return what the page must know of the networks."""
    config = model.config
    return {
        "dim": config.dim,
        "depth": config.depth,
        "heads": config.heads,
        "dimHead": config.dim_head,
        "kinds": config.kinds,
        "grid": config.grid,
        "side": vqgan.config.resolution,
        "reachRows": ROWS,
        "textLength": config.text_length,
        "textVocab": config.text_vocab,
        "textRows": config.text_rows,
        "imageVocab": config.image_vocab,
        "clipLength": ranker.model.config.text_config.max_position_embeddings,
        "guidance": GUIDANCE,
    }


def files(folder: Path) -> list[dict]:
    """Return name, size and version of what the page loads on the first click, so that it can tell how far it is."""
    found = [file for file in sorted(folder.iterdir()) if file.suffix in (".onnx", ".bin", ".json", ".wasm")]
    return [
        {
            "name": file.name,
            "bytes": file.stat().st_size,
            "version": hashlib.sha256(file.read_bytes()).hexdigest()[:12],
        }
        for file in found
    ]


def version_of(about: dict, folder: Path) -> str:
    """Return a version of all that draws, which the addresses of the worker's scripts hold.

    So a browser that keeps a script takes none of another release.
    """
    scripts = [*sorted((ROOT / "site" / "_static").glob("draw*.js")), *sorted(folder.glob("ort*js"))]
    told = json.dumps(about).encode() + b"".join(script.read_bytes() for script in scripts)
    return hashlib.sha256(told).hexdigest()[:12]


def words(card: RunCard) -> dict:
    """Return the tokenizer, the training captions and what they name, as JSON.

    Raises ValueError if the run's CLIP reads captions by another vocabulary, or a step that the page does not know.
    """
    told, of_clip = (
        json.loads(Path(file).read_text("utf-8"))
        for file in (card.path(card.tokenizer), Path(card.clip_source()) / "tokenizer.json")
    )
    steps = {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}}
    for file in told, of_clip:
        if any(file[name] != step for name, step in steps.items()) or file["model"] != told["model"]:
            raise ValueError(f"expected tokenizers of one vocabulary with {steps}: draw_tokens.js knows no others.")
    model = told["model"]
    return {
        "tokenizer": {
            "vocab": model["vocab"],
            "merges": model["merges"],
            "unknown": model["unk_token"],
            "specials": [token["content"] for token in told["added_tokens"]],
        },
        "captions": [row.caption for row in training_rows(card)],
        "words": json.loads(files_in(Path(card.data_source(card.data.train)))[WORDS].read_text("utf-8")),
    }


@torch.no_grad()
def patches(vqgan: VQGAN) -> Tensor:
    """Return the pixels that each code mostly stands for, [code, height, width, 3] from 0 to 255.

    The decoder makes them from the code among its like. The page shows them while the rest of a picture is not drawn.
    """
    side, factor = 2 * AROUND + 1, vqgan.config.factor
    made = []
    for codes in torch.arange(vqgan.config.codebook_size).split(256):
        latents = vqgan.quantize.embed(codes)[:, :, None, None].expand(-1, -1, side, side)
        decoded = torch.nn.functional.pixel_shuffle(
            vqgan.decoder(vqgan.post_quant_conv(latents)), vqgan.config.decoder_shuffle
        )
        start = AROUND * factor
        middle = decoded[:, :, start : start + factor, start : start + factor]
        made.append(((middle.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(made)
