"""Batches that peers tell are recomputed, and whose losses are not those of their rows is flagged."""

import random
from contextlib import closing

import pytest
import torch
from statuses import peer_status

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.machine import few_threads
from dalle_lib.monitor.alarms import problems
from dalle_lib.monitor.checkpoints import folder_of
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.losses import MIN_MISFITS, MIN_RECOMPUTED, MIN_SPREAD, misfits, note_recomputed
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.recomputing import MAX_ROWS, RECOMPUTED, Recomputer
from dalle_lib.run import batches_of
from dalle_lib.swarm.peer.epoch import EpochSoFar
from dalle_lib.swarm.process.evidence import BatchLoss
from dalle_lib.swarm.process.settings import seed_of
from dalle_lib.swarm.process.status import SwarmStatus

IDS = [f"Qm{number:044}" for number in range(3)]


@pytest.fixture
def database(tmp_path):
    opened = MonitorDatabase(tmp_path / "monitor.sqlite")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def model(mini):
    return load_model(mini.path(mini.checkpoint), mini.model)


def swarm_at(epoch: int, trained: dict[str, str]) -> SwarmStatus:
    peers = [peer_status(peer, f"peer-{peer[-1]}", epoch=epoch, trained=text) for peer, text in trained.items()]
    return SwarmStatus(
        time=1.79e9 + 60 * epoch, epoch=epoch, total_epochs=99, samples_in_epoch=None, target_batch_size=64,
        peers=peers,
    )  # fmt: skip


def trained_text(card, model, peer: str, epoch: int, batches: int) -> str:
    """Return what a peer tells that has trained on the rows of this many batches."""
    so_far = EpochSoFar(started=0.0)
    with closing(batches_of(card, 8, seed_of(peer))) as stream, torch.inference_mode(), few_threads(model):
        for _ in range(batches):
            batch = next(stream)
            so_far.count(batch, float(model(batch.text, batch.codes, batch.input_codes).loss), epoch)
    return so_far.trained


def test_what_a_peer_tells_is_found_again_and_copies_and_guesses_are_not(mini, model, database, tmp_path, monkeypatch):
    monkeypatch.setattr(Recomputer, "_run", lambda self: None)
    recomputer = Recomputer(mini, tmp_path, tmp_path / "monitor.sqlite")
    for epoch in range(1, 4):
        honest = trained_text(mini, model, IDS[0], epoch, epoch)
        guess = BatchLoss.read(honest)
        trained = {
            IDS[0]: honest, IDS[1]: honest,  # a copy of it
            IDS[2]: str(BatchLoss(epoch, 8 * epoch, 8, guess.loss + random.choice([-0.1, 0.1]))),
        }  # fmt: skip
        told = swarm_at(epoch + 1, trained)
        recomputer.note(told, told)
        folder = folder_of(tmp_path, epoch)
        folder.mkdir(parents=True)
        save_model(folder / "model.safetensors", model, epoch)
        recomputer.look(database)
        assert len(database.rows("SELECT * FROM recomputed WHERE epoch = :epoch", epoch=epoch)) == 0, (
            "others may still tell"
        )
        later = swarm_at(epoch + 2, {IDS[0]: str(BatchLoss(epoch + 1, 0, 8, 1.0))})
        recomputer.note(later, later)
        recomputer.look(database)
    recomputer.close()
    rows = {
        (row["epoch"], row["peer"]): row["claimed"] - row["found"] for row in database.rows("SELECT * FROM recomputed")
    }
    assert len(rows) == 3 * len(IDS)
    for epoch in range(1, 4):
        assert rows[epoch, IDS[0]] == pytest.approx(0.0, abs=1e-4)
        assert all(abs(rows[epoch, peer]) > 1e-3 for peer in IDS[1:])


def test_losses_that_never_fit_are_flagged_and_a_spread_that_all_have_is_not(database):
    random.seed(0)
    ids, status = [f"Qm{number:044}" for number in range(12)], swarm_at(50, dict.fromkeys(IDS, ""))
    flagged, size = set(), 0.01
    for epoch in range(0, 2000, 2):
        size = 10 ** random.uniform(-3, -1) if epoch % 100 == 0 else size
        for peer in random.sample(ids, RECOMPUTED):
            note_recomputed(
                database, epoch, peer, 4.0 + random.gauss(size, size), 4.0
            )  # the checkpoint is an epoch late
        flagged |= {peer for peer, _ in misfits(status, database)}
    assert not flagged
    for epoch in range(2000, 2008):
        for peer in ids[:4]:
            note_recomputed(database, epoch, peer, 4.0 + random.gauss(size, size) + 20 * size * (peer == IDS[1]), 4.0)
    observed = swarm_at(2001, dict.fromkeys(IDS, ""))
    Observer(database).note(observed)
    (problem,) = [problem for problem in problems(observed, database) if problem.kind == "losses"]
    assert problem.subject == IDS[1]


def test_a_peer_whose_losses_do_not_fit_at_some_checkpoints_is_flagged_only_if_that_goes_on(database):
    status = swarm_at(50, dict.fromkeys(IDS, ""))
    for epoch in range(MIN_MISFITS):
        assert not list(misfits(status, database))
        for peer in IDS:
            note_recomputed(database, epoch, peer, 4.0 + 0.2 * (peer == IDS[1]), 4.0)
    assert [peer for peer, _ in misfits(status, database)] == [IDS[1]]


def test_few_losses_judge_nobody_and_tiny_differences_fit(database):
    status = swarm_at(50, dict.fromkeys(IDS, ""))
    for epoch in range(MIN_RECOMPUTED):
        assert not list(misfits(status, database))
        for number, peer in enumerate(IDS[: 2 if epoch % 2 else 3]):
            note_recomputed(
                database, epoch, peer, 4.0 + (0.9 * MIN_SPREAD if epoch % 2 == 0 else 9.0) * (number == 1), 4.0
            )
    assert not list(misfits(status, database))


def test_who_computes_in_16_bits_among_others_that_do_not_fits(database):
    status = swarm_at(50, dict.fromkeys(IDS, ""))
    for epoch in range(MIN_RECOMPUTED):
        for peer in IDS:
            note_recomputed(database, epoch, peer, 0.5 + 0.006 * (-1) ** epoch * (peer == IDS[1]), 0.5)
    assert not list(misfits(status, database))


@pytest.mark.parametrize(
    "text", ["", "5 96 16", "5 96 16 nan", "5 96 16 1", "-5 96 16 1.5", "5 96 16 1.5 ", "5 96 16 1e3.5", "٥ 96 16 1.5",
             f"5 {10**15} 16 1.5"]
)  # fmt: skip
def test_nonsense_about_batches_is_passed_over(text):
    assert BatchLoss.read(text) is None


def test_only_small_batches_of_about_now_are_remembered(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(Recomputer, "_run", lambda self: None)
    recomputer = Recomputer(mini, tmp_path, tmp_path / "monitor.sqlite")
    for batch in BatchLoss(9, 0, MAX_ROWS + 1, 1.0), BatchLoss(9, 0, 0, 1.0), BatchLoss(5, 0, 8, 1.0):
        told = swarm_at(9, {IDS[0]: str(batch)})
        recomputer.note(told, told)
    assert recomputer._told == {}
    recomputer.close()
    local = mini.with_changes(averaging={**mini.averaging.model_dump(), "strategy": "local", "delayed": False})
    with pytest.raises(ValueError, match="make steps of their own"):
        Recomputer(local, tmp_path, tmp_path / "monitor.sqlite")
