import itertools
import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from conftest import DATA
from safetensors.torch import load_file
from small_models import ODD, SMALL, golden_model, random_batch, random_model

from dalle_lib.inference.text_to_image import CACHE_SHARE
from dalle_lib.model import DALLE, ModelConfig, cache_bytes, generate, generate_rows
from dalle_lib.model.sampling import Sampler, check_filters, code_probabilities, draw

GOLDEN = load_file(DATA / "dalle_small.safetensors")
FACTS = json.loads((DATA / "dalle_small.json").read_text())


TINY = ModelConfig(dim=8, depth=3, heads=1, dim_head=12, text_length=2, text_vocab=5, image_vocab=7, grid=2)
"""A model whose grid is smaller than a window."""


@pytest.fixture(scope="module")
def model() -> DALLE:
    return random_model().eval()


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    return random_batch()[0]


def tensors_of(sampler: Sampler) -> list[torch.Tensor]:
    """Return the tensors that are remembered of the pictures, and those of the text."""
    shifts = [x for cache in sampler.caches for shift in cache.shifts for x in (shift.above, shift.left)]
    return [[cache.codes for cache in sampler.caches] + shifts, [cache.text for cache in sampler.caches]]


def test_greedy_codes_are_those_of_the_published_code():
    codes = generate(golden_model(), GOLDEN["inputs/text"], top_p=0.0)
    assert torch.equal(codes[:, 0], GOLDEN["outputs/greedy_image_tokens"])


@pytest.mark.parametrize("case", FACTS["sampling_cases"], ids=lambda case: str(case["index"]))
def test_filters_give_the_published_probabilities(case):
    settings = {name: case[name] for name in ("top_k", "top_p", "temperature")}
    probabilities = code_probabilities(GOLDEN["sampling/logits"], **settings)
    expected = GOLDEN[f"sampling/probs_{case['index']}"]
    assert (probabilities - expected).abs().max() < FACTS["tolerances"]["sampling_probs_abs"]
    assert (probabilities > 0).sum(1).tolist() == case["kept_per_row"]


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("rows", [0, 1, 2, 4])
@pytest.mark.parametrize(
    "make", [golden_model, random_model, partial(random_model, TINY)], ids=["published", "odd", "tiny"]
)
@torch.no_grad()
def test_each_step_has_the_logits_of_the_whole_sequence(make, rows):
    model = make()
    rows = min(rows, model.config.grid - 1)
    text, codes = random_batch(model.config)
    expected = model(text, codes).image_logits
    sampler, given = Sampler(model, prompts=2, samples=1), rows * model.config.grid
    found = [sampler.start(text, codes[:, :given])]
    found += [sampler.step(codes[:, i]) for i in range(given, model.config.image_length - 1)]
    torch.testing.assert_close(torch.stack(found, dim=1), expected[:, given:], rtol=0, atol=1e-9)


def test_a_picture_depends_on_the_seed_and_its_number_alone(model, text):
    pictures = generate(model, text, samples=5, seed=7)
    assert len(pictures.flatten(0, 1).unique(dim=0)) == 10
    assert torch.equal(generate(model, text, samples=2, seed=7), pictures[:, :2])
    assert torch.equal(generate(model, text, samples=2, first_sample=3, seed=7), pictures[:, 3:])
    assert torch.equal(generate(model, text[1:], samples=5, seed=7), pictures[1:])
    assert not torch.equal(generate(model, text, samples=5, seed=8), pictures)
    assert not torch.equal(generate(model, text, samples=5), generate(model, text, samples=5))


def test_pictures_go_on_from_their_first_rows(model, text):
    whole = generate(model, text, top_k=5, seed=1)[:, 0]
    other = (whole[:, :10] + 1) % 13
    settings = {"samples": 3, "top_k": 5, "seed": 1}
    again = generate(model, text, first_codes=whole[:, :10], **settings)
    assert torch.equal(again[:, 0], whole)
    assert torch.equal(again[..., :10], whole[:, None, :10].expand(-1, 3, -1))
    changed = generate(model, text, first_codes=other, **settings)
    assert torch.equal(changed[:, 0, :10], other)
    assert not torch.equal(changed[:, 0, 10:], whole[:, 10:])


@pytest.mark.parametrize("guidance", [0.0, 1.5, 4.0])
@torch.no_grad()
def test_guidance_pushes_away_from_what_is_drawn_without_a_caption(guidance):
    model, text = golden_model(), GOLDEN["inputs/text"]
    codes = generate(model, text, guidance=guidance, top_p=0.0)[:, 0]
    conditional, null = (model(t, codes).image_logits for t in (text, torch.zeros_like(text)))
    assert torch.equal((null + (conditional - null) * guidance).argmax(-1), codes)
    assert not torch.equal(conditional.argmax(-1), codes)


def test_equal_prompts_are_read_once(model, text):
    read = []
    hook = model.transformer.attentions[0].qkv.register_forward_hook(lambda _, x, __: read.append(tuple(x[0].shape)))
    next(generate_rows(model, text[[0, 1, 0]], samples=4, guidance=2.0))
    hook.remove()
    assert read[0] == (3, 7, 20), "two prompts, and none"
    assert set(read[2:]) == {(24, 1, 20)}


def test_rows_come_one_by_one(model, text):
    drawn = list(generate_rows(model, text, samples=2, seed=3))
    assert [tuple(codes.shape) for codes in drawn] == [(2, 2, 5 * row) for row in range(1, 6)]
    assert all(torch.equal(codes, drawn[-1][..., : codes.shape[2]]) for codes in drawn)
    told = []
    assert torch.equal(generate(model, text, samples=2, seed=3, progress=told.append), drawn[-1])
    assert len(told) == 5


def test_the_cache_is_as_small_as_cache_bytes_says():
    sampler = Sampler(DALLE(SMALL), prompts=2, samples=3)
    pictures, text = (sum(x.nbytes for x in tensors) for tensors in tensors_of(sampler))
    each, of_text = cache_bytes(SMALL, torch.float32)
    assert (pictures, text) == (6 * each, 2 * of_text)
    paper = ModelConfig.paper()
    everything = 2 * 2 * paper.depth * paper.heads * paper.dim_head * paper.length
    each, of_text = cache_bytes(paper, torch.float16)
    assert each < 0.3 * everything
    free = 14e9  # bytes of a GPU's 16 GB, less PyTorch, and model, VQ-GAN and CLIP in float32
    assert 128 * each + of_text < CACHE_SHARE * free, "128 candidates do not fit side by side"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_remembers_nearly_the_same(dtype):
    torch.manual_seed(0)
    model, (text, codes) = DALLE(SMALL), random_batch(SMALL)
    expected = model(text, codes).image_logits
    sampler = Sampler(model, prompts=2, samples=1, dtype=dtype)
    assert {x.dtype for x in itertools.chain(*tensors_of(sampler))} == {dtype}
    found = [sampler.start(text, codes[:, :0])] + [sampler.step(code) for code in codes.T[:-1]]
    assert (torch.stack(found, dim=1) - expected).norm() < 2 * torch.finfo(dtype).eps * expected.norm()


def test_half_precision_draws():
    torch.manual_seed(0)
    model, text = DALLE(SMALL), random_batch(SMALL)[0]
    with torch.autocast("cpu", torch.bfloat16):
        codes = generate(model, text, samples=2, top_k=8, seed=0, dtype=torch.bfloat16)
    assert codes.shape == (2, 2, 64)
    assert len(codes.unique()) > 30
    assert generate(DALLE(SMALL).half(), random_batch(SMALL)[0], top_k=8).shape == (2, 1, 64)


def test_a_model_in_half_precision_draws_from_probabilities_in_full(monkeypatch):
    seen = []
    monkeypatch.setattr("dalle_lib.model.sampling.draw", lambda p, uniform: (seen.append(p.dtype), draw(p, uniform))[1])
    generate(DALLE(ODD).half(), random_batch()[0], top_k=8)
    assert set(seen) == {torch.float32}


RECORDED = """
import torch
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.sampling import Sampler
torch.manual_seed(0)
model = DALLE(
    ModelConfig(dim=20, depth=7, heads=3, dim_head=14, text_length=6, text_vocab=11, image_vocab=13, grid=5)
).double()
text = torch.randint(11, (2, 6))
recorded, plain = (Sampler(model, prompts=2, samples=2) for _ in range(2))
step = torch.compile(recorded.step, fullgraph=True, dynamic=False, backend="aot_eager")
logits = recorded.start(text, text[:, :0])
assert torch.equal(logits, plain.start(text, text[:, :0]))
for i in range(24):
    codes = logits.argmax(-1)
    with torch._dynamo.config.patch(error_on_recompile=i > 0):
        logits = step(codes)
    torch.testing.assert_close(logits, plain.step(codes))
"""


def test_one_recorded_step_serves_all_codes():
    done = subprocess.run([sys.executable, "-c", RECORDED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_model_with_broken_weights_raises_an_error():
    model = random_model()
    model.head.bias.data[-1] = torch.nan
    with pytest.raises(FloatingPointError, match=r"logits in row 0 are not finite: its weights are broken"):
        generate(model, random_batch()[0])


@torch.no_grad()
def test_a_very_low_temperature_takes_the_likeliest_code(model, text):
    for temperature in (1e-30, 1e-40):
        cold = code_probabilities(GOLDEN["sampling/logits"].float(), temperature=temperature)
        assert torch.equal(cold, (cold == cold.amax(-1, keepdim=True)).float())
    assert torch.equal(generate(model, text, temperature=1e-40), generate(model, text, top_p=0.0))


def test_codes_are_drawn_as_often_as_they_are_likely():
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    uniform = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    codes = draw(probabilities.expand(1000, -1), uniform)
    assert codes.bincount(minlength=6).tolist() == [0, 250, 0, 500, 250, 0]
    last = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert draw(probabilities / 3, last).tolist() == [4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 1.5}, "0 <= top_p <= 1"),
        ({"top_p": -0.1}, "0 <= top_p <= 1"),
        ({"top_k": -1}, "top_k >= 0"),
        ({"temperature": 0.0}, "temperature > 0"),
        ({"temperature": float("nan")}, "temperature > 0"),
        ({"temperature": float("inf")}, "finite temperature > 0"),
        ({"guidance": float("inf")}, "guidance >= 0"),
        ({"guidance": -1.0}, "guidance >= 0"),
        ({"samples": 0}, "samples >= 1"),
        ({"first_sample": -1}, "first_sample >= 0"),
        ({"seed": -1}, "seed >= 0"),
        ({"dtype": torch.int8}, "floating-point"),
        ({"first_codes": torch.zeros(2, 3, dtype=torch.long)}, r"rows x 5"),
        ({"first_codes": torch.zeros(2, 25, dtype=torch.long)}, "nothing is left to draw"),
        ({"first_codes": torch.full((2, 5), 13)}, "codes must hold ids from 0 to 12"),
    ],
)
def test_settings_out_of_range_are_refused_before_any_work(text, settings, message):
    with pytest.raises(ValueError, match=message):
        generate_rows(DALLE(ODD), text, **settings)


def test_a_wrong_setting_is_named_without_the_others():
    with pytest.raises(ValueError, match=r"^expected a finite guidance >= 0, but got guidance=-1\.0\.$"):
        check_filters(256, 1.0, 1.0, -1.0)
    with pytest.raises(ValueError, match="temperature=0") as raised:
        check_filters(256, 1.0, 0.0, 1.0)
    assert "guidance" not in str(raised.value)


def test_captions_of_another_shape_are_refused(text):
    with pytest.raises(ValueError, match=r"text must have shape \[batch, 6\]"):
        generate_rows(DALLE(ODD), text[:, :5])
    with pytest.raises(ValueError, match="text must hold ids from 0 to 10"):
        generate_rows(DALLE(ODD), text + 11)
