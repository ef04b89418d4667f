"""The page that draws, in Chromium: its codes are those of Python, and it shows, orders, explains and saves."""

import gzip
import io
import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch
from draw_prompts import PROMPTS
from PIL import Image
from site_browser import serve

from dalle_lib.inference import TextToImage
from dalle_lib.model.sampling import Sampler, code_probabilities, draw

pytestmark = [pytest.mark.site, pytest.mark.timeout(900)]

BOUNDARY = 1e-4
"""How near a chance must lie to the boundary between two codes for another one to be drawn than in Python."""
MAX_BYTES = 25_000_000
SEED, WAIT_MS = 7, 400_000
SETTINGS = {"seed": str(SEED), "candidates": 1, "guidance": 1.5, "topK": 256, "topP": 1, "temperature": 1}
ASK = """async ([prompts, settings]) => {
  const worker = new Worker(new URL("draw_worker.js", dalle.drawing.base)), answers = [];
  for (const prompt of prompts) {
    answers.push(await new Promise((done, fail) => {
      const heard = {};
      worker.onerror = (event) => fail(new Error(event.message));
      worker.onmessage = ({ data }) => {
        if (data.error) fail(new Error(data.error));
        Object.assign(heard, data);
        if (!data.choices) return;
        const codes = data.codes.map((each) => [...each]), pictures = heard.pictures.map(({ rgb }) => [...rgb]);
        done({ ...heard, codes, pictures, ready: null });
      };
      worker.postMessage({ ...settings, prompt });
    }));
  }
  worker.terminate();
  return answers;
}"""


@pytest.fixture(scope="module")
def python() -> TextToImage:
    return TextToImage.from_run("emoji", "cpu")


@torch.no_grad()
def probabilities(python: TextToImage, captions: list[str], codes: torch.Tensor) -> torch.Tensor:
    """Return what each of the given codes [prompt, code] is drawn from, after those before: [prompt, code, vocab]."""
    text = python.tokenizer(captions)
    sampler = Sampler(python.model, 2 * len(text), 1)
    logits, found = sampler.start(torch.cat([text, torch.zeros_like(text)]), text.new_zeros(2 * len(text), 0)), []
    for code in codes.T:
        conditional, null = logits.chunk(2)
        found.append(code_probabilities(null + (conditional - null) * SETTINGS["guidance"], SETTINGS["topK"]))
        if len(found) < codes.shape[1]:
            logits = sampler.step(code.repeat(2))
    return torch.stack(found, 1)


def test_codes_are_those_of_python_but_at_the_boundary_between_two(visit, python):
    seen = visit("draw.html")
    answers = seen.page.evaluate(ASK, [PROMPTS, SETTINGS])
    captions = [python.captions.as_written(prompt) for prompt in PROMPTS]
    assert [answer["caption"] for answer in answers] == captions
    codes = torch.tensor([answer["codes"][0] for answer in answers])
    shares = probabilities(python, captions, codes)
    chances = torch.from_numpy(np.random.default_rng([SEED, 0]).random(codes.shape[1])).expand(codes.shape)
    expected = draw(shares.flatten(0, 1), chances.flatten()).reshape(codes.shape)
    reached = shares.cumsum(-1, dtype=torch.float64)
    upper = reached.gather(2, codes[..., None])[..., 0] / reached[..., -1]
    lower = upper - shares.gather(2, codes[..., None])[..., 0].double() / reached[..., -1]
    assert ((chances > lower - BOUNDARY) & (chances < upper + BOUNDARY)).all()
    others = int((codes != expected).sum())
    assert others <= 5, f"{others} of {codes.numel()} codes are others than in Python"
    assert seen.problems == []


def test_pictures_scores_and_order_are_those_of_python(visit, python):
    prompt = "penguin on a yellow background"
    (answer,) = visit("draw.html").page.evaluate(ASK, [[prompt], {**SETTINGS, "candidates": 8}])
    drawn = python(prompt, candidates=8, best=8, seed=SEED)
    assert torch.equal(torch.tensor(answer["codes"]), drawn.codes)
    pictures = torch.tensor(answer["pictures"]).reshape(drawn.candidates.shape)
    assert (pictures - drawn.candidates.int()).abs().max() <= 1
    assert answer["scores"] == pytest.approx(drawn.scores.tolist(), abs=1e-3)
    assert answer["noise"] == pytest.approx(drawn.noise or 0, abs=1e-3)
    order = [(choice["number"], len(choice["members"])) for choice in answer["choices"]]
    assert order == [(choice.number, choice.count) for choice in drawn.choices]


def test_a_visitor_draws_reads_what_is_new_and_saves(visit):
    seen = visit("draw.html", width=390, dark=True)
    page = seen.page
    assert not any("draw/step.onnx" in address for address in seen.loaded), "nothing large is loaded before the click"
    page.fill("#draw-prompt", "a kitten on a pink background")
    page.click(".draw-form summary")
    page.fill("#draw-candidates", "3")
    page.fill("#draw-seed", "5")
    page.click("button.draw-go")
    page.wait_for_selector("text=3 drawn in", timeout=WAIT_MS)
    assert "no kitten in its training data" in page.inner_text(".draw-note").lower()
    assert "Drawn as “kitten on a pink background”." in page.inner_text(".draw-note")
    told = page.locator(".draw-pictures:not(.draw-small) li span").all_inner_texts()
    assert 1 <= len([float(text.split()[0]) for text in told]) <= 3
    with page.expect_download() as download:
        page.locator("button.draw-save").first.click()
    picture = Image.open(io.BytesIO(download.value.path().read_bytes()))
    assert picture.size == (64, 64)
    scripts = [one for one in seen.loaded if re.search(r"/draw_\w+\.js|/draw/[\w.-]+js(\?|$)", one)]
    assert [one for one in scripts if "?" not in one] == []
    assert len({one.split("/")[-1].split("?")[0] for one in scripts}) == 11
    assert len(picture.convert("RGB").getcolors(maxcolors=5000)) > 20
    assert download.value.suggested_filename.startswith("a-kitten-on-a-pink-background-5-")
    assert seen.problems == []


def test_what_cannot_be_drawn_is_told_before_anything_is_loaded(visit):
    seen = visit("draw.html")
    seen.page.fill("#draw-prompt", "?!")
    seen.page.click("button.draw-go")
    assert "at least one word" in seen.page.inner_text(".draw-status")
    seen.page.fill("#draw-prompt", "frog")
    seen.page.click(".draw-form summary")
    seen.page.fill("#draw-seed", "9999999999999999999")
    seen.page.click("button.draw-go")
    assert "Expected a seed from 0 to 9223372036854775807" in seen.page.inner_text(".draw-status")
    assert not any(".onnx" in address for address in seen.loaded)


@pytest.mark.parametrize(
    ("name", "part", "told"),
    [
        ("step.onnx", slice(0, 99), "bytes of step.onnx as this site was made"),
        ("words.json", slice(None, None, -1), "bytes of words.json as this site was made"),
        ("turns.bin", None, "turns.bin could not be loaded: the server answered 404."),
        ("../draw_worker.js", None, "its script could not be loaded. Reload this page"),
        ("about.js", None, "Where it does not come, reload the page."),
    ],
)
def test_what_comes_otherwise_than_it_was_made_is_told(visit, site_html, tmp_path, name, part, told):
    shutil.copytree(site_html / "_static", tmp_path / "_static")
    shutil.copyfile(site_html / "draw.html", tmp_path / "draw.html")
    file = tmp_path / "_static" / "draw" / name
    content = file.read_bytes()
    file.unlink()
    if part:
        file.write_bytes(content[part])
    with serve(tmp_path) as url:
        page = visit(f"{url}draw.html").page
        if name != "about.js":
            page.click("button.draw-go")
        page.wait_for_function("(told) => document.body.innerText.includes(told)", arg=told)


def test_a_server_that_sends_nothing_any_more_is_told(visit):
    page = visit("draw.html").page
    page.clock.install()
    page.context.route("**/step.onnx*", lambda route: None)
    page.click("button.draw-go")
    others = "dalle.drawing.files.reduce((sum, {name, bytes}) => sum + (name === 'step.onnx' ? 0 : bytes), 0) / 1e6"
    page.wait_for_selector(f"text=Loading {page.evaluate(f'({others}).toFixed(1)')} of")
    page.clock.run_for(31_000)
    assert "Nothing has come for 30 s" in page.inner_text(".draw-status")


def test_opened_from_a_file_the_page_says_how_to_serve_it(visit, site_html, tmp_path):
    folder = tmp_path / "it's $(touch here) `now`"
    shutil.copytree(site_html / "_static", folder / "_static")
    shutil.copyfile(site_html / "draw.html", folder / "draw.html")
    seen = visit((folder / "draw.html").as_uri())
    command, serving = seen.page.inner_text('[data-dalle="draw"] pre').splitlines()
    assert serving.startswith("python -m http.server")
    assert command.startswith("cd '"), "a shell reads nothing but the text in single quotes"
    assert shlex.split(command) == ["cd", str(folder)]
    assert seen.problems == []


def test_no_network_names_folders_of_the_machine_that_exported_it(site_html):
    networks = list((site_html / "_static" / "draw").glob("*.onnx"))
    assert len(networks) == 3
    assert [file.name for file in networks if b"site-packages" in file.read_bytes()] == []


def test_what_the_first_click_loads_is_small(site_html):
    folder = site_html / "_static" / "draw"
    about = json.loads((folder / "about.js").read_text().split("drawing = ")[1].rstrip(";\n"))
    assert about["hasRuntime"], "expected onnxruntime-web: is npm installed?"
    listed = {file["name"]: file["bytes"] for file in about["files"]}
    assert all((folder / name).stat().st_size == size for name, size in listed.items())
    sizes = {name: len(gzip.compress((folder / name).read_bytes())) for name in listed}
    assert sum(size for name, size in sizes.items() if not name.endswith(".wasm")) < MAX_BYTES
