import json

import pytest
import torch
from bitsandbytes import functional as bitsandbytes
from conftest import DATA
from safetensors.torch import load_file
from torch import nn

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.optimizer import LAMB8bit, blockwise, lamb, linear_warmup_schedule, parameter_groups

GOLDEN = load_file(DATA / "lamb_f32_trajectory.safetensors")
FACTS = json.loads((DATA / "lamb_f32_trajectory.json").read_text())


def trajectory(bits: int):
    """Run the golden trajectory; yield the step and the parameters by name after each."""
    hyper = FACTS["hyper"]
    params = {t["name"]: nn.Parameter(GOLDEN[f"init/{t['name']}"].clone()) for t in FACTS["tensors"]}
    groups = [{"params": [params[t["name"]]], "weight_decay": t["weight_decay"]} for t in FACTS["tensors"]]
    optimizer = LAMB8bit(groups, betas=tuple(hyper["betas"]), eps=hyper["eps"], bits=bits)
    for step, lr in enumerate(FACTS["lr"]):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, p in params.items():
            p.grad = GOLDEN[f"grad/{step:02d}/{name}"].clone()
        optimizer.step()
        assert optimizer.grad_norm == pytest.approx(FACTS["grad_norm_before_clip"][step], rel=1e-5)
        yield step, params


def test_float32_follows_the_reference_trajectory():
    compared = 0
    for step, params in trajectory(bits=32):
        for name, p in params.items():
            if (key := f"param_after/{step:02d}/{name}") in GOLDEN:
                assert (p - GOLDEN[key]).abs().max() < 1e-5, key
                compared += 1
    assert compared == 6 * len(FACTS["tensors"])


def test_eight_bits_stay_near_the_reference(monkeypatch):
    monkeypatch.setattr(lamb, "QUANTISED_FROM", 1)
    *_, (_step, params) = trajectory(bits=8)
    for name, p in params.items():
        exact, start = GOLDEN[f"param_after/19/{name}"], GOLDEN[f"init/{name}"]
        assert (p - exact).norm() / (exact - start).norm() < 0.05, name


@pytest.mark.parametrize("signed", [True, False])
def test_quantisation_is_that_of_bitsandbytes(signed):
    torch.manual_seed(0)
    values = torch.randn(3, 5000) if signed else torch.randn(3, 5000).square()
    book = bitsandbytes.create_dynamic_map(signed=signed)
    assert torch.equal(blockwise.codebook(signed, values.device), book)
    theirs, state = bitsandbytes.quantize_blockwise(values, code=book, blocksize=blockwise.BLOCK)
    expected = bitsandbytes.dequantize_blockwise(theirs, state)
    codes, scales = blockwise.quantize(values, signed)
    assert torch.equal(scales, state.absmax)
    ours = blockwise.dequantize(codes, scales, signed)
    assert (ours - values).norm() <= 1.01 * (expected - values).norm()
    assert (codes.int() - theirs.int()).abs().float().mean() < 0.1


def test_quantisation_keeps_zeros_and_extremes():
    values = torch.zeros(2 * blockwise.BLOCK)
    values[-1] = 3.0
    codes, scales = blockwise.quantize(values, signed=True)
    assert torch.equal(blockwise.dequantize(codes, scales, signed=True), values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    p = nn.Parameter(torch.ones(300, 300))
    optimizer = LAMB8bit([p])
    p.grad = torch.ones_like(p)
    p.grad[5, 7] = bad
    before = {name: value.clone() for name, value in optimizer.state[p].items()}
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert torch.equal(p, torch.ones_like(p))
    assert all(torch.equal(before[name], value) for name, value in optimizer.state[p].items())


def test_creating_the_optimizer_makes_its_state_without_a_step():
    p = nn.Parameter(torch.randn(300, 300))
    before = p.detach().clone()
    optimizer = LAMB8bit([p])
    assert {name: value.dtype for name, value in optimizer.state[p].items()} == {
        "first": torch.uint8,
        "first_scales": torch.float32,
        "second": torch.uint8,
        "second_scales": torch.float32,
    }
    assert torch.equal(p, before)


def test_a_loaded_state_goes_on_exactly():
    torch.manual_seed(0)
    start = torch.randn(300, 300)
    a, b = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    first, second = LAMB8bit([a]), LAMB8bit([b])
    a.grad = torch.randn_like(a)
    first.step()
    with torch.no_grad():
        b.copy_(a)
    second.load_state_dict(first.state_dict())
    gradient = torch.randn_like(a)
    for p, optimizer in (a, first), (b, second):
        p.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(a, b)


def test_every_parameter_is_in_one_group_and_only_linear_weights_decay():
    model = DALLE(ModelConfig.emoji())
    decayed, others = parameter_groups(model, weight_decay=0.045)
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    ends = {".".join(names[id(p)].split(".")[-2:]) for p in decayed["params"]}
    assert ends == {"qkv.weight", "out.weight", "expand.weight", "contract.weight", "head.weight"}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.045, 0.0)


def test_the_rate_rises_then_falls_to_zero():
    optimizer = LAMB8bit([nn.Parameter(torch.ones(3))], lr=2.0)
    schedule = linear_warmup_schedule(optimizer, warmup_steps=4, total_steps=10)
    rates = []
    for _ in range(11):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[5:] == pytest.approx([2 * k / 6 for k in (5, 4, 3, 2, 1, 0)])


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="8 or 32 bits"):
        LAMB8bit([nn.Parameter(torch.ones(3))], bits=4)
    with pytest.raises(ValueError, match="betas"):
        LAMB8bit([nn.Parameter(torch.ones(3))], betas=(0.9, 1.0))
