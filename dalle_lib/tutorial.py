"""The functions of the tutorial notebook on fine-tuning GPT-2 with 8-bit Adam."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from dalle_lib.machine import autocast_dtype, few_threads, require_room
from dalle_lib.measurement.workload import checkpoint_layers, load_bitsandbytes
from dalle_lib.memory import Training, estimate
from dalle_lib.memory.training import Precision
from dalle_lib.streaming import TEXT, TEXT_MODEL, TextStream, stream_text

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Which model the tutorial trains, on which text, for how long and on which device."""

    name: str
    model: str
    """The name of a model on the Hub, or a folder."""
    source: str
    """The name of a data set on the Hub, or a folder with the layout of C4."""
    length: int
    """Text tokens of a block."""
    batch: int
    """Blocks of a training step; memory is measured with one block."""
    steps: int
    """Training steps."""
    lr: float
    """Learning rate."""
    device: str
    """`cpu` or `cuda`."""
    precision: Precision
    """The type in which autocast computes."""
    cost: str
    """Time and downloads of the whole notebook, as a sentence."""
    why: str
    """Why this preset was chosen."""

    def folder(self) -> Path:
        """Return the folder of the model, which is downloaded from the Hub if it is not here.

        Raises NotEnoughRoom before a download that does not fit.
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
        """Return three lines of text: the preset and why it was chosen, what it trains, and what it costs."""
        model = "the kit's small GPT-2" if Path(self.model) == TEXT_MODEL else self.model
        source = "the kit's text about Python" if Path(self.source) == TEXT else self.source
        return (
            f"PRESET {self.name}: {self.why}\n"
            f"{model} on {self.device}, blocks of {self.length} text tokens of {source}; autocast: {self.precision}.\n"
            f"{self.cost}"
        )


def choose_preset(name: str = "auto") -> Preset:
    """Return the preset `tiny` or `gpt2-large`; `auto` means the larger one that fits this machine.

    Raises ValueError for another name, and for `gpt2-large` on a machine whose GPU is missing, too small or not usable
    by bitsandbytes.
    """
    if name not in ("auto", "tiny", "gpt2-large"):
        raise ValueError(f"PRESET must be auto, tiny or gpt2-large, but is {name!r}.")
    problem = _what_is_missing()
    if name == "gpt2-large" and problem:
        raise ValueError(f"PRESET is gpt2-large, but {problem}: choose auto or tiny.")
    if name == "tiny" or problem:
        return Preset(
            name="tiny", model=str(TEXT_MODEL), source=str(TEXT), length=256, batch=8, steps=25,
            lr=1e-3, device="cpu", precision="bf16",
            cost="It takes about 2 minutes on two processor cores and downloads nothing.",
            why=f"{problem or 'you asked for it'}.",
        )  # fmt: skip
    return Preset(
        name="gpt2-large", model="openai-community/gpt2-large", source="allenai/c4", length=1024, batch=4, steps=60,
        lr=2e-5, device="cuda",
        precision="bf16" if autocast_dtype("cuda") == torch.bfloat16 else "fp16",
        cost="It downloads 3.3 GB and some MB of C4. On a T4 it should take under 20 minutes (only calculated).",
        why=f"{torch.cuda.get_device_name()} has room for it.",
    )  # fmt: skip


def _what_is_missing() -> str:
    """Return why GPT-2 Large cannot be trained on this machine; an empty text if it can."""
    if not torch.cuda.is_available():
        return "there is no GPU here"
    needed = estimate("gpt2-large", Training(optimizer="adamw8bit", checkpointing=True, precision="fp16"))
    need = needed.gpu_range[1] + 2 * needed.gpu["optimizer state"]  # loading a checkpoint holds a second copy of it
    if (free := torch.cuda.mem_get_info()[0]) < need:
        return f"GPT-2 Large needs {need / _GIB:.1f} GiB, and this GPU has {free / _GIB:.1f} free"
    try:
        load_bitsandbytes().functional.quantize_blockwise(torch.zeros(256, device="cuda"))
    except RuntimeError as error:
        return f"bitsandbytes cannot use this GPU ({error})"
    return ""


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep transformers' progress bars away, which a saved page shows as if nothing had been done."""
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def load_gpt2(folder: str | Path, preset: Preset) -> nn.Module:
    """Return the pretrained GPT-2 of `folder`, ready to train: float32, no dropout, on the preset's device.

    On a GPU it is checkpointed, as it was when its memory was measured.
    """
    from transformers import AutoModelForCausalLM

    no_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    with _without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **no_dropout).to(preset.device)
    model.loss_type = "ForCausalLM"  # this is the default, but transformers warns if nobody sets it
    if preset.device == "cuda":
        checkpoint_layers(model)
    return model.train()


class ByHand:
    """An optimizer made of the function `adam_step`, whose statistics `store` writes and reads back after each step.

    `adam_step(weight, gradient, m, r, step)` returns a weight after a step, and its two statistics. `store(values, of)`
    returns what is left of a statistic; `of` is "m" or "r".
    """

    def __init__(self, model: nn.Module, adam_step: Callable, store: Callable[[Tensor, str], Tensor]) -> None:
        self.parameters, self.adam_step, self.store = dict(model.named_parameters()), adam_step, store
        self.steps = 0
        self.statistics = {name: (torch.zeros_like(p),) * 2 for name, p in self.parameters.items()}
        """The two statistics, m and r, of each parameter by its name."""

    @torch.no_grad()
    def step(self) -> None:
        """Take one step from the gradients that the parameters have."""
        self.steps += 1
        for name, parameter in self.parameters.items():
            weight, m, r = self.adam_step(parameter, parameter.grad, *self.statistics[name], self.steps)
            parameter.copy_(weight)
            self.statistics[name] = self.store(m, "m"), self.store(r, "r")


class ShortTraining(NamedTuple):
    """A training of some steps: its losses, and its model and optimizer after them, with the last gradients."""

    losses: list[float]
    model: nn.Module
    optimizer: ByHand | torch.optim.Optimizer


def short_training(make_optimizer: Callable[[nn.Module], object], steps: int = 7, batch: int = 2) -> ShortTraining:
    """Return a training of the kit's small GPT-2 on the processor: all start from the same weights and read the same.

    `make_optimizer` gets the model. `batch` is the number of blocks, of 256 text tokens each, in a step.
    """
    from transformers import AutoTokenizer

    blocks = stream_text(TEXT, AutoTokenizer.from_pretrained(TEXT_MODEL), length=256)
    model, losses = load_gpt2(TEXT_MODEL, choose_preset("tiny")), []
    optimizer = make_optimizer(model)
    with few_threads(model):
        for ids in islice(blocks.batches(batch), steps):
            model.zero_grad()
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return ShortTraining(losses, model, optimizer)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Int64[Tensor, "batch length"]]) -> float:
    """Return the mean loss of `model` over `batches` of equal size, in nats per text token."""
    device = next(model.parameters()).device
    model.eval()
    losses = [model(input_ids=ids.to(device), labels=ids.to(device), use_cache=False).loss for ids in batches]
    model.train()
    return float(torch.stack(losses).mean())


@torch.no_grad()
def continuations(model: nn.Module, tokenizer, prompts: list[str], seed: int = 0, tokens: int = 40) -> list[str]:
    """Return each prompt continued by `tokens` text tokens of the model; the same seed gives the same text."""
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
    """Save a training in `folder`: weights, the optimizer's statistics, the loss scale and the place in the text."""
    with _without_progress_bars():
        model.save_pretrained(folder)
    torch.save(optimizer.state_dict(), Path(folder) / "optimizer.pt")
    place = {"stream": stream.state_dict(), "scaler": scaler.state_dict()}
    (Path(folder) / "place.json").write_text(json.dumps(place))


def load_checkpoint(folder: str | Path, optimizer, scaler, stream: TextStream) -> None:
    """Load the optimizer, the scaler and the stream of `save_checkpoint`; `load_gpt2` loads the model."""
    state = torch.load(Path(folder) / "optimizer.pt", map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state)
    place = json.loads((Path(folder) / "place.json").read_text())
    stream.load_state_dict(place["stream"])
    scaler.load_state_dict(place["scaler"])


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of all bits of the weights and of the optimizer's statistics."""
    digest = hashlib.sha256()
    states = [state[name] for state in optimizer.state.values() for name in sorted(state)]
    for tensor in [*model.parameters(), *[value for value in states if isinstance(value, Tensor)]]:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
