"""Who claims more than their share of the averaged weights is flagged, and nobody else."""

import pytest
from claims import flagged
from statuses import peer_status
from test_monitor_credits import ada, look, observer  # noqa: F401  (a fixture)

from dalle_lib.monitor.alarms import problems
from dalle_lib.monitor.auditing import FACTOR, MIN_ROUNDS, most_counted, note_claim
from dalle_lib.swarm.process.evidence import MAX_EVIDENCE, MAX_WITNESSED, witness, witnessed
from dalle_lib.swarm.process.status import SwarmStatus

WEIGHTS = {f"Qm{number:044}": 10.0 + number for number in range(9)}
OWN = f"Qm{0:044}"


def test_what_a_peer_saw_of_others_comes_back_and_is_short():
    text = witness(10**9 - 1, {peer: weight * 123456.789 for peer, weight in WEIGHTS.items()}, OWN)
    epoch, found = witnessed(text, WEIGHTS)
    assert (epoch, len(found)) == (10**9 - 1, MAX_WITNESSED)
    assert OWN not in found
    assert all(weight == pytest.approx(WEIGHTS[peer] * 123456.789, rel=1e-5) for peer, weight in found.items())
    assert len(text) <= MAX_EVIDENCE
    assert witness(3, {OWN: 5.0, "QmOther": 0.0}, OWN) == "", "nobody else counted"


@pytest.mark.parametrize(
    "text",
    ["", "7", "x 00000001=3", "7 00000001=nan", "7 00000001=1e13", "7 00000001=-1", "7 " + "00000001=1 " * 5,
     "7 00000001", "-7 00000001=1", "٧ 00000001=1"],
)  # fmt: skip
def test_nonsense_about_others_is_passed_over(text):
    assert witnessed(text, WEIGHTS) is None


def test_few_epochs_judge_nobody_and_for_untold_ones_the_largest_weight_is_allowed():
    assert most_counted(MIN_ROUNDS - 1, [10.0] * 20, []) is None
    assert most_counted(20, [10.0] * 13, [10.0] * 7) is None, "of seven epochs only one user tells"
    assert most_counted(19, [10.0] * 20, []) == FACTOR * 200
    assert most_counted(19, [10.0] * 18, [20.0]) == FACTOR * 220
    assert most_counted(19, [10.0] * 18, [1e9]) == FACTOR * 240, "one friend may not help without limit"


def test_peers_that_lie_by_half_or_more_are_flagged_and_honest_ones_are_not():
    found = flagged(60, epoch_s=20, honest=6, liars=(2.0, 10.0), look_s=10)
    assert set(found) == {"liar-0", "liar-1"}


def test_two_fast_peers_that_average_apart_from_the_others_are_not_flagged():
    assert not flagged(42, epoch_s=60, honest=12, liars=(), look_s=20, seed=7)


@pytest.mark.parametrize(("epochs", "accused"), [((10, 10, 10, 10), [OWN]), ((10, 10, 4, 7), [])])
def test_nobody_is_accused_anew_while_the_peers_are_far_apart(observer, epochs, accused):  # noqa: F811
    ids, database = list(WEIGHTS)[: len(epochs)], observer.database
    for epoch in range(1, 11):
        note_claim(database, OWN, epoch, rounds=1, counted=30.0, excess_s=0.0)
        for place, witness_id in enumerate(ids[1:]):
            database.insert(
                "weights", epoch=epoch, witness=witness_id, place=place, user=witness_id, peer=OWN, weight=10.0
            )  # fmt: skip
    peers = [peer_status(each, each[-1], epoch=epoch) for each, epoch in zip(ids, epochs, strict=True)]
    now = SwarmStatus(
        time=200.0, epoch=10, total_epochs=99, samples_in_epoch=None, target_batch_size=100, peers=peers
    )  # fmt: skip
    assert [problem.subject for problem in problems(now, database) if problem.kind == "claims"] == accused


def test_an_epoch_to_which_the_peers_median_comes_twice_is_one_round(observer):  # noqa: F811
    for second, epoch in enumerate([1, 5, 2, 5, 3, 6], start=1):
        look(observer, 60 * second, ada(30 * second, epoch=epoch))
    assert observer.database.row("SELECT SUM(rounds) AS rounds FROM claims")["rounds"] == 5


def test_computing_longer_than_the_clock_is_flagged(observer):  # noqa: F811
    look(observer, 10, ada(5))
    for second in range(20, 200, 10):
        peers = [ada(3.0 * second, epoch=1 + second // 50), ada(second, peer="B", name="bob", epoch=1 + second // 50)]
        look(observer, second, *peers)
    now = SwarmStatus(
        time=200.0, epoch=4, total_epochs=99, samples_in_epoch=None, target_batch_size=100, peers=peers
    )  # fmt: skip
    told = [problem.told for problem in problems(now, observer.database) if problem.kind == "claims"]
    assert told == ["ada (A) claims 380 seconds of computing more than have passed."]
