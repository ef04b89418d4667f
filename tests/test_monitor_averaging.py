"""Which part of the gradients a monitor says was averaged, and what averaging sends: as most say, not one."""

import pytest
from statuses import peer_status

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.swarm.process.status import SwarmStatus

BEGAN, EPOCH_S, EPOCHS = 1_790_000_000.0, 60.0, 12


@pytest.fixture
def database(tmp_path):
    opened = MonitorDatabase(tmp_path / "monitor.sqlite")
    yield opened
    opened.close()


def honest(number, second, counts=1.0, kilobytes=100):
    """Return a peer with 100 samples an epoch, of which a part counts, that sends so many bytes, and takes twice."""
    epoch = int(second // EPOCH_S)
    return peer_status(
        f"P{number}", f"user-{number}", epoch=epoch, started_at=BEGAN, compute_s=0.9 * second,
        samples=int(100 * second / EPOCH_S), counted=100.0 * counts * epoch, sent_bytes=epoch * 1000 * kilobytes,
        received_bytes=epoch * 2000 * kilobytes,
    )  # fmt: skip


def liar(second, **told):
    """Return one that says what it likes."""
    return peer_status("L", "liar", epoch=int(second // EPOCH_S), started_at=BEGAN, compute_s=0.9 * second, **told)


def watch(database, peers_at, users=None):
    """Let a monitor look at a run every 20 s, and return what it wrote down of the last epoch."""
    observer = Observer(database)
    for second in range(0, int(EPOCHS * EPOCH_S) + 1, 20):
        observer.note(
            SwarmStatus(
                time=BEGAN + second, epoch=int(second // EPOCH_S), total_epochs=99, samples_in_epoch=None,
                target_batch_size=700, peers=peers_at(second), users=users or {},
            )
        )  # fmt: skip
    return database.row("SELECT * FROM epochs ORDER BY epoch DESC LIMIT 1")


@pytest.mark.parametrize(("counts", "share"), [([1.0] * 6, 1.0), ([0.5] * 6, 0.5), ([1.0, 1.0, 0.0, 0.0], 0.5)])
def test_the_share_of_averaged_gradients_is_what_counted_of_what_was_computed(database, counts, share):
    told = watch(database, lambda second: [honest(number, second, part) for number, part in enumerate(counts)])
    assert told["counted_share"] == pytest.approx(share, abs=0.02)
    first = database.row("SELECT * FROM epochs ORDER BY epoch LIMIT 1")
    assert first["counted_share"] is None, "the average of what was computed comes later"


def test_one_that_claims_samples_without_end_moves_the_share_a_little(database):
    def peers_at(second):
        return [*(honest(number, second) for number in range(20)), liar(second, samples=10**9 * second, counted=0.0)]

    assert 0.8 < watch(database, peers_at)["counted_share"] < 1


def test_who_is_flagged_for_its_claims_is_left_out_of_the_share(database):
    with database.writing():
        database.insert("alarms", kind="claims", subject="L", since=BEGAN, until=None, told="it claims too much.")
    told = watch(
        database, lambda second: [honest(0, second), honest(1, second), liar(second, samples=400 * second, counted=0.0)]
    )
    assert told["counted_share"] == pytest.approx(1.0, abs=0.02)


def test_bandwidth_is_the_median_users_whatever_one_claims_and_however_many_peers_one_has(database):
    users = {f"P{number}": "crowd" for number in range(5, 12)}

    def peers_at(second):
        crowd = [honest(number, second, kilobytes=9000) for number in range(5, 12)]
        return [*(honest(number, second) for number in range(5)), *crowd, liar(second, sent_bytes=10**15 * second)]

    told = watch(database, peers_at, users)
    assert told["up_mbps"] == pytest.approx(8 * 0.1 / EPOCH_S, rel=0.05)
    assert told["down_mbps"] == pytest.approx(8 * 0.2 / EPOCH_S, rel=0.05)


def test_a_peer_that_starts_again_does_not_send_less_than_nothing(database):
    def peers_at(second):
        peers = [honest(number, second) for number in range(3)]
        if second < 400:
            return peers
        return [peer_status(each.peer_id, each.name, epoch=each.epoch, started_at=BEGAN + 400) for each in peers]

    told = watch(database, peers_at)
    assert told["up_mbps"] == told["down_mbps"] == 0.0
