"""A whole run of real peers that its monitor finishes: what is there after the last epoch, without a hand."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import same_weights
from test_swarm import flat
from waiting import wait_until

from dalle_lib.auth.keys import PeerKey
from dalle_lib.checkpoint import load_model, read_header
from dalle_lib.inference import TextToImage
from dalle_lib.monitor.contributions import LISTED_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.monitor import DATABASE
from dalle_lib.organizing.publishing import PAGE, publish_run
from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.run import RunCard, initial_model
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.run.newest import STATUS, USER_COLUMNS, newest_checkpoint
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.process.folder import IDENTITY, epoch_in
from dalle_lib.swarm.process.history import counted_by, names_of
from dalle_lib.swarm.process.standing import Standing

RUN, CHECKPOINTS, TOKEN = "crew/photos", "crew/photos-checkpoints", "hf_ada"
DUTY, EPOCHS, PATIENCE_S = {"ada": 1.0, "bob": 1.0, "cleo": 0.5}, 4, 400.0
OPTIONS = (
    *("--checkpoint-minutes", "0.2", "--look-s", "1", "--status-s", "2", "--rows", "24", "--prompts", "4"),
    *("--no-judges", "--licence", "cc-by-4.0", "--host", "127.0.0.1"),
)


@pytest.mark.chaos
def test_after_the_last_epoch_the_monitor_does_all_that_ends_a_run(mini, hub, swarm_folder):
    hub.users[TOKEN] = User("ada", {"crew": "write"})
    watched = swarm_folder / "watched"
    (watched / "monitor").mkdir(parents=True)
    key = PeerKey.load_or_create(watched / "monitor" / IDENTITY)
    card = mini.with_changes(
        name="photos", checkpoint=None, checkpoints=CHECKPOINTS, monitors=(key.peer_id,),
        optimizer=mini.optimizer.model_dump() | {"total_epochs": EPOCHS, "warmup_epochs": 1},
        averaging=mini.averaging.model_dump() | {"target_batch_size": 64, "state_every": 2},
    )  # fmt: skip
    remember_ten_minutes(watched)
    with local_swarm(card, swarm_folder / "swarm") as swarm:
        here, swarm.run = swarm.run, RUN
        publish_run(here, RUN, TOKEN)
        with monitoring(watched):
            peers = [swarm.add(PeerSettings(run="", name=name, batch_size=8, duty=DUTY[name])) for name in DUTY]
            wait_until(lambda: status_in(watched).get("state") == "finished", PATIENCE_S)
            refused = newcomer(swarm_folder / "zoe")
            swarm.ask_to_stop()  # by themselves they would stay for a minute more
            swarm.wait(PATIENCE_S)
    assert {Standing.of(peer).state for peer in peers} == {"complete"}
    assert "run 'photos' is finished: there is nothing left to train" in refused

    finished = RunCard.load(RUN)
    newest = newest_checkpoint(RunCard.load(here))  # that card is open still, so the pointer and its signature count
    assert (finished.state, finished.checkpoint.sha256) == ("finished", newest.sha256[MODEL])
    assert newest.epoch == epoch_in(read_header(newest.fetched(OPTIMIZER))[1]) == EPOCHS

    draws = TextToImage.from_run(RUN, "cpu", clip=False)
    assert same_weights(draws.model, load_model(newest.fetched(MODEL), card.model))
    assert draws("penguin on a blue background", candidates=1, best=1).pictures[0].size == (64, 64)
    begins, last = flat(initial_model(card)), flat(draws.model)
    off = [float((flat(load_model(peer.folder / MODEL, card.model)) - last).norm()) for peer in peers]
    assert min(off) == 0.0, "it is what one of them ended with"
    assert max(off) < 0.2 * (last - begins).norm(), "averages in 8 bits do not explain so much"

    page = on_hub(hub, RUN, PAGE)
    drawn, figures = "chosen by nobody](page/first.webp)", f"\n| {EPOCHS} | "
    for words in "have trained together", f"{EPOCHS} of {EPOCHS} epochs", "license: cc-by-4.0", drawn, figures:
        assert words in page
    assert shares_on(page) == pytest.approx(shares_of(peers), abs=0.1), page
    for status in status_in(watched), json.loads(on_hub(hub, CHECKPOINTS, STATUS)):
        assert (status["state"], status["epoch"]) == ("finished", EPOCHS)
        assert [alarm["told"] for alarm in status["alarms"] if alarm["until"] is None] == []
        assert {row[USER_COLUMNS.index("user")] for row in status["users"]} == set(DUTY)


def remember_ten_minutes(watched: Path) -> None:
    """Let each volunteer have computed before, alone, for as long as one must to be thanked."""
    with closing(MonitorDatabase(watched / DATABASE)) as database:
        for name in DUTY:
            database.insert(
                "credits", hour=int(time.time() // 3600) - 1, user=name, peer=f"{name}'s other one", samples=0.0,
                compute_s=LISTED_S, present_s=LISTED_S, counted=0.0,
            )  # fmt: skip


@contextmanager
def monitoring(watched: Path) -> Iterator[None]:
    """Let `dalle-lib monitor` watch over the run meanwhile, with a log beside its folder."""
    log, token = watched.with_name("monitor.log"), watched.with_name("token")
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "dalle_lib", "monitor", "--run", RUN, "--folder", str(watched), *OPTIONS]
    with open(log, "wb") as output:
        monitor = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=os.environ | {"HF_TOKEN_PATH": str(token)},
        )  # fmt: skip
    try:
        yield
    finally:
        monitor.send_signal(signal.SIGINT)
        assert monitor.wait(PATIENCE_S) == 0, log.read_text()[-2000:]


def status_in(watched: Path) -> dict:
    file = watched / STATUS
    return json.loads(file.read_text()) if file.exists() else {}


def newcomer(folder: Path) -> str:
    """Return what somebody is told who wants to join now, and cannot."""
    command = ["join", "--run", RUN, "--name", folder.name, "--folder", str(folder), "--host", "127.0.0.1"]
    done = subprocess.run([sys.executable, "-m", "dalle_lib", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    return done.stderr


def shares_of(peers: list[Peer]) -> dict[str, float]:
    """Return each peer's part of the gradients that were averaged, as they themselves tell it."""
    counted = counted_by(peers[0], names_of(peers)).fillna(0.0).sum()
    return dict(counted / counted.sum())


def shares_on(page: str) -> dict[str, float]:
    """Return each contributor's part, as the page of the model thanks for it."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {name.strip("`"): float(share.rstrip("%")) / 100 for name, _hours, share in rows}


def on_hub(hub: Hub, repository: str, name: str) -> str:
    file = hub.store.repositories[repository]["commits"][-1]["files"][name]
    return hub.store.blob(file["sha256"]).read_text()
