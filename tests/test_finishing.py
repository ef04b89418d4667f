"""A run ends with its last checkpoint beside the card and everybody's name on its page."""

import json

import pytest
import torch
import yaml

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.files import sha256_of
from dalle_lib.organizing.finishing import finish_run
from dalle_lib.organizing.publishing import publish_run
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard, RunClosed
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.run.newest import LATEST
from dalle_lib.run.state import require_open

RUN, CHECKPOINTS, TOKEN = "crew/photos", "crew/photos-checkpoints", "hf_ada"
PICTURE = b"a picture"
USERS = [[1, "ada", "", 7200, 9000, 4000, 0.75, 100.0, 2, 1.7e9, 1, 1, 1],
         [2, "bob | <b>", "cats", 1800, 2000, 900, 0.25, 50.0, 1, 1.7e9, 0, 1, 1]]  # fmt: skip


@pytest.fixture
def published(mini, hub, tmp_path):
    """A published run whose monitor has sent a checkpoint with weights of its own; return its model's file."""
    hub.users[TOKEN] = User("ada", {"crew": "write"})
    run = mini.with_changes(name="photos", checkpoint=None, checkpoints=CHECKPOINTS).save(tmp_path / "run")
    publish_run(run.parent if run.is_file() else run, RUN, TOKEN)
    model = load_model(mini.path(mini.checkpoint), mini.model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    save_model(tmp_path / MODEL, model, 30)
    folder, digest = "checkpoints/epoch-0000030", sha256_of(tmp_path / MODEL)
    files = {name: {"sha256": digest, "bytes": 5 * 10**7} for name in (MODEL, OPTIMIZER)}
    examined = [
        {"epoch": 30, "figures": {"held_out_loss": 3.125, "half_width": 0.05, "rows": 9}},
        {"epoch": 20, "figures": {}},
    ]
    status = {"users": USERS, "totals": {"listed": 1002}, "checkpoints": examined}
    hub.add(CHECKPOINTS, {
        LATEST: json.dumps({"epoch": 30, "folder": folder, "files": files}).encode(),
        f"{folder}/{MODEL}": (tmp_path / MODEL).read_bytes(),
        "status.json": json.dumps(status).encode(),
        "page/first.webp": PICTURE, "page/lapse.webp": bytes(2**20 + 1),
        "page/prompts.json": b'{"seen": ["taco"], "unseen": ["blue taco"]}',
    })  # fmt: skip
    return tmp_path / MODEL


def page_in(hub) -> str:
    files = hub.store.repositories[RUN]["commits"][-1]["files"]
    return hub.store.blob(files["README.md"]["sha256"]).read_text()


def test_the_last_checkpoint_is_the_cards_and_the_page_thanks_everybody(published, hub):
    finish_run(RUN, TOKEN, licence="cc-by-4.0")
    card = RunCard.load(RUN, TOKEN)
    assert card.state == "finished"
    assert sha256_of(card.path(card.checkpoint)) == sha256_of(published)
    with pytest.raises(RunClosed):
        require_open(card)
    page = page_in(hub)
    assert yaml.safe_load(page.split("---\n")[1])["license"] == "cc-by-4.0"
    assert "volunteers have trained together" in page
    assert "| `ada` | 2.0 | 75.0% |" in page
    assert "| `bob ¦ <b>` | 0.5 | 25.0% |" in page, "a name makes no table or tag of its own"
    assert "And 1,000 more." in page
    assert "| 30 | 3.125 ± 0.050 |" in page
    assert "![The first sample of each prompt, chosen by nobody](page/first.webp)" in page
    assert "`blue taco`" in page
    files = hub.store.repositories[RUN]["commits"][-1]["files"]
    assert hub.store.blob(files["page/first.webp"]["sha256"]).read_bytes() == PICTURE
    assert "page/lapse.webp" not in files, "it was too large for a page"
    assert "after 30 of 60 epochs" in page


def test_without_a_monitor_it_is_the_model_that_is_given(published, hub, mini):
    hub.add(CHECKPOINTS, {LATEST: None})
    before = hub.store.repositories[RUN]["commits"][-1]["sha"]
    with pytest.raises(ValueError, match="expected a checkpoint of crew/photos, but its monitor has sent none"):
        finish_run(RUN, TOKEN)
    with pytest.raises(ValueError, match="tokenizer"):
        finish_run(RUN, TOKEN, model=mini.path(mini.tokenizer))
    assert hub.store.repositories[RUN]["commits"][-1]["sha"] == before, "nothing was changed"
    finish_run(RUN, TOKEN, model=published)
    assert RunCard.load(RUN, TOKEN).checkpoint.sha256 == sha256_of(published)


def test_a_status_that_cannot_be_right_is_refused(published, hub):
    hub.add(CHECKPOINTS, {"status.json": b'{"users": [[1, "ada"]], "checkpoints": []}'})
    with pytest.raises(ValueError, match="the standing of a run"):
        finish_run(RUN, TOKEN)
    assert RunCard.load(RUN, TOKEN).state == "open"
