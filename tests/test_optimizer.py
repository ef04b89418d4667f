import json
import logging

import pytest
import torch
from bitsandbytes import functional as bitsandbytes
from conftest import DATA
from safetensors.torch import load_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dalle_lib.measurement.worker import cpu_peak
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.optimizer import LAMB8bit, blockwise, lamb, linear_warmup_schedule, parameter_groups

GOLDEN = load_file(DATA / "lamb_f32_trajectory.safetensors")
FACTS = json.loads((DATA / "lamb_f32_trajectory.json").read_text())


def trajectory(bits: int):
    """Run the golden trajectory; after each step, yield its number and the parameters by name."""
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


def test_blocks_of_another_size_have_scales_of_their_own():
    values = torch.tensor([1.0, -2.0, 3.0, 40.0, -50.0, 6.0, 70.0])
    codes, scales = blockwise.quantize(values, signed=True, block=3)
    assert scales.tolist() == [3.0, 50.0, 70.0]
    assert torch.allclose(blockwise.dequantize(codes, scales, signed=True, block=3), values, rtol=0.05)


def after_steps(start: torch.Tensor, gradients: torch.Tensor, bits: int = 8, **settings):
    """Return the parameter that began as `start`, and its optimizer, after a step with each gradient."""
    p = nn.Parameter(start.clone(memory_format=torch.preserve_format))
    optimizer = LAMB8bit([p], bits=bits, **settings)
    for gradient in gradients:
        p.grad = gradient.clone()
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("bits", [8, 32])
def test_chunks_give_what_the_whole_tensor_gives(bits, monkeypatch):
    torch.manual_seed(0)
    start, gradients = torch.randn(7, 10_007), 1e-3 * torch.randn(3, 7, 10_007)
    results = []
    for blocks in (100, 2):
        monkeypatch.setitem(lamb._CHUNK, "cpu", blocks * blockwise.BLOCK)
        results.append(after_steps(start, gradients, bits, lr=0.1))
    (whole, one), (chunked, many) = results
    assert (chunked - whole).norm() < 1e-6 * (whole - start).norm()
    for name, value in one.state[whole].items():
        assert torch.equal(many.state[chunked][name], value), name


def test_a_step_takes_memory_for_a_chunk_alone(monkeypatch, tmp_path):
    monkeypatch.setitem(lamb._CHUNK, "cpu", blockwise.BLOCK)
    p = nn.Parameter(torch.randn(1 << 19))
    p.grad = torch.randn_like(p)
    assert cpu_peak(LAMB8bit([p]).step, tmp_path) < 40 * blockwise.BLOCK < p.nbytes / 10


@pytest.mark.parametrize("bits", [8, 32])
def test_a_step_on_a_gpu_waits_for_nothing_but_the_norm_of_the_gradients(bits, monkeypatch):
    """PyTorch runs the step with tensors that claim to be on a GPU but hold no numbers: reading one raises an error."""
    monkeypatch.setattr(lamb, "_norm_of", lambda gradients: 1.0)
    monkeypatch.setitem(lamb._CHUNK, "cuda", 4 * blockwise.BLOCK)
    monkeypatch.setattr(blockwise, "codebook", blockwise.codebook.__wrapped__)
    monkeypatch.setattr(blockwise, "_nearest_by_half", blockwise._nearest_by_half.__wrapped__)
    with FakeTensorMode():
        p = nn.Parameter(torch.randn(300, 301, device="cuda"))
        p.grad = torch.randn(300, 301, device="cuda")
        optimizer = LAMB8bit([p], bits=bits)
        optimizer.step()
        assert {value.device.type for value in optimizer.state[p].values()} == {"cuda"}


@pytest.mark.parametrize("bits", [8, 32])
def test_a_parameter_that_is_not_contiguous_moves_as_its_copy_does(bits):
    start, gradients = torch.randn(301, 300).t(), torch.randn(3, 301, 300).transpose(1, 2)
    p, _ = after_steps(start, gradients, bits)
    assert p.stride() == start.stride()
    copy, _ = after_steps(start.contiguous(), gradients, bits)
    assert torch.equal(p, copy)


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_parameter_in_16_bits_is_the_float32_one_rounded(bits, dtype):
    start, gradients = torch.randn(300, 301).to(dtype), torch.randn(3, 300, 301).to(dtype)
    p, optimizer = after_steps(start, gradients, bits, lr=0.1)
    assert p.dtype == dtype
    assert {value.dtype for value in optimizer.state[p].values()} <= {torch.uint8, torch.float32}
    exact = nn.Parameter(start.float())
    reference = LAMB8bit([exact], bits=bits, lr=0.1)
    for gradient in gradients:
        exact.grad = gradient.float()
        reference.step()
        with torch.no_grad():
            exact.copy_(exact.to(dtype))
    assert torch.equal(p, exact.to(dtype))


def test_a_norm_of_gradients_beyond_16_bits_skips_no_step():
    _, optimizer = after_steps(torch.ones(300, 300).half(), torch.full((1, 300, 300), 1000.0).half())
    assert optimizer.grad_norm == pytest.approx(300_000, rel=1e-4)
    assert optimizer.skipped_steps == 0


def test_the_norm_of_many_gradients_is_exact():
    gradient = torch.randn(1 << 22)
    p, optimizer = after_steps(torch.zeros(1 << 22), gradient[None])
    assert optimizer.grad_norm == pytest.approx(float(gradient.double().norm()), rel=1e-5)
    assert torch.equal(p.grad, gradient), "the step changed the caller's gradient"


@pytest.mark.parametrize(("decades", "bound"), [(0, 0.025), (2, 0.06)])
def test_eight_bits_lose_most_where_columns_differ_by_decades(decades, bound):
    """The second statistic keeps few bits of entries that are small beside others of their block."""
    torch.manual_seed(0)
    start, mean = 0.02 * torch.randn(64, 1024), 0.3 * torch.randn(64, 1024)
    columns = torch.logspace(-decades, 0, 1024)[torch.randperm(1024)]
    gradients = [(mean + torch.randn(64, 1024)) * columns * 1e-2 for _ in range(30)]
    eight, exact = (after_steps(start, gradients, bits, lr=1e-2)[0] for bits in (8, 32))
    lost = (eight - exact).norm() / (exact - start).norm()
    assert bound / 3 < lost < bound


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_logged(bits, bad, caplog):
    p = nn.Parameter(torch.ones(300, 300))
    optimizer = LAMB8bit([p], bits=bits)
    p.grad = torch.ones_like(p)
    p.grad[5, 7] = bad
    before = {name: value.clone() for name, value in optimizer.state[p].items()}
    for skipped in (1, 2):
        optimizer.step()
        assert optimizer.skipped_steps == skipped
    assert torch.equal(p, torch.ones_like(p))
    assert all(torch.equal(before[name], value) for name, value in optimizer.state[p].items())
    warnings = [r.message for r in caplog.records if (r.name, r.levelno) == (lamb.__name__, logging.WARNING)]
    assert [f"gradients is {bad}" in message for message in warnings] == [True, True]


def test_creating_the_optimizer_makes_its_state_without_a_step():
    p = nn.Parameter(torch.randn(300, 300))
    before = p.detach().clone()
    optimizer = LAMB8bit([p])
    kinds = {"first": torch.uint8, "first_scales": torch.float32, "second": torch.uint8, "second_scales": torch.float32}
    assert {name: value.dtype for name, value in optimizer.state[p].items()} == kinds
    assert torch.equal(p, before)


@pytest.mark.parametrize("bits", [8, 32])
def test_a_loaded_state_goes_on_exactly(bits):
    start, gradients = torch.randn(300, 300), torch.randn(3, 300, 300)
    a, first = after_steps(start, gradients[:2], bits)
    b = nn.Parameter(a.detach().clone())
    second = LAMB8bit([b], bits=bits)
    second.load_state_dict(first.state_dict())
    for p, optimizer in (a, first), (b, second):
        p.grad = gradients[2].clone()
        optimizer.step()
    assert torch.equal(a, b)
    for name, value in first.state[a].items():
        assert second.state[b][name].dtype == value.dtype, name
        assert torch.equal(second.state[b][name], value), name


def test_statistics_of_another_kind_are_refused_and_change_nothing():
    p = nn.Parameter(torch.randn(300, 300))
    optimizer = LAMB8bit([p])
    before = {name: value.clone() for name, value in optimizer.state[p].items()}
    for shape, bits in ((300, 300), 32), ((90_000,), 8):
        other = LAMB8bit([nn.Parameter(torch.randn(shape))], bits=bits)
        with pytest.raises(ValueError, match=r"expected the statistics .* of parameter 0, but got"):
            optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="expected statistics of 1 parameters, but got those of 2"):
        optimizer.load_state_dict(LAMB8bit([p, nn.Parameter(torch.randn(3))]).state_dict())
    assert all(torch.equal(before[name], value) for name, value in optimizer.state[p].items())


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


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bits": 4}, "8 or 32 bits"),
        ({"betas": (0.9, 1.0)}, "betas in"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"eps": 0.0}, "eps > 0"),
        ({"weight_decay": float("nan")}, "weight_decay=nan"),
        ({"max_grad_norm": 0.0}, "norms above 0, but got max_grad_norm=0"),
        ({"max_weight_norm": float("nan")}, "max_weight_norm=nan"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        LAMB8bit([nn.Parameter(torch.ones(3))], **wrong)
