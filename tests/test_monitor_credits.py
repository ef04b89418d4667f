"""What a monitor credits peers with: what they did, and no more than the clock allows, whatever they claim."""

import pytest
from statuses import peer_status

from dalle_lib.monitor.contributions import contributions
from dalle_lib.monitor.crediting import ABSENT_S, EARLIER_S, OVERSHOOT
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.swarm.process.status import SwarmStatus

BEGAN = 1_790_000_000.0


@pytest.fixture
def observer(tmp_path):
    database = MonitorDatabase(tmp_path / "monitor.sqlite")
    yield Observer(database)
    database.close()


def look(observer, after_s, *peers, users=None, target=100):
    """Let the monitor see these peers some seconds after the run began."""
    now = BEGAN + after_s
    observer.note(
        SwarmStatus(
            time=now, epoch=1, total_epochs=99, samples_in_epoch=None, target_batch_size=target, peers=list(peers),
            users=users or {},
        )
    )  # fmt: skip
    return contributions(observer.database, now, least_s=0.0)


def ada(compute_s, samples=0, counted=None, epoch=1, started=0.0, peer="A", name="ada", **told):
    """Return what a peer posts, whose gradient has counted all the time unless `counted` says otherwise."""
    counted = float(compute_s if counted is None else counted)
    told = {"compute_s": float(compute_s), "samples": samples, "counted": counted, "epoch": epoch, **told}
    return peer_status(peer, name, started_at=BEGAN + started, **told)


def test_a_peer_is_credited_with_what_it_did_and_with_the_time_that_it_was_there(observer):
    look(observer, 5, ada(3, samples=10))
    (found,) = look(observer, 65, ada(50, samples=80, counted=60.0, epoch=2))
    assert (found.user, found.compute_s, found.samples, found.counted) == ("ada", 50, 80, 60)
    assert found.present_s == pytest.approx(65)
    assert (found.rank, found.percentile, found.share, found.peers) == (1, 100.0, 1.0, 1)
    assert found.active_days == (True, True, True)


def test_claims_beyond_the_clock_and_beyond_all_samples_of_the_run_bring_nothing(observer):
    look(observer, 10, ada(5))
    (found,) = look(observer, 70, ada(10**6, samples=10**9, counted=1e9, epoch=2))
    assert found.compute_s == pytest.approx(70)
    assert found.samples == found.counted == OVERSHOOT * 200, "of the epoch that ended, and of the one that goes on"
    (found,) = look(observer, 80, ada(10**6, samples=10**9, counted=1e9, epoch=2))
    assert found.compute_s == pytest.approx(70), "what was claimed before does not count later"


def test_many_starts_of_one_peer_cannot_claim_one_hour_twice(observer):
    for start in range(1, 60):
        look(observer, 10 * start, ada(10**5, started=-float(start)))
    (found,) = look(observer, 600, ada(10**5, started=-9.0), ada(10**5, started=-(10.0**6)))
    assert found.compute_s <= 600 + EARLIER_S


def test_a_peer_that_posts_more_seldom_than_the_monitor_looks_is_credited_with_all(observer):
    for second in range(5, 1200, 5):
        posted = second // 60 * 60
        (found,) = look(observer, second, ada(0.8 * posted, samples=posted // 3, epoch=1 + posted // 300))
    assert (found.compute_s, found.samples) == (0.8 * posted, posted // 3)
    assert found.present_s == pytest.approx(1195)


def test_what_was_done_while_the_monitor_was_away_counts_but_not_the_presence(observer):
    look(observer, 10, ada(5))
    (found,) = look(observer, 10 + 3 * ABSENT_S, ada(55, samples=90))
    assert found.compute_s == 55
    assert found.present_s == pytest.approx(10 + 50)


def test_all_peers_of_a_user_count_together_and_names_cannot_be_forged(observer):
    users = {"A": "ada", "B": "ada", "M": "mallory"}
    peers = ada(10), ada(20, peer="B", name="desk"), ada(30, peer="M", name="ada")
    found = look(observer, 60, *peers, users=users)
    assert [(one.user, one.compute_s, one.peers, one.rank) for one in found] == [
        ("ada", 30, 2, 1), ("mallory", 30, 1, 1)
    ]  # fmt: skip
    assert [one.percentile for one in found] == [100.0, 100.0]


def test_hours_without_weight_bring_nothing_and_those_before_it_only_of_its_last_epochs(observer):
    for minute in range(30):
        counted = {"ada": 9.0 * minute, "late": 9.0 * (minute >= 29), "idle": 0.0, "slow": 1.0 * (minute // 2)}
        peers = [
            ada(54 * minute, samples=9 * minute, counted=weight, epoch=1 + minute, peer=name, name=name)
            for name, weight in counted.items()
        ]
        found = {one.user: (one.compute_s, one.samples) for one in look(observer, 60 * minute, *peers)}
    assert found["ada"] == (54 * 29, 9 * 29)
    assert found["slow"] == pytest.approx((54 * 28, 9 * 28)), "one in every other epoch is enough"
    assert found["late"] == pytest.approx((54 * 2, 9 * 2), rel=0.1)
    assert found["idle"] == (0, 0)


def test_a_peer_alone_needs_no_weight_and_records_of_short_epochs_may_be_late(observer):
    (found,) = look(observer, 600, ada(100, counted=0.0, started=500.0))
    assert found.compute_s == 100
    for second in range(605, 901, 5):
        posted, epoch = second // 50 * 50, second // 5
        bob = ada(second - 600, peer="B", name="bob", started=600.0, epoch=epoch)
        late = ada(posted - 500, counted=float(posted), started=500.0, epoch=epoch)
        found = {one.user: one.compute_s for one in look(observer, second, late, bob)}
    assert found == {"ada": 400, "bob": 300}


@pytest.mark.parametrize("held", ["", "you"])
def test_who_says_that_it_is_paused_is_not_alone_with_a_peer_at_work(observer, held):
    for second in 5, 65, 125:
        liar = ada(second, samples=second, counted=0.0, peer="M", name="mallory", held=held)
        found = {one.user: one.samples for one in look(observer, second, ada(second, samples=second), liar)}
    assert found == {"ada": 125, "mallory": 0}


def test_of_several_who_say_that_they_are_paused_none_is_alone(observer):
    for second in 5, 65, 125:
        liars = [
            ada(second, samples=second, counted=0.0, peer=name, name=name, held="you") for name in ("mallory", "eve")
        ]
        found = {one.user: one.samples for one in look(observer, second, ada(5, peer="A", held="busy"), *liars)}
    assert found["mallory"] == found["eve"] == 0


def test_a_look_that_is_not_newer_changes_nothing_as_with_two_monitors(observer):
    first = look(observer, 60, ada(30, samples=50))
    assert look(observer, 60, ada(60, samples=90)) == first
    assert look(observer, 50, ada(60, samples=90))[0].compute_s == 30


def test_epochs_have_the_median_loss_and_the_run_s_own_pace(observer):
    peers = [ada(1, peer=peer, epoch=3, loss=loss) for peer, loss in (("A", 2.0), ("B", 2.2), ("M", 9e5))]
    look(observer, 0, *peers)
    look(observer, 50, *[ada(1, peer=peer, epoch=5, loss=loss) for peer, loss in (("A", 1.0), ("B", 1.2), ("M", 9e5))])
    rows = observer.database.rows("SELECT * FROM epochs ORDER BY epoch")
    assert [(row["epoch"], row["loss"], row["peers"]) for row in rows] == [(3, 2.2, 3), (5, 1.2, 3)]
    assert (rows[1]["seconds"], rows[1]["samples_per_s"]) == (25.0, 4.0)
