"""The built site as a static Space, as the stand-in for the Hub sees it, and the workflow for GitHub Pages."""

import re
import subprocess
import sys

import pytest
import yaml
from checkout import ROOT, load_script
from filelock import FileLock
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from dalle_lib.rehearsal.hub.stand_in import User

WASM = "_static/draw/ort-wasm-simd-threaded.wasm"
FILES = {
    WASM: "x", "index.html": "<p>hello", "_static/dalle.js": "1;", ".buildinfo": "x", ".doctrees/a.doctree": "x",
    "notebooks/01.html": "<p>1",
}  # fmt: skip


@pytest.fixture
def publisher(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return load_script("scripts/publish_site")


@pytest.fixture
def built(tmp_path):
    for name, text in FILES.items():
        (tmp_path / "html" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "html" / name).write_text(text)
    return tmp_path / "html"


def files_of(api: HfApi, space: str) -> set[str]:
    return set(api.list_repo_files(space, repo_type="space"))


def test_the_space_holds_what_was_built_and_nothing_of_before(hub, publisher, built, monkeypatch):
    hub.users["hf_ada"] = User("ada", {"crew": "write"})
    monkeypatch.setenv("HF_TOKEN", "hf_ada")
    api, repository = HfApi(endpoint=hub.url, token="hf_ada"), publisher.Repository("crew/kit", "v1.0.0")
    address = publisher.publish_site("crew/kit", built, repository)
    assert address == f"{hub.url}/spaces/crew/kit"
    shown = {"README.md", WASM, "index.html", "_static/dalle.js", "notebooks/01.html"}
    assert files_of(api, "crew/kit") == shown
    readme = (built / "README.md").read_text()
    _, matter, rest = readme.split("---\n")
    told = yaml.safe_load(matter)
    assert (told["sdk"], told["app_file"], told["title"], told["license"]) == (
        "static",
        "index.html",
        "kit",
        "apache-2.0",
    )
    assert len(told["short_description"]) <= 60
    assert "https://github.com/crew/kit/tree/v1.0.0" in rest
    (built / "notebooks" / "01.html").unlink()
    (built / "new.html").write_text("<p>new")
    publisher.publish_site("crew/kit", built, repository)
    assert files_of(api, "crew/kit") == shown - {"notebooks/01.html"} | {"new.html"}


def test_who_may_not_write_there_or_has_built_nothing_sends_nothing(hub, publisher, built, tmp_path, monkeypatch):
    hub.users["hf_bob"] = User("bob")
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    repository = publisher.Repository.read()
    with pytest.raises(HfHubHTTPError) as refused:
        publisher.publish_site("crew/kit", built, repository)
    assert refused.value.response.status_code == 403
    with pytest.raises(ValueError, match="make site"):
        publisher.publish_site("bob/kit", tmp_path, repository)
    with pytest.raises(ValueError, match="owner/name"):
        publisher.publish_site("kit", built, repository)
    with FileLock(built.parent / "lock"), pytest.raises(ValueError, match="wait until it has ended"):
        publisher.publish_site("bob/kit", built, repository)
    (built / WASM).unlink()
    with pytest.raises(ValueError, match="npm was missing or failed"):
        publisher.publish_site("bob/kit", built, repository)
    assert not hub.store.repositories


def test_the_command_names_the_space_as_the_repository_is_called(hub, publisher, built, monkeypatch):
    hub.users["hf_ada"] = User("ada", {"dalle-lib": "write"})
    monkeypatch.setenv("HF_TOKEN", "hf_ada")
    command = [sys.executable, "scripts/publish_site.py", "--built", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"{hub.url}/spaces/{publisher.Repository.read().slug}", done.stderr
    done = subprocess.run([*command[:-1], str(built / "none")], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "run `make site` first" in done.stderr
    assert "Traceback" not in done.stderr
    hub.users["hf_bob"] = User("bob")
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("publish_site: the Hub did not take the site: ")
    assert "hf_bob" not in done.stdout + done.stderr


def test_the_workflow_may_write_to_pages_alone_and_only_the_job_that_publishes_may():
    text = (ROOT / ".github" / "workflows" / "site.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "permissions" not in build
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert publish["needs"] == "build"
    assert "refs/heads/main" in publish["if"]
    made, drawing = build["steps"][2:4]
    assert made == {"run": "make site"}
    assert drawing["run"] == f"test -f site/_build/html/{WASM}"
    assert not re.search(r"secrets\.", text)
    assert all(re.search(r"@v\d+$", use) for use in re.findall(r"uses: (\S+)", text))
