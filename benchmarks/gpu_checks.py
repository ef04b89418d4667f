"""What must be right on a GPU, and what an optimizer's step takes there, for `paper_gpu.py`."""

import statistics
import tempfile
from functools import partial
from pathlib import Path

import torch
from gpu_part import Part
from torch import Tensor
from train_step import timed

from dalle_lib.machine import autocast_dtype, check_gpu, free_memory
from dalle_lib.measurement.workload import Offloaded
from dalle_lib.memory import Training
from dalle_lib.memory.presets import describe
from dalle_lib.memory.training import step_bytes
from dalle_lib.model import DALLE, ModelConfig, generate
from dalle_lib.optimizer import LAMB8bit, parameter_groups

SMALL = ModelConfig(
    dim=64, depth=10, heads=2, dim_head=32, text_length=16, text_vocab=100, image_vocab=128, grid=8
)  # fmt: skip
DECAY = 0.045


def checks(part: Part) -> None:
    """Compare the GPU with the processor: losses, gradients, an optimizer's steps, codes drawn, whole drawings."""
    part.attempt("the machine", partial(machine, part))
    for bits in 8, 32:
        part.attempt(f"LAMB in {bits} bits", partial(compare_lamb, part, bits))
    part.attempt("codes drawn", partial(compare_drawing, part))
    reference = gradients(SMALL, "cpu", torch.float64, False)
    for name, options in {
        "float32, kept": (torch.float32, False),
        "float32, reversible": (torch.float32, True),
        "tf32, reversible": (torch.float32, True, None, True),
        "bf16, kept": (torch.float32, False, torch.bfloat16),
        "bf16, reversible": (torch.float32, True, torch.bfloat16),
        "fp16, reversible": (torch.float32, True, torch.float16),
    }.items():
        part.attempt(f"gradients, {name}", partial(compare_gradients, part, reference, options), needs_s=2)
    part.attempt("text to image, emoji", partial(whole_drawing, part), needs_s=10)
    for name, half in ("float32", None), ("bf16", torch.bfloat16):
        options = (torch.float32, True, half, False, True)
        part.attempt(f"gradients, {name}, reversible, compiled", partial(compare_gradients, part, reference, options))


def machine(part: Part) -> dict:
    """Return what the kit finds out about the device."""
    if part.device != "cuda":
        return {"device": "cpu"}
    return {
        "problem": check_gpu("cuda:0").problem, "half": str(autocast_dtype("cuda")), "free": free_memory("cuda"),
        "capability": torch.cuda.get_device_capability(), "triton": __import__("triton").__version__,
    }  # fmt: skip


def gradients(
    config: ModelConfig, device: str, dtype: torch.dtype, is_reversible: bool, half: torch.dtype | None = None,
    has_tf32: bool = False, is_compiled: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return loss and gradients, all in one row, of a model with random weights, in float64 on the processor."""
    torch.set_float32_matmul_precision("high" if has_tf32 else "highest")
    torch.manual_seed(0)
    model = DALLE(config)
    with torch.no_grad():
        for block in model.transformer.blocks:  # as in training, where deep blocks have come to matter
            block.attention_scale.fill_(0.1)
            block.feed_forward_scale.fill_(0.1)
    text = torch.randint(1, config.text_vocab, (3, config.text_length))
    codes = torch.randint(config.image_vocab, (3, config.image_length))
    model.to(device, dtype).transformer.is_reversible = is_reversible
    if is_compiled:
        model.transformer.compile_layers()
    with torch.autocast(device, half, enabled=half is not None):
        loss = model(text.to(device), codes.to(device)).loss
    loss.backward()
    return loss.detach().double().cpu(), torch.cat([p.grad.double().cpu().flatten() for p in model.parameters()])


def compare_gradients(part: Part, reference: tuple[Tensor, Tensor], options: tuple) -> dict[str, float]:
    """Return how far loss and gradients are from the reference, as shares of its norm."""
    loss, gradient = gradients(SMALL, part.device, *options)
    errors = {"loss": (loss - reference[0]).norm() / reference[0].norm()}
    errors["gradients"] = (gradient - reference[1]).norm() / reference[1].norm()
    return {name: error.item() for name, error in errors.items()}


def compare_lamb(part: Part, bits: int) -> dict[str, float]:
    """Return how far three steps on the device are from those on the processor, as a share of what weights move."""
    moved, state = {}, {}
    for device in "cpu", part.device:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(300, 1000).to(device))
        optimizer, start = LAMB8bit([weight], bits=bits), weight.detach().clone()
        for _ in range(3):
            weight.grad = torch.randn(300, 1000).to(device)
            optimizer.step()
        moved[device] = (weight.detach() - start).cpu()
        state[device] = {name: value.cpu() for name, value in optimizer.state[weight].items()}
    same = [(state["cpu"][name] == state[part.device][name]).float().mean().item() for name in ("first", "second")]
    error = (moved[part.device] - moved["cpu"]).norm() / moved["cpu"].norm()
    return {"error": error.item(), "share of equal first statistics": same[0], "of second": same[1]}


def compare_drawing(part: Part) -> dict[str, float | bool]:
    """Return the share of codes that are those of the processor, of the device again, and in fp16 again."""
    torch.manual_seed(0)
    model = DALLE(SMALL).eval()
    text = torch.randint(1, SMALL.text_vocab, (2, SMALL.text_length))
    expected = generate(model, text, samples=8, top_k=64, seed=0)
    model, text = model.to(part.device), text.to(part.device)

    def again(**options) -> Tensor:
        return generate(model, text, samples=8, top_k=64, seed=0, **options).cpu()

    def share(a: Tensor, b: Tensor) -> float:
        return (a == b).float().mean().item()

    found = {"as on the processor": share(again(), expected), "again": share(again(), again())}
    found["guided, again"] = share(again(guidance=2.0), again(guidance=2.0))
    if part.device == "cuda":
        model = model.half()
        found["fp16, again"] = share(again(), again())
        found["fp16, as in float32"] = share(again(), expected)
    return found


def whole_drawing(part: Part) -> dict:
    """Return the seconds of a drawing with the embedded model, CLIP included, on the device."""
    from dalle_lib.inference import TextToImage

    draw = TextToImage.from_run("emoji", device=part.device)
    count = 8 if part.is_tiny else 128
    found = [draw("penguin on a yellow background", candidates=count, seed=0) for _ in range(2)]
    return {
        "candidates": count, "first": found[0].seconds, "again": found[1].seconds,
        "share of equal pixels": (found[0].candidates == found[1].candidates).float().mean().item(),
    }  # fmt: skip


def lamb(part: Part) -> None:
    """Measure LAMB's steps with the paper's parameters: on the device, and on the processor for a model on it."""
    model = DALLE(part.config).to(part.device)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    for bits in 8, 32:
        part.attempt(f"on the device, {bits} bits", partial(on_device, part, model, bits))
    all_threads = torch.get_num_threads()
    for threads in all_threads, 4, 1:
        part.attempt(f"offloaded, {threads} threads", partial(offloaded, part, model, threads), needs_s=6)
    torch.set_num_threads(all_threads)


def on_device(part: Part, model: DALLE, bits: int) -> dict:
    """Return time and memory of a step on the device, and what the calculator says of the memory."""
    optimizer = LAMB8bit(parameter_groups(model, DECAY), lr=1e-6, bits=bits)
    before = torch.cuda.memory_allocated() if part.device == "cuda" else 0
    found = part.timings(optimizer.step)
    kept = [value for state in optimizer.state.values() for value in state.values()]
    found |= {"bytes of statistics": sum(value.nbytes for value in kept), "skipped": optimizer.skipped_steps}
    if part.device == "cuda":
        parameters = describe({"model_type": "dalle", **vars(part.config)}).parameters
        said = step_bytes(Training(optimizer=f"lamb{'8bit' if bits == 8 else ''}"), parameters, "cuda")
        found |= {"bytes above": found["allocated"] - before, "forecast of these": said}
    return found | speed(model, found["seconds"])


def offloaded(part: Part, model: DALLE, threads: int) -> dict:
    """Return the time of a step on the processor: gradients down, the step itself, and weights back."""
    torch.set_num_threads(threads)
    sent = [p.grad.clone() for p in model.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        optimizer = Offloaded(model, partial(LAMB8bit, lr=1e-6), Path(folder))

        def step() -> None:
            for p, gradient in zip(model.parameters(), sent, strict=True):
                p.grad = gradient  # the step drops it
            optimizer.step()

        whole = part.timings(step, repeats=3)
        alone = [timed(optimizer.optimizer.step, "cuda" if part.device == "cuda" else "cpu") for _ in range(3)]
    for p, gradient in zip(model.parameters(), sent, strict=True):
        p.grad = gradient
    return whole | {"seconds of the step alone": statistics.median(alone)} | speed(model, whole["seconds"])


def speed(model: DALLE, seconds: float) -> dict[str, float]:
    """Return the parameters that are updated in a second."""
    return {"parameters/s": sum(p.numel() for p in model.parameters()) / seconds}
