"""What the site's pages are made from, without building it: sources, links, stored outputs, the mending of HTML."""

import json
import re
import subprocess
import sys

import nbformat
import pytest
from checkout import NOTEBOOKS, ROOT, load_script
from filelock import FileLock

sys.path.insert(0, str(ROOT / "site"))

from machinery.gathering import gather
from machinery.slimming import mended
from making import commands, documents, executed, glossary, notebooks, reference, sources
from PIL import Image

import dalle_lib
from dalle_lib.cli import COMMANDS


def test_outputs_of_every_notebook_are_of_its_code():
    changed = [path.name for path in executed.stale()]
    assert not changed, f"the code of {changed} has changed since it was executed: run python site/execute.py"
    assert not [file.name for file in executed.STORE.iterdir() if file.stat().st_size > executed.MAX_BYTES]
    assert {file.stem for file in executed.STORE.iterdir()} <= {path.stem for path in NOTEBOOKS}


def test_a_change_of_code_makes_outputs_stale_and_one_of_text_or_version_does_not():
    notebook = json.loads(NOTEBOOKS[0].read_text())
    before = executed.fingerprint(notebook)
    install = next(cell for cell in notebook["cells"] if executed.INSTALL in "".join(cell["source"]))
    install["source"] = [line.replace('"0.', '"9.') for line in install["source"]]
    notebook["cells"][0]["source"] = ["# Another title"]
    assert executed.fingerprint(notebook) == before
    executed.code_cells(notebook)[-1]["source"] += ["\nprint(1)"]
    assert executed.fingerprint(notebook) != before


def test_stored_outputs_come_back_on_the_page_with_their_pictures_as_files(tmp_path, monkeypatch):
    monkeypatch.setattr(executed, "STORE", tmp_path / "executed")
    path = NOTEBOOKS[0]
    notebook = nbformat.read(path, as_version=4)
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    data = {executed.WIDGET: {}, "text/html": f'<img src="data:image/png;base64,{picture}">'}
    progress_bar = {executed.WIDGET: {}, "text/plain": "pictures: 0%"}
    outputs = [nbformat.v4.new_output("display_data", each) for each in (progress_bar, data)]
    executed.code_cells(notebook)[1]["outputs"] = outputs
    about = {"day": "2026-11-26", "machine": "2 cores", "commit": "0123456789", "seconds": 90, "busy": False}
    executed.store(path, notebook, about)
    notebooks.make(tmp_path)
    page = json.loads((tmp_path / "pages" / "notebooks" / path.name).read_text())
    (shown,) = executed.code_cells(page)[1]["outputs"]
    name = re.fullmatch(r'<img src="../_static/notebooks/(\w+\.webp)">', shown["data"]["text/html"])[1]
    with Image.open(tmp_path / "static" / "notebooks" / name) as image:
        assert image.size == (1, 1)
    first = "".join(page["cells"][0]["source"])
    assert "2 minutes on 2 cores with commit" in first
    assert "badge.svg" not in first
    assert "https://molab.marimo.io/github/" in first


def test_a_notebook_that_failed_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(executed, "STORE", tmp_path)
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    executed.code_cells(notebook)[0]["outputs"] = [nbformat.v4.new_output("error", ename="ValueError")]
    with pytest.raises(ValueError, match="runs to its end"):
        executed.store(NOTEBOOKS[0], notebook, {})
    assert not list(tmp_path.iterdir())


def test_links_of_documents_lead_to_pages_or_to_the_published_repository(tmp_path):
    documents.make(tmp_path)
    joining = (tmp_path / "pages/docs/joining.md").read_text()
    assert "[](troubleshooting.md)" in joining
    everything = "".join(page.read_text() for page in (tmp_path / "pages").rglob("*.md"))
    assert re.search(r"\]\(https://github.com/[\w-]+/[\w-]+/blob/main/pyproject.toml\)", everything)
    for page in (tmp_path / "pages").rglob("*.md"):
        for _, target, _ in documents.LINK.findall(page.read_text()):
            made = (page.parent / target).exists() or target.endswith(".ipynb")
            assert made, f"{page.name}: {target}"


def test_a_diagram_that_the_site_does_not_draw_is_said_to_be_one(tmp_path):
    documents.make(tmp_path)
    told = r"language, which \[GitHub draws\]\(https://github.com/\S+/docs/architecture.md\):\n\n```mermaid\n"
    page = (tmp_path / "pages/docs/architecture.md").read_text()
    assert len(re.findall(told, page)) == page.count("```mermaid") == 2


def test_a_link_to_a_file_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    source = tmp_path / "docs" / "page.md"
    source.parent.mkdir()
    source.write_text("[gone](../gone.py)")
    with pytest.raises(FileNotFoundError, match="mend the link"):
        documents.with_links(source, {source})


def test_the_glossary_explains_every_word_of_the_map(tmp_path):
    glossary.make(tmp_path)
    page = (tmp_path / "pages" / "glossary.md").read_text()
    table = (ROOT / "docs/architecture.md").read_text().split("## Glossary")[1]
    assert page.count("\n  ") == table.count("\n| ") - 2
    assert "\ncandidate\n  one of the many pictures" in page


def test_the_reference_tells_of_all_that_one_needs_first(tmp_path):
    reference.make(tmp_path)
    pages = {page.stem: page.read_text() for page in (tmp_path / "pages" / "api").iterdir()}
    for name in dalle_lib.__all__:
        assert [page for page, text in pages.items() if re.search(rf"{{py:\w+}} {name}\b", text)], name
        assert re.search(rf"`{name} <dalle_lib\.\w+\.{name}>`", pages["index"]), name


def test_the_reference_shows_signatures_and_shapes_as_they_are_written():
    entry = sources.entry_of("dalle_lib.model.dalle", "DALLE")
    assert entry.signature == "(config: ModelConfig)"
    (forward,) = (member for member in entry.members if member.name == "forward")
    assert 'text: Int[Tensor, "batch text"]' in forward.signature
    assert "self" not in forward.signature
    settings = sources.entry_of("dalle_lib.swarm.process.settings", "PeerSettings")
    assert {"run", "name"} <= {member.name for member in settings.members if member.kind == "attribute"}
    assert "_run" not in {member.name for member in settings.members}


def test_the_command_lines_page_has_the_help_of_every_command(tmp_path):
    commands.make(tmp_path)
    page = (tmp_path / "pages" / "cli.md").read_text()
    for name, command in COMMANDS.items():
        for words, _ in commands.words_of(name, command):
            assert f"## {words}\n\n```text\nusage: dalle-lib {words} " in page
    assert str(ROOT) not in page


def test_pages_are_gathered_once_and_old_ones_go(tmp_path):
    site, made, pages = (tmp_path / name for name in ("site", "site/_made", "site/_build/pages"))
    (made / "pages").mkdir(parents=True)
    (site / "index.md").write_text("# Written")
    (made / "pages" / "other.md").write_text("# Made")
    gather(site, made, pages)
    assert {page.name for page in pages.glob("*.md")} == {"index.md", "other.md"}
    (made / "pages" / "other.md").rename(made / "pages" / "index.md")
    with pytest.raises(FileExistsError, match="each page once"):
        gather(site, made, pages)
    (made / "pages" / "index.md").unlink()
    gather(site, made, pages)
    assert {page.name for page in pages.glob("*.md")} == {"index.md"}


def test_pictures_get_their_size_and_toggles_a_name(tmp_path):
    Image.new("RGB", (7, 5)).save(tmp_path / "a.webp")
    (tmp_path / "b.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20"/>')
    text = mended('<img alt="" src="a.webp"><img src="b.svg" width="3"><img src="b.svg">', tmp_path / "page.html")
    assert re.search(r'<img [^>]*width="7" height="5" alt="" src="a.webp">', text)
    assert re.search(r'<img [^>]*width="30" height="20" src="b.svg">', text)
    assert re.search(r'src="b.svg" width="3">', text)
    assert 'width="7"' in mended("<img src='a.webp' alt='a'>", tmp_path / "page.html")
    with pytest.raises(FileNotFoundError):
        mended('<img src="gone.webp">', tmp_path / "page.html")
    toggle = mended('<summary><span class="toctree-toggle" role="presentation">', tmp_path / "page.html")
    assert toggle.startswith('<summary aria-label="')


def test_scripts_and_styles_of_the_site_are_short_and_free_of_injection():
    listing = subprocess.run(["git", "ls-files", "site"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listing.stdout.split():
        if name.endswith((".js", ".css")):
            text = (ROOT / name).read_text()
            assert len(text.splitlines()) <= 300, name
            assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval)\b|document\.write", text), name
            assert name.endswith(".css") or text.startswith('"use strict";'), name


def test_a_build_that_ends_early_leaves_what_was_built_before(tmp_path, monkeypatch):
    build, page = load_script("site/build"), tmp_path / "html" / "index.html"
    page.parent.mkdir()
    page.write_text("before")
    monkeypatch.setattr(build, "STEPS", [])  # then written pages lack what they include, which is a warning
    for name, folder in {"MADE": "made", "BUILT": "", "PAGES": "pages", "BEGUN": "begun", "HTML": "html"}.items():
        monkeypatch.setattr(build, name, tmp_path / folder)
    with pytest.raises(SystemExit) as ended:
        build.main()
    assert ended.value.code
    assert page.read_text() == "before"
    with FileLock(tmp_path / "lock"), pytest.raises(SystemExit, match="expected one build at a time"):
        build.main()


def test_a_build_that_is_killed_while_it_removes_the_one_before_leaves_a_whole_site(tmp_path):
    code = """import os, sys
from pathlib import Path
removed = []
def count(event, args):
    if event == "os.remove" and (removed.append(args) or len(removed) == 2):
        os._exit(9)
from machinery.gathering import put_in_place
sys.addaudithook(count)
put_in_place(Path("begun"), Path("html"))
"""
    for number in range(4):
        (tmp_path / "begun").mkdir(exist_ok=True)
        for name in "abc":
            (tmp_path / "begun" / name).write_text(str(number))
        environment = {"PYTHONPATH": str(ROOT / "site")}
        ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
        found = [file.read_text() for file in (tmp_path / "html").iterdir()]
        assert len(found) == 3
        assert len(set(found)) == 1
        assert ended.returncode == (9 if number else 0)


def test_a_runtime_that_npm_did_not_finish_is_not_taken(tmp_path, monkeypatch):
    from making import draw

    (tmp_path / "package-lock.json").write_bytes((ROOT / "site" / "package-lock.json").read_bytes())
    dist = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    dist.mkdir(parents=True)
    for name in draw.RUNTIME:
        (dist / name).write_bytes(b"half")
    monkeypatch.setattr(draw, "NPM", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert not draw.copy_runtime(tmp_path)
