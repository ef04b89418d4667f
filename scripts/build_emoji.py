"""Build the embedded runs: `emoji` (large set, finished model) and `emoji-mini` (small set, young model to train on).

    apt-get install fonts-noto-color-emoji unicode-data
    pip install scikit-learn
    python scripts/build_emoji.py --help

The stages build on each other, in this order: vqgan, data, clip, young, full, report. All is seeded. About three hours
on one core.
"""

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import torch
import tyro
from emoji_pictures import Picture, make_pictures, more_pictures
from sklearn.cluster import KMeans
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from dalle_lib.checkpoint import save_model
from dalle_lib.dashboard.charts import to_png
from dalle_lib.evaluation import Gallery
from dalle_lib.files import sha256_of
from dalle_lib.inference import TextToImage, contact_sheet
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import AveragingCard, DataCard, OptimizerCard, RecipeCard, RunCard, batches_of, file_card
from dalle_lib.streaming import CodeRow, CodesFormat, read_codes, write_codes
from dalle_lib.streaming.tokenizer import PADDING_ID
from dalle_lib.vqgan import VQGAN, VQGANConfig, load_vqgan, save_vqgan

ASSETS = Path("dalle_lib/assets")
LARGE, SMALL = "emoji", "emoji-mini"
SIZES = ModelConfig.emoji()
SMALL_SET_WEIGHT = 2.0
"""How much a picture of the small set counts in the codebook, against 1."""


def pixels_of(pictures: list[Picture]) -> Tensor:
    """Return the pictures as [pictures, 64, 64, 3] bytes."""
    return torch.from_numpy(np.stack([picture.pixels for picture in pictures]))


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the mean over pictures of the peak signal-to-noise ratio in dB."""
    error = (a.float() - b.float()).div(255).square().mean((1, 2, 3))
    return float(-10 * error.log10().mean())


def single_thread() -> None:
    """Compute with one thread: sums in one order, whatever the machine."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@dataclass
class Vqgan:
    """Codebook by k-means over 8x8 patches, then the decoder by gradient descent on the codes that it gives.

    The one in the kit had 5000 steps, then 2000 and 1500 with smaller rates and weights, each time from `start`.
    """

    out: Path = ASSETS
    steps: int = 5000
    batch_size: int = 16
    lr: float = 3e-3
    decoder_small_set_weight: float = 6.0
    """How much more often than others the pictures of the small set are shown to the decoder."""
    start: Path | None = None
    """Go on with the decoder of this VQ-GAN, for codes whose patches are the same there."""

    def run(self) -> None:
        """Write vqgan.safetensors."""
        pictures = make_pictures()
        pixels, small = pixels_of(pictures), torch.tensor([picture.small for picture in pictures])
        vqgan = VQGAN(VQGANConfig.emoji())
        set_codebook(vqgan, make_codebook(pixels, torch.where(small, SMALL_SET_WEIGHT, 1.0), SIZES.image_vocab))
        single_thread()
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
    """Return the k-means centres [size, 192] of all patches, values from -1 to 1, common ones counted by a root."""
    patches = F.pixel_unshuffle(pixels.permute(0, 3, 1, 2).float() / 255, 8).flatten(2).transpose(1, 2)
    distinct, place = torch.unique(patches.flatten(0, 1), dim=0, return_inverse=True)
    counts = torch.zeros(len(distinct)).scatter_add_(0, place, weights.repeat_interleave(patches.shape[1]))
    kmeans = KMeans(size, random_state=0, init="random", n_init=1, max_iter=20)
    centres = kmeans.fit(distinct.numpy(), sample_weight=counts.sqrt().numpy()).cluster_centers_
    return torch.from_numpy(centres).half().float() * 2 - 1


def set_codebook(vqgan: VQGAN, centres: Tensor) -> None:
    """Make the code of a patch that of its nearest centre, and the centre what the decoder begins with.

    2 c.x - |c|^2 is largest for the centre c that is nearest to x.
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
    """Take over the decoder, and what it made of the codes that mean the same in both."""
    vqgan.decoder.load_state_dict(earlier.decoder.state_dict())
    vqgan.post_quant_conv.load_state_dict(earlier.post_quant_conv.state_dict())
    same = (vqgan.quantize.proj.weight - earlier.quantize.proj.weight).abs().amax((1, 2, 3)) < 0.1
    vqgan.quantize.embed.weight[same] = earlier.quantize.embed.weight[same]


def start_as_patches(decoder: nn.Module) -> None:
    """Make the decoder pass its input on, and its residual layers add nothing: from there it learns 2.5x faster."""
    for name, module in decoder.named_modules():
        if name.endswith(("conv2", "proj_out")):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    for conv in decoder.conv_in, decoder.conv_out:
        nn.init.dirac_(conv.weight)
        nn.init.zeros_(conv.bias)


@dataclass
class Data:
    """Tokenizer, codes and captions of both sets, and their run cards, still without checkpoints."""

    out: Path = ASSETS

    def run(self) -> None:
        """Write tokenizer.json, the cards, and a folder of codes for each split of each set."""
        pictures = make_pictures()
        vqgan = load_vqgan(self.out / "vqgan.safetensors")
        codes = vqgan.encode(pixels_of(pictures))
        codes_format = CodesFormat(
            grid=SIZES.grid, codebook_size=SIZES.image_vocab, vqgan_sha256=sha256_of(self.out / "vqgan.safetensors")
        )
        tokenizer = make_tokenizer([p.caption for p in pictures if not p.held_out], SIZES.text_vocab)
        tokenizer.save(str(self.out / "tokenizer.json"))
        longest = max(len(tokenizer.encode(p.caption, add_special_tokens=False).ids) for p in pictures)
        print(f"tokenizer: {tokenizer.get_vocab_size()} ids, longest caption {longest} tokens")
        for name in LARGE, SMALL:
            for split, held_out in ("train", False), ("held_out", True):
                rows = [
                    CodeRow(picture.caption, row.numpy())
                    for picture, row in zip(pictures, codes, strict=True)
                    if picture.held_out == held_out and (picture.small or name == LARGE)
                ]
                folder = self.out / name / split
                folder.mkdir(parents=True, exist_ok=True)
                write_codes(folder / "codes.parquet", rows, codes_format)
                print(f"{name}/{split}: {len(rows)} pictures")
            make_card(self.out, name, codes_format).save(self.out, f"{name}.json")


def make_tokenizer(captions: list[str], vocab: int) -> Tokenizer:
    """Return a byte-pair tokenizer of lower-case words; ids 0, 1, 2 are "no caption", end and padding, unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["<null>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(captions, trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", PADDING_ID)])
    return tokenizer


def make_card(out: Path, name: str, codes_format: CodesFormat) -> RunCard:
    """Return the card of one run."""
    return RunCard(
        name=name,
        model=SIZES,
        data=DataCard(train=f"{name}/train", held_out=f"{name}/held_out", format=codes_format),
        tokenizer=file_card(out / "tokenizer.json"),
        vqgan=file_card(out / "vqgan.safetensors"),
        clip="clip",
        optimizer=OptimizerCard(lr=1e-2, warmup_epochs=5, total_epochs=60),
        averaging=AveragingCard(target_batch_size=192, matchmaking_s=3, timeout_s=20),
        recipe=RecipeCard(code_corruption=0.15, caption_dropout=0.1),
    ).in_folder(out)


@dataclass
class Clip:
    """A small CLIP with the runs' tokenizer, trained on true pictures and on what the VQ-GAN makes of their codes.

    The one in the kit had 1200 steps on the large set alone, then 2860 with `more_pictures` in three parts.
    """

    out: Path = ASSETS
    steps: int = 3500
    batch_size: int = 128
    lr: float = 1e-3
    start: Path | None = None
    """Go on with this CLIP."""

    def run(self) -> None:
        """Write the folder clip, as transformers keeps a CLIP."""
        from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        pictures = make_pictures()
        shown = pictures + more_pictures()
        vqgan, pixels = load_vqgan(self.out / "vqgan.safetensors"), pixels_of(shown)
        single_thread()
        ends = {"eos_token_id": PADDING_ID, "pad_token_id": PADDING_ID, "bos_token_id": 0}
        text = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
        vision = {"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 3, "num_attention_heads": 5}
        sizes = {"vocab_size": SIZES.text_vocab, "max_position_embeddings": SIZES.text_length + 1}
        model = CLIPModel(
            CLIPConfig(
                text_config=text | sizes | ends | {"projection_dim": 128},
                vision_config=vision | {"image_size": 64, "patch_size": 16, "projection_dim": 128},
                projection_dim=128,
            )
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(self.out / "tokenizer.json"), eos_token="</s>", pad_token="</s>", unk_token="<unk>"
        )
        processor = CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
        if self.start is not None:
            model = CLIPModel.from_pretrained(self.start, dtype=torch.float32).train()
        self._train(model, tokenizer, processor, shown, [pixels, vqgan.decode(vqgan.encode(pixels))])
        for part in model.half(), tokenizer, processor:
            part.save_pretrained(self.out / "clip")
        print(json.dumps(retrieval(CLIPRanker(self.out / "clip"), pictures), indent=1))

    def _train(self, model, tokenizer, processor, pictures: list[Picture], versions: list[Tensor]) -> None:
        seen: dict[str, list[int]] = {}
        for place, picture in enumerate(pictures):
            if not picture.held_out:
                seen.setdefault(picture.name, []).append(place)
        captions = [picture.caption for picture in pictures]
        ids = tokenizer(captions, padding="max_length", max_length=SIZES.text_length + 1, return_tensors="pt")
        mean, std = torch.tensor(processor.image_mean), torch.tensor(processor.image_std)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.05, fused=True)
        schedule = linear_warmup_schedule(optimizer, self.steps // 20, self.steps)
        for step in (progress := trange(self.steps, desc="clip")):
            shown = self._choose(seen)
            version = torch.randint(len(versions), ())
            pixels = ((versions[version][shown].float() / 255 - mean) / std).permute(0, 3, 1, 2)
            output = model(
                input_ids=ids["input_ids"][shown],
                attention_mask=ids["attention_mask"][shown],
                pixel_values=pixels,
                return_loss=True,
            )
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                progress.set_postfix(loss=output.loss.item())

    def _choose(self, seen: dict[str, list[int]]) -> Tensor:
        """Return the places of a batch: half of it all pictures of a few emoji, so that colours must be told apart."""
        groups = list(seen.values())
        whole = [place for i in torch.randperm(len(groups))[: self.batch_size].tolist() for place in groups[i]]
        single = torch.tensor([place for group in groups for place in group])
        single = single[torch.randperm(len(single))[: self.batch_size // 2]]
        return torch.cat([torch.tensor(whole[: self.batch_size // 2]), single]).unique()


def retrieval(ranker: CLIPRanker, pictures: list[Picture]) -> dict[str, float]:
    """Return how often a caption's nearest picture is its own, among pictures of its kind and among all."""
    captions = ranker.embed_captions([picture.caption for picture in pictures])
    similarity = captions @ ranker.embed_pictures(pixels_of(pictures)).T
    kinds = {
        "plain": [picture.kind == "plain" for picture in pictures],
        "seen": [not picture.held_out for picture in pictures],
        "unseen": [picture.held_out for picture in pictures],
    }
    figures = {}
    for kind, chosen in kinds.items():
        places = torch.tensor(chosen).nonzero().flatten()
        among_kind = similarity[places][:, places].argmax(1) == torch.arange(len(places))
        figures[f"{kind} among {kind}"] = float(among_kind.float().mean())
        figures[f"{kind} among all"] = float((similarity[places].argmax(1) == places).float().mean())
    return figures


@dataclass
class Model:
    """A model trained in one process, by the run's own recipe."""

    name: str
    steps: int
    schedule_steps: int
    out: Path = ASSETS
    batch_size: int = 32
    report: Path | None = None
    """Where the loss curve goes, as JSON."""

    def run(self) -> None:
        """Write the run's checkpoint and name it in the card."""
        single_thread()
        card = RunCard.load(self.out / f"{self.name}.json")
        checkpoint = self.out / f"{self.name}.safetensors"
        model = DALLE(card.model)
        optimizer = LAMB8bit(parameter_groups(model, card.optimizer.weight_decay), lr=card.optimizer.lr, bits=32)
        schedule = linear_warmup_schedule(optimizer, max(10, self.steps // 50), self.schedule_steps)
        batches = batches_of(card, self.batch_size, card.seed)
        curve, started = [], time.process_time()
        for step, batch in zip(trange(1, self.steps + 1, desc=self.name), batches, strict=False):
            output = model(batch.text, batch.codes, batch.input_codes)
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            curve.append((step, output.image_loss.item(), output.text_loss.item()))
            if step % 250 == 0 or step == self.steps:
                save_model(checkpoint, model, dtype=torch.float16)
                if self.report is not None:
                    self._write_curve(curve, time.process_time() - started)
        card.with_changes(checkpoint=file_card(checkpoint)).save(self.out, f"{self.name}.json")

    def _write_curve(self, curve: list[tuple], cpu_seconds: float) -> None:
        """Write the losses as means over 20 steps."""
        points = pd.DataFrame(curve, columns=["step", "image_loss", "text_loss"])
        means = points.groupby((points["step"] - 1) // 20).mean().round(4).to_dict("records")
        self.report.write_text(json.dumps({"cpu_seconds": cpu_seconds, "means": means}) + "\n", encoding="utf-8")


@dataclass
class Young(Model):
    """The young model of the small set: it knows backgrounds, and hardly any shape."""

    name: str = SMALL
    steps: int = 85
    schedule_steps: int = 400


@dataclass
class Full(Model):
    """The finished model of the large set."""

    name: str = LARGE
    steps: int = 4000
    schedule_steps: int = 4000
    report: Path | None = field(default=Path("docs/emoji/loss.json"))


@dataclass
class Report:
    """What the finished model can do: a table, the loss curve and a grid of pictures."""

    out: Path = ASSETS
    docs: Path = Path("docs/emoji")
    captions: int = 32
    """Captions of each kind."""
    candidates: int = 32

    def run(self) -> None:
        """Write table.json, loss.png and pictures.png."""
        file = self.out / f"{LARGE}.json"
        draw, card, pictures = TextToImage.from_run(file, device="cpu"), RunCard.load(file), make_pictures()
        splits = (card.data.train, card.data.held_out)
        rows = [
            row for s in splits for row in read_codes(Path(card.data_source(s)) / "codes.parquet", card.data.format)
        ]
        gallery, table, shown = Gallery(rows, draw.vqgan), {}, []
        for name, chosen in self._kinds(pictures).items():
            captions = random.Random(0).sample([p.caption for p in chosen], min(self.captions, len(chosen)))
            drawings = draw(captions, candidates=self.candidates, best=1, top_k=0, seed=0)
            first, best = (
                gallery.nearest(torch.stack([drawing.candidates[number(drawing)] for drawing in drawings]))
                for number in (lambda drawing: 0, lambda drawing: drawing.best[0])
            )
            table[name] = {
                "captions": len(captions),
                "first": sum(a == b for a, b in zip(first, captions, strict=True)) / len(captions),
                f"best of {self.candidates}": sum(a == b for a, b in zip(best, captions, strict=True)) / len(captions),
            }
            shown += [drawing.candidates[drawing.best[0]] for drawing in drawings[:12]]
            print(name, table[name], flush=True)
        by_caption = {picture.caption: picture for picture in pictures}
        originals = pixels_of([by_caption[row.caption] for row in rows])
        small = torch.tensor([by_caption[row.caption].small for row in rows])
        decoded = draw.vqgan.decode(torch.stack([torch.from_numpy(row.codes) for row in rows]))
        figures = {
            "exact": table,
            "decibels": {"small set": psnr(decoded[small], originals[small]), "all": psnr(decoded, originals)},
            "clip": retrieval(draw.ranker, pictures),
        }
        (self.docs / "table.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        contact_sheet(torch.stack(shown), columns=12, side=96).save(self.docs / "pictures.png")
        (self.docs / "loss.png").write_bytes(to_png(self._loss_chart()))

    def _kinds(self, pictures: list[Picture]) -> dict[str, list[Picture]]:
        kinds = {"seen": [p for p in pictures if not p.held_out]}
        for name, kind in ("unseen background", "background"), ("unseen colour", "colour"), ("doubly unseen", "both"):
            kinds[name] = [p for p in pictures if p.held_out and p.kind == kind]
        return kinds

    def _loss_chart(self) -> alt.Chart:
        curve = pd.DataFrame(json.loads((self.docs / "loss.json").read_text(encoding="utf-8"))["means"])
        lines = curve.melt("step", var_name="of", value_name="loss, nats per token")
        return alt.Chart(lines).mark_line().encode(x="step", y="loss, nats per token", color="of")


if __name__ == "__main__":
    stages = {"vqgan": Vqgan, "data": Data, "clip": Clip, "young": Young, "full": Full, "report": Report}
    tyro.extras.subcommand_cli_from_dict(stages, description=__doc__).run()
