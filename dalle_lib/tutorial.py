"""What the tutorial on fine-tuning GPT-2 with 8-bit Adam needs beside the notebook."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from dalle_lib.machine import autocast_dtype, require_room
from dalle_lib.measurement.workload import checkpoint_layers
from dalle_lib.memory import Training, estimate
from dalle_lib.memory.training import Precision
from dalle_lib.streaming import TEXT, TEXT_MODEL, TextStream

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What is trained, on what, and how much of it."""

    name: str
    model: str
    """On the Hub, or a folder."""
    source: str
    """A data set on the Hub, or a folder with C4's layout."""
    length: int
    """Tokens of a block."""
    batch: int
    """Blocks that one training step takes; memory is measured with one."""
    steps: int
    curve_batch: int
    """Blocks of a step of the short trainings whose losses are compared."""
    lr: float
    device: str
    precision: Precision
    """What autocast computes in."""
    cost: str
    """Time and download of the whole notebook."""
    why: str
    """Why this one was chosen."""

    def folder(self) -> Path:
        """Return the folder of the model, after fetching it from the Hub if it is not here.

        Raises NotEnoughRoom before a download that would not fit.
        """
        if Path(self.model).is_dir():
            return Path(self.model)
        from huggingface_hub import snapshot_download, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_CACHE

        size = 4 * estimate("gpt2-large").parameters
        is_here = isinstance(try_to_load_from_cache(self.model, "model.safetensors"), str)
        require_room(self.model, download=0 if is_here else size, load=size, folder=HF_HUB_CACHE)
        return Path(snapshot_download(self.model, allow_patterns=["*.json", "*.txt", "model.safetensors"]))

    def describe(self) -> str:
        """Return what was chosen and why, for a person."""
        model = "the kit's small GPT-2" if Path(self.model) == TEXT_MODEL else self.model
        source = "the kit's text about Python" if Path(self.source) == TEXT else self.source
        return (
            f"PRESET {self.name}: {self.why}\n"
            f"{model} on {self.device}, blocks of {self.length} tokens of {source}, autocast in {self.precision}.\n"
            f"{self.cost}"
        )


def choose_preset(name: str = "auto") -> Preset:
    """Return the preset `tiny` or `gpt2-large`; `auto` takes the larger one where it fits.

    Raises ValueError for another name, or if `gpt2-large` is asked for where there is no GPU that bitsandbytes can use.
    """
    if name not in ("auto", "tiny", "gpt2-large"):
        raise ValueError(f"expected PRESET auto, tiny or gpt2-large, but it is {name!r}.")
    problem = _what_is_missing()
    if name == "gpt2-large" and problem:
        raise ValueError(f"gpt2-large was asked for, but {problem}: take auto or tiny.")
    if name == "tiny" or problem:
        return Preset(
            name="tiny", model=str(TEXT_MODEL), source=str(TEXT), length=256, batch=8, steps=25, curve_batch=4,
            lr=1e-3, device="cpu", precision="bf16",
            cost="About 3 minutes on two processor cores; nothing is downloaded.",
            why=problem or "you asked for it.",
        )  # fmt: skip
    return Preset(
        name="gpt2-large", model="openai-community/gpt2-large", source="allenai/c4", length=1024, batch=4, steps=60,
        curve_batch=1, lr=2e-5, device="cuda",
        precision="bf16" if autocast_dtype("cuda") == torch.bfloat16 else "fp16",
        cost="By its arithmetic under 20 minutes on a T4, not measured yet; 3.3 GB and some MB of C4 are downloaded.",
        why=f"{torch.cuda.get_device_name()} has room for it.",
    )  # fmt: skip


def _what_is_missing() -> str:
    """Return why GPT-2 Large cannot be trained here, or nothing if it can."""
    if not torch.cuda.is_available():
        return "there is no GPU here"
    needed = estimate("gpt2-large", Training(optimizer="adamw8bit", checkpointing=True, precision="fp16"))
    need = needed.gpu_range[1] + 2 * needed.gpu["optimizer state"]  # loading a checkpoint holds its copies for a moment
    if (free := torch.cuda.mem_get_info()[0]) < need:
        return f"GPT-2 Large needs {need / _GIB:.1f} GiB, and this GPU has {free / _GIB:.1f} free"
    import bitsandbytes as bnb

    try:
        bnb.functional.quantize_blockwise(torch.zeros(256, device="cuda"))
    except RuntimeError as error:
        return f"bitsandbytes cannot use this GPU ({error})"
    return ""


def load_model(folder: str | Path, preset: Preset) -> nn.Module:
    """Return a pretrained GPT-2 in float32 on the preset's device, ready to train as it was measured: no dropout."""
    from transformers import AutoModelForCausalLM

    no_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **no_dropout).to(preset.device)
    model.loss_type = "ForCausalLM"  # as it is anyway; transformers warns where nobody says so
    if preset.device == "cuda":
        checkpoint_layers(model)
    return model.train()


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Int64[Tensor, "batch length"]]) -> float:
    """Return the mean loss of `model` over batches of equal size, in nats per token."""
    device = next(model.parameters()).device
    model.eval()
    losses = [model(input_ids=ids.to(device), labels=ids.to(device), use_cache=False).loss for ids in batches]
    model.train()
    return float(torch.stack(losses).mean())


@torch.no_grad()
def continuations(model: nn.Module, tokenizer, prompts: list[str], seed: int = 0, tokens: int = 40) -> list[str]:
    """Return each prompt with what the model goes on to write; the same seed gives the same text."""
    model.eval()
    texts = []
    for prompt in prompts:
        torch.manual_seed(seed)
        ids = tokenizer(prompt, return_tensors="pt").to(model.device)
        settings = {"do_sample": True, "top_k": 40, "temperature": 0.8, "pad_token_id": tokenizer.eos_token_id}
        out = model.generate(**ids, max_new_tokens=tokens, **settings)
        texts.append(tokenizer.decode(out[0], skip_special_tokens=True))
    model.train()
    return texts


def save_checkpoint(folder: str | Path, model, optimizer, scaler, stream: TextStream) -> None:
    """Write all that is needed to go on: weights, statistics, the loss's scale, and where in the text we are."""
    model.save_pretrained(folder)
    torch.save(optimizer.state_dict(), Path(folder) / "optimizer.pt")
    place = {"stream": stream.state_dict(), "scaler": scaler.state_dict()}
    (Path(folder) / "place.json").write_text(json.dumps(place))


def load_checkpoint(folder: str | Path, optimizer, scaler, stream: TextStream) -> None:
    """Put back what `save_checkpoint` wrote, but for the model, which `load_model` reads from the same folder."""
    state = torch.load(Path(folder) / "optimizer.pt", map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state)
    place = json.loads((Path(folder) / "place.json").read_text())
    stream.load_state_dict(place["stream"])
    scaler.load_state_dict(place["scaler"])


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of every bit of the weights and the statistics."""
    digest = hashlib.sha256()
    states = [state[name] for state in optimizer.state.values() for name in sorted(state)]
    for tensor in [*model.parameters(), *[value for value in states if isinstance(value, Tensor)]]:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
