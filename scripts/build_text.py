"""Build the embedded text: a small GPT-2 trained on texts about databases, and shards in C4's layout about Python.

    pip install beautifulsoup4
    python scripts/build_text.py --help

Run the stages in this order, as each uses the results of those before it: text, tokenizer, train, report. `text`
downloads three Debian packages with apt-get and installs nothing. Everything random has a seed. All stages take about
half an hour on one core.
"""

import gzip
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from text_pages import DATABASES, PYTHON, read_records
from torch import Tensor
from tqdm import trange

ASSETS = Path("dalle_lib/assets/text")
WORK = Path("build/text")
END = "<|endoftext|>"
SHARDS = 4
VOCAB = 4096


def is_held_out(record: dict, share: int = 16) -> bool:
    """Return whether the record's page, as a whole, is kept out of training: one page of `share` is."""
    return int(hashlib.sha256(record["url"].encode()).hexdigest(), 16) % share == 0


def write_shard(file: Path, records: list[dict]) -> None:
    """Write records in C4's format, compressed lines of JSON; the bytes are the same each time."""
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    file.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


@dataclass
class Text:
    """Extract the records of both subjects: shards about Python for the kit, all others into a working folder."""

    out: Path = ASSETS
    work: Path = WORK

    def run(self) -> None:
        """Write the shards, and databases-*.json and python-*.json for the other stages."""
        (self.out / "en").mkdir(parents=True, exist_ok=True)
        for name, sources in ("databases", DATABASES), ("python", PYTHON):
            records = read_records(sources, self.work)
            random.Random(0).shuffle(records)
            train = [record for record in records if not is_held_out(record)]
            held_out = [record for record in records if is_held_out(record)]
            if name == "python":
                for shard in range(SHARDS):
                    file = self.out / f"en/c4-train.{shard:05}-of-{SHARDS:05}.json.gz"
                    write_shard(file, train[shard::SHARDS])
                write_shard(self.out / "en/c4-validation.00000-of-00001.json.gz", held_out)
            for split, part in ("train", train), ("held_out", held_out):
                (self.work / f"{name}-{split}.json").write_text(json.dumps(part), encoding="utf-8")
                print(f"{name}, {split}: {len(part)} records, {sum(len(r['text']) for r in part):,} characters")


def texts_of(work: Path, name: str) -> list[str]:
    """Return the texts that the stage `text` has written."""
    return [record["text"] for record in json.loads((work / f"{name}.json").read_text(encoding="utf-8"))]


@dataclass
class MakeTokenizer:
    """Train a byte-level BPE tokenizer on the training texts of both subjects."""

    out: Path = ASSETS
    work: Path = WORK

    def run(self) -> None:
        """Write gpt2/tokenizer.json and its settings."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import GPT2TokenizerFast

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        texts = texts_of(self.work, "databases-train") + texts_of(self.work, "python-train")
        tokenizer.train_from_iterator(texts, trainer)
        ends = {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": END}
        fast = GPT2TokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **ends)
        fast.save_pretrained(self.out / "gpt2")
        sample = texts[0]
        assert fast.decode(fast(sample)["input_ids"]) == sample, "decoding must give the text back"
        print(f"{len(fast)} ids, {len(sample) / len(fast(sample)['input_ids']):.2f} characters per text token")


def packed(work: Path, name: str, tokenizer, length: int) -> Tensor:
    """Return the ids of all texts, joined by the end token, as [blocks, length]."""
    rows = tokenizer(texts_of(work, name), verbose=False)["input_ids"]
    ids = [i for row in rows for i in [*row, tokenizer.eos_token_id]]
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


@torch.no_grad()
def mean_loss(model, blocks: Tensor) -> float:
    """Return the mean loss in nats per text token."""
    model.eval()
    losses = [model(input_ids=part, labels=part).loss.item() * len(part) for part in blocks.split(8)]
    model.train()
    return sum(losses) / len(blocks)


@dataclass
class Train:
    """Train the small GPT-2 from random weights on the texts about databases."""

    out: Path = ASSETS
    work: Path = WORK
    steps: int = 1500
    batch_size: int = 8
    length: int = 256
    lr: float = 2e-3
    seed: int = 0

    def run(self) -> None:
        """Write gpt2/model.safetensors and its settings."""
        from transformers import AutoTokenizer, GenerationConfig, GPT2Config, GPT2LMHeadModel

        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        tokenizer = AutoTokenizer.from_pretrained(self.out / "gpt2")
        end = tokenizer.eos_token_id
        config = GPT2Config(
            vocab_size=len(tokenizer), n_embd=192, n_layer=4, n_head=3, n_positions=512,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=True,
            bos_token_id=end, eos_token_id=end,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # transformers warns if nobody sets it
        # Only text generation needs a padding token: in the model's config it causes a warning at each end token.
        model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
        blocks = packed(self.work, "databases-train", tokenizer, self.length)
        held_out = packed(self.work, "databases-held_out", tokenizer, self.length)[:64]
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {blocks.numel():,} text tokens")
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.95), fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_lr)
        started, curve, order = time.monotonic(), [], self._order(len(blocks))
        for step in (progress := trange(1, self.steps + 1, desc="gpt2", mininterval=10)):
            batch = blocks[[next(order) for _ in range(self.batch_size)]]
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if step % 100 == 0 or step == self.steps:
                curve.append((step, loss.item(), mean_loss(model, held_out)))
                progress.set_postfix(train=curve[-1][1], held_out=curve[-1][2])
                (self.work / "curve.json").write_text(json.dumps([time.monotonic() - started, curve]))
                self._save(model)

    def _share_of_lr(self, step: int) -> float:
        warm = self.steps // 20
        if step < warm:
            return (step + 1) / warm
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (self.steps - warm)))

    def _order(self, count: int) -> Iterator[int]:
        random = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(count, generator=random).tolist()

    def _save(self, model) -> None:
        """Save the weights in half precision with a config of float32, so that they are loaded in float32."""
        from safetensors.torch import save_file

        model.config.dtype = torch.float32
        model.config.architectures = [type(model).__name__]
        folder = self.out / "gpt2"
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        weights = {name: w.half().contiguous() for name, w in model.state_dict().items() if name != "lm_head.weight"}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@dataclass
class Report:
    """Print the losses of the saved model on both subjects, texts that it writes, and the sizes of the files."""

    out: Path = ASSETS
    work: Path = WORK
    prompts: tuple[str, ...] = ("The module", "This function returns", "If you want to")

    def run(self) -> None:
        """Print the report, and make all files readable for everyone."""
        from transformers import AutoTokenizer, GPT2LMHeadModel

        torch.set_num_threads(1)
        tokenizer = AutoTokenizer.from_pretrained(self.out / "gpt2")
        model = GPT2LMHeadModel.from_pretrained(self.out / "gpt2")
        model.loss_type = "ForCausalLM"
        for name in "databases-train", "databases-held_out", "python-train", "python-held_out":
            print(f"{name}: {mean_loss(model, packed(self.work, name, tokenizer, 256)[:128]):.3f} nats per text token")
        torch.manual_seed(0)
        for prompt in self.prompts:
            ids = tokenizer(prompt, return_tensors="pt")
            written = model.generate(**ids, do_sample=True, top_k=40, temperature=0.8, max_new_tokens=50)
            print("-", tokenizer.decode(written[0]))
        for file in sorted(self.out.rglob("*")):
            if file.is_file():
                file.chmod(0o644)
                print(f"{file.stat().st_size:>10,} {file}")


if __name__ == "__main__":
    stages = {"text": Text, "tokenizer": MakeTokenizer, "train": Train, "report": Report}
    tyro.extras.subcommand_cli_from_dict(stages, description=__doc__).run()
