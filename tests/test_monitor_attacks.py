"""What strangers and liars did to a monitor, and do no more."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from PIL import Image
from test_monitor_credits import BEGAN, ada, look, observer  # noqa: F401  (a fixture)

from dalle_lib.files import BrokenFile
from dalle_lib.monitor.alarms import AGAIN_S, Problem, note, problems
from dalle_lib.monitor.anonymous import anonymised, tags_in
from dalle_lib.monitor.auditing import Auditor, believed, note_claim
from dalle_lib.monitor.contributions import contributions
from dalle_lib.monitor.crediting import EARLIER_S, MAX_STARTS_OF_USER, OVERSHOOT
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.losses import MIN_RECOMPUTED, note_recomputed
from dalle_lib.monitor.observing import MAX_STARTS, Observer
from dalle_lib.monitor.page import write_page
from dalle_lib.monitor.published import MAX_ALARMS, history_of, status_of
from dalle_lib.organizing.model_page import FIRST, PAGE_FOLDER, PROMPTS_FILE, PageFacts
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm.process.evidence import witness
from dalle_lib.swarm.process.status import SwarmStatus, median_epoch


def test_a_peer_that_calls_itself_otherwise_does_not_end_the_status(mini, observer):  # noqa: F811
    look(observer, 5, ada(0))
    look(observer, 900, ada(800))
    found = look(observer, 910, ada(805, name="eve"))
    assert {one.user: one.compute_s for one in found} == {"ada": 800, "eve": 5}
    assert [row[1] for row in status_of(mini, observer.database, BEGAN + 910)["users"]] == ["ada"]


def test_one_user_with_many_peers_does_not_move_the_epoch():
    peers = [ada(1, peer=f"M{number}", epoch=90) for number in range(5)]
    peers += [ada(1, peer="A", epoch=3), ada(1, peer="B", epoch=4)]
    users = {peer.peer_id: "mallory" for peer in peers[:5]} | {"A": "ada", "B": "bob"}
    assert median_epoch(peers, users, 99) == 4
    assert median_epoch(peers, {}, 50) == 50, "without members each is a user, and no epoch is beyond the last"
    assert median_epoch([], {}, 50) is None


def test_a_crowd_that_claims_the_last_epoch_for_a_while_changes_neither_pace_nor_credits(mini, observer, tmp_path):  # noqa: F811
    observer = Observer(observer.database, shortest_epoch_s=10.0)
    crowd = [ada(1, peer=f"M{number}", name=f"m{number}", epoch=10**9, loss=9e5) for number in range(3)]
    for second in range(10, 1200, 10):
        liar = ada(second, peer="L", name="liar", epoch=1 + second // 60, counted=1e12 * second)
        peers = [ada(second, epoch=1 + second // 60), liar, *(crowd if second == 600 else [])]
        look(observer, second, *peers)
    newcomer = ada(50, peer="N", name="new", started=1150.0, epoch=20, samples=300, counted=150.0)
    found = {one.user: one for one in look(observer, 1200, *peers[:2], newcomer)}
    assert found["liar"].counted <= OVERSHOOT * 100 * (1 + 600 / 10)
    assert found["new"].samples > 0
    told = status_of(mini, observer.database, BEGAN + 1200)
    assert (told["epoch"], told["epoch_s"]) == (20, 60)
    assert max(history_of(mini, observer.database, tmp_path)["epochs"]["epoch"]) == 99


def test_looks_by_a_clock_that_was_ahead_are_forgotten(mini, observer, tmp_path):  # noqa: F811
    look(observer, 10, ada(5))
    look(observer, 10**7, ada(20, epoch=2))
    (found,) = look(observer, 300, ada(120, epoch=3))
    assert (found.compute_s, found.last_seen) == (120, BEGAN + 300)
    assert history_of(mini, observer.database, tmp_path)["epochs"]["epoch"] == [1, 2, 3]


def claimed(observer, liar):  # noqa: F811
    """Let a monitor watch six honest users for 20 epochs of a minute, and a liar who claims 150 samples of each.

    `liar` returns the liar's status, or None, for an epoch. Returns who is flagged, and what users are credited with.
    """
    found, names = set(), [f"h{number}" for number in range(6)]
    for second in range(10, 20 * 60, 10):
        epoch = second // 60
        told = liar(epoch, second)
        ids = [*names, "MMMMMMMM"] if told is not None else names
        peers = [
            ada(0.7 * second, peer=f"Qm{name:0>44}", name=name, epoch=epoch, counted=15.0 * epoch,
                witnessed=witness(epoch - 1, {f"Qm{each:0>44}": 15.0 for each in ids}, f"Qm{name:0>44}"))
            for name in names
        ]  # fmt: skip
        seen = SwarmStatus(
            time=BEGAN + second, epoch=epoch, total_epochs=99, samples_in_epoch=None, target_batch_size=100,
            peers=peers + ([told] if told is not None else []),
        )  # fmt: skip
        seen = anonymised(seen, b"k" * 32, tags_in(observer.database, seen.time))
        observer.note(seen)
        flags = [problem for problem in problems(seen, observer.database) if problem.kind == "claims"]
        note(flags, observer.database, seen.time)
        found |= {problem.told.partition(" ")[0] for problem in flags}
    return found, {one.user: one.counted for one in contributions(observer.database, seen.time, least_s=0.0)}


def liar(epoch, second, **told):
    return ada(second, peer=f"Qm{'MMMMMMMM':0>44}", name="mallory", epoch=epoch, counted=150.0 * epoch, **told)


def test_who_takes_part_in_nothing_and_claims_all_is_flagged_and_credited_no_more(observer):  # noqa: F811
    found, credits = claimed(observer, lambda epoch, second: replace(liar(epoch, second), peer_id=f"Qm{'N':0>44}"))
    assert found == {"mallory"}
    assert credits["mallory"] < 150 * 10, "of the half of its claims in which it was not flagged yet"
    assert credits["h0"] == 15 * 19


def test_who_shows_itself_only_now_and_then_is_flagged(observer):  # noqa: F811
    found, _ = claimed(observer, lambda epoch, second: liar(epoch, second) if epoch % 3 == 0 else None)
    assert found == {"mallory"}


def test_who_asks_for_anonymity_in_every_other_epoch_has_one_tag_and_is_flagged(observer):  # noqa: F811
    found, credits = claimed(observer, lambda epoch, second: liar(epoch, second, anonymous=epoch % 2 == 1))
    assert {name.partition("-")[0] for name in found} == {"anonymous"}
    assert credits["mallory"] == 0, "only the first epoch was under its name"


def test_problems_that_come_and_go_are_told_once_and_hide_none_of_the_run(mini, observer):  # noqa: F811
    database, told, subjects = observer.database, [], [f"M{number}" for number in range(MAX_ALARMS + 5)]
    stalled = Problem("stalled", "", "no epoch has ended.")
    for number in range(200):
        apart = [Problem("apart", subject, "m is far behind.") for subject in subjects if number % 2]
        told += note([stalled, *apart], database, BEGAN + 10 * number)
    assert len(told) == 1 + len(subjects) == database.count("SELECT COUNT(*) FROM alarms")
    assert status_of(mini, database, BEGAN)["alarms"][0]["kind"] == "stalled"
    assert note([stalled], database, BEGAN + 2000) == []
    assert len(note([stalled, *apart], database, BEGAN + 2001 + AGAIN_S)) == len(subjects), "it is new an hour later"


def test_problems_that_are_over_are_not_remembered_without_a_limit(observer, monkeypatch):  # noqa: F811
    monkeypatch.setattr("dalle_lib.monitor.alarms.MAX_OVER", 10)
    for number in range(50):
        note([Problem("apart", f"M{number}", "m is far behind.")], observer.database, BEGAN + number)
    assert [row["subject"] for row in observer.database.rows("SELECT subject FROM alarms ORDER BY since")] == [
        f"M{number}" for number in range(39, 50)
    ]  # fmt: skip


def test_a_data_base_that_is_in_use_is_not_called_broken(tmp_path):
    file = tmp_path / "monitor.sqlite"
    with closing(MonitorDatabase(file)), closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            ValueError, match=r"cannot be written now .database is locked.: end what else uses it"
        ) as told:
            MonitorDatabase(file, wait_s=0.1)
    assert not isinstance(told.value, BrokenFile)
    MonitorDatabase(file).close()


def test_long_captions_of_the_data_do_not_end_the_page(mini, observer, tmp_path):  # noqa: F811
    (tmp_path / PAGE_FOLDER).mkdir()
    captions = ["\N{SMILE}" * 10_000 + "`|<script>\x1b[2J"] * 8
    (tmp_path / PAGE_FOLDER / PROMPTS_FILE).write_text(json.dumps({"seen": captions, "unseen": captions}))
    Image.new("RGB", (8, 8)).save(tmp_path / PAGE_FOLDER / FIRST)
    write_page(tmp_path, mini, status_of(mini, observer.database, BEGAN), history_of(mini, observer.database, tmp_path))
    assert len((tmp_path / PAGE).read_text()) < 20_000


def test_a_new_id_in_each_look_brings_little_more_than_the_time_that_passed(observer):  # noqa: F811
    look(observer, 3600, ada(0, peer="A", name="other"))
    peers = [ada(10**6, peer=f"M{number}", started=10.0 * number) for number in range(20)]
    for number, peer in enumerate(peers):
        found = look(observer, 3610 + 10 * number, peer)
    assert {one.user: one.compute_s for one in found}["ada"] <= 20 * (EARLIER_S + 20)


@pytest.mark.parametrize("figures", [{"held_out_loss": 1}, {"held_out_loss": 1, "half_width": 0, "rank": 1}, [1]])
def test_a_status_on_the_hub_whose_figures_make_no_page_is_told_as_broken(mini, hub, figures):
    status = {"users": [], "checkpoints": [{"epoch": 3, "figures": figures}]}
    hub.add("crew/kept", {STATUS: json.dumps(status).encode()})
    with pytest.raises(BrokenFile, match="the standing of a run"):
        PageFacts.of(mini.with_changes(checkpoints="crew/kept"))


def test_a_few_who_always_tell_of_the_same_peer_cannot_have_it_flagged(observer):  # noqa: F811
    ids = [f"Qm{number:044}" for number in range(28)]
    for epoch in range(1, 20):
        weights = dict.fromkeys(ids, 10.0)
        told = [witness(epoch - 1, weights, peer) for peer in ids[:24]] + [f"0{epoch - 1} {ids[0][-8:]}=1"] * 4
        peers = [
            ada(30 * epoch, peer=peer, name=peer[-3:], epoch=epoch, counted=10.0 * epoch, witnessed=text)
            for peer, text in zip(ids, told, strict=True)
        ]  # fmt: skip
        seen = SwarmStatus(
            time=BEGAN + 60 * epoch, epoch=epoch, total_epochs=99, samples_in_epoch=None, target_batch_size=100,
            peers=peers,
        )  # fmt: skip
        seen = believed(seen)
        observer.note(seen)
        assert not [problem.told for problem in problems(seen, observer.database) if problem.kind == "claims"]
    told_of = observer.database.count("SELECT COUNT(*) FROM weights WHERE peer = :peer AND weight = 10", peer=ids[0])
    assert told_of > 50, "the honest tell of it"


def test_a_checkpoint_without_a_finite_loss_does_not_end_all_later_looks(observer):  # noqa: F811
    look(observer, 5, ada(0))
    for epoch in range(MIN_RECOMPUTED):
        note_recomputed(observer.database, epoch, "A", 1.5, math.nan if epoch % 2 else math.inf)
    now = SwarmStatus(
        time=BEGAN + 10, epoch=1, total_epochs=99, samples_in_epoch=None, target_batch_size=100, peers=[ada(5)]
    )  # fmt: skip
    assert list(problems(now, observer.database)) == []
    assert observer.database.count("SELECT COUNT(*) FROM recomputed") == 0


def test_a_run_that_was_long_away_from_its_monitor_is_judged_by_the_last_epochs_alone(observer):  # noqa: F811
    note_claim(observer.database, "A", 10**9, rounds=10**9, counted=1.0, excess_s=0.0)
    status = SwarmStatus(
        time=BEGAN, epoch=10**9, total_epochs=10**9, samples_in_epoch=None, target_batch_size=100, peers=[ada(5)]
    )  # fmt: skip
    assert list(Auditor(observer.database).overclaims(status)) == [], "nobody told anything, and no epoch is looked at"


def test_a_user_with_many_peers_leaves_room_for_newcomers_of_others(observer):  # noqa: F811
    peers = [ada(5, peer=f"M{number}", name=f"!{number}") for number in range(MAX_STARTS)]
    found = look(observer, 10, *peers, ada(5, peer="A"), users={peer.peer_id: "mallory" for peer in peers})
    assert {one.user: one.peers for one in found} == {"ada": 1, "mallory": MAX_STARTS_OF_USER}
