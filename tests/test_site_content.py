"""The prose pages of the site: figures stand in files, drawings speak to all, commands work, people find their way."""

import json
import re
import shlex
import sys
from xml.etree import ElementTree

import pytest
from checkout import ROOT, load_script
from PIL import Image
from test_help import TYPED

from dalle_lib.cli import main

SITE = ROOT / "site"
PAGES = {file.name: file.read_text(encoding="utf-8") for file in sorted(SITE.glob("*.md"))}
OURS = [
    "index",
    "communication",
    "devices",
    "evaluation",
    "faults",
    "gallery",
    "join",
    "memory",
    "method",
    "runs",
    "security",
    "start",
    "streaming",
]
FENCE = re.compile(r"^(`{3,})(.*)\n((?:.*\n)*?)\1$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def site_modules():
    """Make the modules of the site's build importable while these tests run."""
    sys.path.insert(0, str(SITE))
    yield
    sys.path.remove(str(SITE))


@pytest.fixture(scope="module")
def drawings():
    from drawings import DRAWINGS
    from drawings.charts import objective

    told = {name: drawing().figure(name) for name, drawing in DRAWINGS.items()}
    return told | {"recorded": objective({"epoch": [3, 4, 5], "loss": [4.5, None, 3.25]}).figure("recorded")}


@pytest.fixture(scope="module")
def figures():
    from making import figures

    return figures


def prose(page: str) -> str:
    """Return a page without code, directives, links' targets and comments."""
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", PAGES[f"{page}.md"]))
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def test_every_drawing_is_on_a_page_and_every_page_names_drawings_that_are_there(drawings):
    named = re.findall(r":file: _made/drawings/([\w-]+)\.html", "".join(PAGES.values()))
    assert sorted(named) == sorted(drawings)


def test_every_drawing_says_in_words_what_it_shows_and_stays_within_its_edges(drawings):
    for name, html in drawings.items():
        figure = ElementTree.fromstring(html)
        svg, caption = figure.find("svg"), figure.find("figcaption")
        assert svg.get("role") == "img"
        assert len(svg.get("aria-label")) > 60, name
        assert len(caption.text) > 40, name
        width, height = map(float, svg.get("viewBox").split()[2:])
        for rect in svg.findall("rect"):
            x, y, wide, high = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            assert 0 <= x <= x + wide <= width, (name, rect.attrib)
            assert 0 <= y <= y + high <= height, (name, rect.attrib)


def test_text_of_drawings_takes_the_pages_ink_and_is_legible_on_a_phone(drawings):
    for name, html in drawings.items():
        for text in ElementTree.fromstring(html).find("svg").findall("text"):
            assert text.get("fill").startswith(("currentColor", "var(--dalle-")), (name, text.text)
            assert float(text.get("font-size")) >= 11.5, (name, text.text)  # of 400 units: 10 pixels on a phone


def test_the_chart_of_the_recorded_run_has_a_point_for_each_loss_that_was_told(drawings):
    figure = ElementTree.fromstring(drawings["recorded"])
    points = [tuple(map(float, each.split(","))) for each in figure.find(".//polyline").get("points").split()]
    assert len(points) == 2
    assert points[0][0] < points[1][0]
    assert points[0][1] < points[1][1]  # a lower loss is further down
    assert "4.50 nats at epoch 3, and 3.25 at epoch 5" in figure.find("svg").get("aria-label")


def test_masks_are_those_of_the_model():
    import torch
    from drawings.model import GRID, QUERY, is_seen

    from dalle_lib.model import ModelConfig
    from dalle_lib.model.attention import WholeRows

    config = ModelConfig(dim=16, depth=5, heads=1, dim_head=68, text_length=3, text_vocab=4, image_vocab=4, grid=GRID)
    query = config.text_part + QUERY[0] * GRID + QUERY[1]
    for kind in ("row", "column", "convolution"):
        values = torch.eye(config.text_part + GRID**2)[None, :, None]  # each position reads which ones it sees
        same = torch.zeros_like(values)
        read = WholeRows(kind, config, GRID, torch.device("cpu")).attend(same, same, values)[0, query, 0]
        seen = (read[config.text_part :] > 0).reshape(GRID, GRID)
        drawn = [[is_seen(kind, row, column) for column in range(GRID)] for row in range(GRID)]
        assert seen.tolist() == drawn, kind


def test_every_figure_that_a_page_names_is_known_and_every_known_one_is_named(figures):
    known = figures.substitutions().keys()
    named = set(re.findall(r"\{\{ (\w+) \}\}", "".join(PAGES.values())))
    assert named <= known
    code = "".join(file.read_text(encoding="utf-8") for file in SITE.glob("*/*.py"))
    of_kinds = {name for name in known if re.match(r"(strict|nearest|best|epoch|rise)_", name)}
    assert {name for name in known - named - of_kinds if code.count(name) < 2} == set()


def test_a_figure_is_the_number_of_its_file_to_the_digits_that_are_shown(figures):
    for name, figure in figures.FIGURES.items():
        value = json.loads((ROOT / figure.file).read_text())
        for key in figure.keys:
            value = value[key]
        shown = re.match(r"[\d,]+(\.\d+)?", figures.figure(name))
        percent = 100 if "%" in figure.form else 1
        half = 0.5 * 10.0 ** -(len(shown[1]) - 1 if shown[1] else 0)
        assert float(shown[0].replace(",", "")) == pytest.approx(value * figure.times * percent, abs=half * 1.001), name


def test_a_figure_or_row_that_is_gone_from_its_file_ends_the_build(figures, monkeypatch):
    monkeypatch.setitem(figures.FIGURES, "gone", figures.Figure("benchmarks/results/join.json", ("no",), "{}"))
    with pytest.raises(KeyError, match="no"):
        figures.figure("gone")
    with pytest.raises(KeyError, match="no such row"):
        figures.row_of("no such row")


def test_measured_rows_name_their_command_and_machine_and_lead_nowhere_else(figures, tmp_path):
    figures.make(tmp_path)
    included = set(re.findall(r"\{include\} _made/measured/(\w+)\.md", "".join(PAGES.values()))) - {"attacks"}
    assert included <= {file.stem for file in (tmp_path / "measured").glob("*.md")}
    for script in included:
        told = (tmp_path / "measured" / f"{script}.md").read_text()
        assert f"`python benchmarks/{script}.py`" in told
        assert re.search(r"core|GPU|H200|one thread", told), told
        assert re.findall(r"\]\(([^)]*)\)", told) == [
            f"https://github.com/dalle-lib/dalle-lib/blob/main/benchmarks/{script}.py"
        ]
        assert "results/" not in told


UNITS = r"%|s|ms|kB|MB|GB|dB|Mbit/s|bytes|pixels|nats|times|minutes|hours|epochs|checkpoints|faults|million|of \d+"


@pytest.mark.parametrize("page", OURS)
def test_every_number_with_a_unit_that_a_page_says_by_itself_stands_in_the_documents(page):
    """Other figures are read from their files; what is written out must be what a document says."""
    sources = [ROOT / "README.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").rglob("*.md")]
    known = " ".join(" ".join(file.read_text(encoding="utf-8").split()) for file in sources)
    said = re.findall(rf"\b\d[\d,.]*(?: ?(?:{UNITS}))(?!\w)", prose(page))
    missing = [number for number in said if number not in known]
    assert not missing


def commands(text: str) -> list[str]:
    """Return the lines of a page that call the kit, whole ones first from code blocks, then from sentences."""
    blocks = [line for _, about, body in FENCE.findall(text) if not about.startswith("{") for line in body.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    starts = re.compile(r"(?:peer/bin/)?(dalle-lib .*)")
    return [found[1] for line in (*blocks, *inline) if (found := starts.fullmatch(line.strip()))]


LINES = sorted({line for page in OURS for line in commands(PAGES[f"{page}.md"])})


@pytest.mark.parametrize("line", LINES)
def test_every_command_of_a_page_can_be_typed(line, monkeypatch):
    words = shlex.split(line)[1:]
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in TYPED)
    if len(words) == len(name.split()) or words == ["doctor", "--organiser"]:
        return  # only named: what it needs stands in the document that the page links to
    started = []
    monkeypatch.setattr(TYPED[name], "run", lambda command: started.append(command))
    monkeypatch.setattr(sys, "argv", ["dalle-lib", *words])
    main()
    assert len(started) == 1


def test_other_commands_and_targets_of_pages_are_there():
    text = "".join(PAGES[f"{page}.md"] for page in OURS)
    for script in re.findall(r"python ((?:benchmarks|scripts|tests|site)/[\w/]+\.py)", text):
        assert (ROOT / script).exists(), script
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= set(targets)
    pip = re.search(r'"dalle-lib\[swarm\] @ [^"]*"', (ROOT / "docs/joining.md").read_text())[0]
    assert pip in PAGES["join.md"]


def test_options_that_a_sentence_names_are_options_of_join(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "join", "--help"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    options = {
        option for page in ("join", "devices") for option in re.findall(r"`(--[\w-]+)[^`]*`", PAGES[f"{page}.md"])
    }
    assert options
    assert all(f"{option} " in told or f"{option}," in told for option in options), options


def test_each_kind_of_people_gets_from_the_landing_page_to_what_they_need():
    links = {name: set(re.findall(r"\]\(([\w/]+\.(?:md|ipynb))", text)) for name, text in PAGES.items()}
    for first, last in {
        "join.md": "notebooks/01_join_training.ipynb", "method.md": "memory.md",
        "gallery.md": "notebooks/02_generate_images.ipynb", "start.md": "docs/organiser.md",
    }.items():  # fmt: skip
        assert first in links["index.md"]
        assert last in links[first]
    assert "notebooks/03_gpt2_large_8bit_c4.ipynb" in links["index.md"] & links["memory.md"]
    for target in set().union(*links.values()):
        at = ROOT / target if target.startswith(("docs/", "notebooks/")) else SITE / target
        assert at.exists() or target in ("glossary.md", "changelog.md"), target


def test_no_open_run_is_said_plainly_and_open_ones_lead_to_their_dashboards():
    from making.tables import open_runs

    assert "No run is open today" in open_runs([])
    told = open_runs([{"run": "owner/name", "title": "<script>x</script>", "about": 'birds" onclick="x'}])
    shown = ElementTree.fromstring(told)
    assert [link.get("href") for link in shown.iter("a")] == [
        "https://huggingface.co/owner/name", "dashboard.html?run=owner/name",
    ]  # fmt: skip
    assert {element.tag for element in shown.iter()} == {"div", "p", "strong", "a", "code"}
    assert 'birds" onclick="x' in "".join(shown.itertext())
    for wrong in ({"run": "owner/name"}, {"run": "a/b?x=<", "title": "t", "about": "a"}):
        with pytest.raises(ValueError, match="expected run"):
            open_runs([wrong])
    assert open_runs(json.loads((SITE / "runs.json").read_text()))


def test_the_gallery_has_what_its_script_draws_and_each_kind_is_what_it_says():
    from dalle_lib.inference.captions import training_rows
    from dalle_lib.run import RunCard

    script, told = load_script("scripts/gallery"), json.loads((SITE / "gallery" / "gallery.json").read_text())
    drawn = told["drawn"]
    assert {kind: tuple(each["prompt"] for each in drawn[kind]) for kind in drawn} == script.PROMPTS
    captions = {row.caption for row in training_rows(RunCard.load(told["run"]))}
    assert all(each["novelty"] == "" for each in drawn[script.KNOWN])
    assert all(each["novelty"].startswith("a new combination") for each in drawn[script.NEW])
    assert all(each["novelty"] for each in drawn[script.FAILING])
    files = [each[which]["file"] for kind in drawn.values() for each in kind for which in ("first", "best")]
    for each in drawn[script.NEW]:
        scores = [near["score"] for near in each["nearest"]]
        assert len(scores) == script.NEAREST
        assert scores == sorted(scores, reverse=True)
        assert {near["caption"] for near in each["nearest"]} <= captions
        files += [near["file"] for near in each["nearest"]]
    found = list((SITE / "gallery").glob("*.webp"))
    assert sorted(files) == sorted(file.name for file in found)
    assert sum(file.stat().st_size for file in found) < 400_000
    for kind in drawn.values():
        assert all(each["best"]["score"] >= each["first"]["score"] - 0.05 for each in kind)


def test_the_landing_page_cuts_readmes_picture_into_one_for_each_caption(tmp_path):
    from making import gallery

    gallery.make(tmp_path)
    captions = gallery.constants("readme_pictures")["CAPTIONS"]
    pictures = [Image.open(tmp_path / f"static/gallery/landing-{number}.webp") for number in range(len(captions))]
    assert {picture.size for picture in pictures} == {(120, 120)}
    assert len({picture.tobytes() for picture in pictures}) == len(captions) == 12
    background = {"yellow": (255, 214, 61), "black": (20, 20, 24), "pink": (243, 130, 190), "blue": (45, 110, 240)}
    for picture, caption in zip(pictures, captions, strict=True):
        colour = background.get(caption.removesuffix(" background").rsplit(" ", 1)[-1], (255, 255, 255))
        corner = picture.convert("RGB").getpixel((3, 3))
        assert max(abs(a - b) for a, b in zip(corner, colour, strict=True)) < 60, (caption, corner)
    shown = (tmp_path / "gallery/landing.html").read_text()
    assert [f"“{caption}”" in shown for caption in captions] == [True] * 12
