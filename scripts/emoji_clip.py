"""The stage `clip` of build_emoji.py: a small CLIP, which tells how well a picture fits a caption."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from emoji_data import ASSETS, KINDS, LARGE, single_thread
from emoji_pictures import Picture, pixels_of
from torch import Tensor
from tqdm import trange
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from dalle_lib.optimizer import linear_warmup_schedule
from dalle_lib.rerank import CLIPRanker
from dalle_lib.streaming.tokenizer import PADDING_ID
from dalle_lib.vqgan import load_vqgan


@dataclass
class Clip:
    """Train a small CLIP, for both runs, on the large set's pictures and on what each VQ-GAN makes of their codes.

    The one in the kit had 3,500 steps on pictures whose hues were turned alike, 1,500 at 5e-4 on others, and 1,500 more
    on those of today.
    """

    out: Path = ASSETS
    steps: int = 3500
    batch_size: int = 128
    lr: float = 1e-3
    start: Path | None = None
    """Go on with this CLIP."""

    def run(self) -> None:
        """Write the folder clip, as transformers keeps a CLIP."""
        pictures = KINDS[LARGE].pictures()
        pixels, versions = pixels_of(pictures), []
        for kind in KINDS.values():
            vqgan = load_vqgan(self.out / kind.vqgan_file)
            versions.append(vqgan.decode(vqgan.encode(pixels)))
        single_thread()
        model = new_model()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(self.out / KINDS[LARGE].tokenizer_file),
            eos_token="</s>",
            pad_token="</s>",
            unk_token="<unk>",
        )
        processor = CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
        if self.start is not None:
            model = CLIPModel.from_pretrained(self.start, dtype=torch.float32).train()
        self._train(model, tokenizer, processor, pictures, [pixels, *versions])
        for part in model.half(), tokenizer, processor:
            part.save_pretrained(self.out / "clip")
        print(json.dumps(retrieval(CLIPRanker(self.out / "clip"), pictures), indent=1))

    def _train(self, model, tokenizer, processor, pictures: list[Picture], versions: list[Tensor]) -> None:
        """Train `model` on the pictures that are not held out, each step on one of the `versions` of their pixels."""
        seen: dict[str, list[int]] = {}
        for place, picture in enumerate(pictures):
            if not picture.held_out:
                seen.setdefault(picture.name, []).append(place)
        captions = [picture.caption for picture in pictures]
        ids = tokenizer(
            captions, padding="max_length", max_length=KINDS[LARGE].model.text_length + 1, return_tensors="pt"
        )
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
        """Return the places of a batch.

        Half of it is all pictures of a few emoji, so that the model must tell their colours apart.
        """
        groups = list(seen.values())
        whole = [place for i in torch.randperm(len(groups))[: self.batch_size].tolist() for place in groups[i]]
        single = torch.tensor([place for group in groups for place in group])
        single = single[torch.randperm(len(single))[: self.batch_size // 2]]
        return torch.cat([torch.tensor(whole[: self.batch_size // 2]), single]).unique()


def new_model() -> CLIPModel:
    """Return a CLIP with random weights, for the runs' captions and pictures of 64x64."""
    ends = {"eos_token_id": PADDING_ID, "pad_token_id": PADDING_ID, "bos_token_id": 0}
    text = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 3, "num_attention_heads": 5}
    sizes = {"vocab_size": KINDS[LARGE].model.text_vocab, "max_position_embeddings": KINDS[LARGE].model.text_length + 1}
    return CLIPModel(
        CLIPConfig(
            text_config=text | sizes | ends | {"projection_dim": 128},
            vision_config=vision | {"image_size": 64, "patch_size": 16, "projection_dim": 128},
            projection_dim=128,
        )
    )


def retrieval(ranker: CLIPRanker, pictures: list[Picture]) -> dict[str, float]:
    """Return how often a caption's nearest picture is its own, among its kind and among all, from 0 to 1."""
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
