"""Simulated swarms meet, look, give states and average as small ones do by hand."""

import subprocess
import sys

import numpy as np
import pytest
import simpy
from checkout import ROOT, load_script
from simulated import WORK, people

from dalle_lib.planning import constants
from dalle_lib.planning.constants import (
    AVERAGER_BYTES,
    INTRODUCTION_BYTES,
    PROGRESS_BYTES,
    ROUND_SLOWDOWN,
    TABLE_REPLICAS,
)
from dalle_lib.swarm.averaging import group_keys
from dalle_lib.swarm.averaging.donors import MAX_DOWNLOADS
from dalle_lib.swarm.searches import SEARCH_S
from scaling.distributions import BYTES_PER_MBIT, Distributions, Population
from scaling.hash_table import HashTable
from scaling.links import Network
from scaling.matchmaking import Meeting
from scaling.processors import Processors
from scaling.report import ends
from scaling.states import PIECES, States
from scaling.swarm import Scenario, Swarm

scale = load_script("benchmarks/scale")


def table_of(env: simpy.Environment, crowd: Population) -> tuple[HashTable, Network]:
    network = Network(env, crowd.up, crowd.down)
    random = np.random.default_rng(0)
    return HashTable(env, crowd, network, Processors(env, len(crowd.up)), random), network


def test_a_look_brings_all_records_from_each_holder_and_a_store_none():
    env, crowd = simpy.Environment(), people([100.0] * 12)
    table, network = table_of(env, crowd)

    def play():
        for peer in range(12):
            yield from table.store(peer, "key", 60.0, PROGRESS_BYTES)
        holders = table.keys["key"].holders
        assert len(set(holders)) == TABLE_REPLICAS
        assert table.records_sent.sum() == 0
        reader = next(peer for peer in range(12) if peer not in holders)
        before = network.received(reader)
        assert list((yield from table.look(reader, "key"))) == list(range(12))
        assert network.received(reader) - before == pytest.approx(TABLE_REPLICAS * 12 * PROGRESS_BYTES)
        yield env.timeout(120)
        assert len((yield from table.look(reader, "key"))) == 0, "records expire"

    env.run(env.process(play()))
    assert table.names_sent.sum() > 0


def test_a_look_through_holders_that_are_too_slow_ends_in_vain():
    env, crowd = simpy.Environment(), people([0.0001] * 6)
    table, _ = table_of(env, crowd)

    def play():
        yield from table.store(0, "key", 600.0, PROGRESS_BYTES)
        reader = next(peer for peer in range(6) if peer not in table.keys["key"].holders)
        began = env.now
        assert len((yield from table.look(reader, "key"))) == 0
        assert env.now - began >= SEARCH_S

    env.run(env.process(play()))
    assert table.vain == 1


def meet(crowd: Population, starts: list[float], matchmaking_s: float = 3.0) -> Meeting:
    env = simpy.Environment()
    table, network = table_of(env, crowd)
    meeting = Meeting(env, crowd, network, table, table.processors, "epoch", matchmaking_s, 30.0)
    searches = [env.process(meeting.seek(peer, at)) for peer, at in enumerate(starts)]
    env.run(env.all_of(searches) | env.timeout(25))
    return meeting


def test_the_first_to_look_leads_all_who_come_in_time():
    meeting = meet(people([100.0] * 6), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    assert [sorted(group) for group in meeting.groups] == [[0, 1, 2, 3, 4, 5]]
    assert meeting.groups[0][0] == 0
    assert min(meeting.knew_at(peer, meeting.groups[0]) for peer in range(6)) >= 3.0
    assert max(meeting.knew_at(peer, meeting.groups[0]) for peer in range(6)) < 3.5


def test_who_comes_after_the_group_has_begun_is_not_in_it():
    meeting = meet(people([100.0] * 5), [0.0, 0.0, 0.0, 6.0, 6.0])
    assert sorted(map(sorted, meeting.groups)) == [[0, 1, 2], [3, 4]]


def test_clients_lead_nobody():
    meeting = meet(people([100.0] * 4, clients=(0, 1, 2)), [0.0, 0.0, 0.0, 1.0])
    assert [group[0] for group in meeting.groups] == [3]
    assert sorted(meeting.groups[0]) == [0, 1, 2, 3]


def test_a_leader_whose_link_is_too_slow_loses_its_followers():
    slow = people([0.02, *[100.0] * 7])
    meeting = meet(slow, [0.0] + [0.2] * 7)
    assert meeting.groups[0][0] == 0
    knew = [peer for peer in range(1, 8) if np.isfinite(meeting.knew_at(peer, meeting.groups[0]))]
    assert len(knew) < 7


def test_who_would_read_a_message_that_is_too_long_reads_nothing(monkeypatch):
    monkeypatch.setattr("scaling.matchmaking.MAX_RECEIVED_BYTES", 3 * INTRODUCTION_BYTES)
    starts = [0.0, 0.5, 1.0]
    fits = meet(people([100.0] * 3), starts)
    assert all(np.isfinite(fits.knew_at(peer, fits.groups[0])) for peer in range(3))
    too_long = meet(people([100.0] * 4), [*starts, 1.5])
    assert too_long.too_long
    assert not any(np.isfinite(too_long.knew_at(peer, too_long.groups[0])) for peer in range(1, 4))
    monkeypatch.setattr("scaling.hash_table.MAX_BYTES", 3 * AVERAGER_BYTES)
    unread = meet(people([100.0] * 8), [0.1 * peer for peer in range(8)])
    assert unread.table.vain > 0


def test_a_donor_gives_its_state_to_few_at_a_time_and_to_nobody_while_it_averages():
    env, crowd = simpy.Environment(), people([80.0] + [800.0] * 9)
    network = Network(env, crowd.up, crowd.down)
    states = States(env, crowd, network, np.random.default_rng(0), 100e6, is_counted={0})
    took = [env.process(states.take(peer)) for peer in range(1, 7)]
    env.run(until=5)
    assert network.sent(0) <= 5 * 80 * BYTES_PER_MBIT * 1.001
    states.pause(True)
    env.run(until=90)
    most = 5 * 80 * BYTES_PER_MBIT + MAX_DOWNLOADS * 100e6 / PIECES
    assert network.sent(0) <= most, "each finishes the piece that has begun, and no other"
    states.pause(False)
    env.run(env.all_of(took))
    assert all(process.value for process in took)
    assert network.sent(0) == pytest.approx(600e6)
    assert states.given_bytes == pytest.approx(600e6)


def small(peers: int, seed: int = 0, **changes) -> Scenario:
    options = {"peers": peers, "work": WORK, "vouched": 0, "first_peers": 1, "seed": seed, "epochs": 2, "step_s": 0.5}
    return Scenario(**options | changes)


def test_one_peer_computes_and_waits_for_nobody():
    outcome = Swarm(small(1, of=Distributions.equal(100, 1.0))).run()
    assert outcome.mean("largest") == 1
    assert outcome.mean("averaging_s") == 0
    assert outcome.mean("computing_s") == pytest.approx(60 * 0.5)


def test_two_peers_meet_average_and_need_no_more_than_their_steps_and_the_round():
    outcome = Swarm(small(2, of=Distributions.equal(100, 1.0))).run()
    assert outcome.mean("largest") == 2
    assert all(epoch.is_whole and epoch.group_count == 1 for epoch in outcome.epochs)
    round_s = ROUND_SLOWDOWN * (WORK.up_bytes + WORK.answer_bytes) / 2 / (100 * BYTES_PER_MBIT)
    assert outcome.mean("averaging_s") == pytest.approx(round_s, rel=0.05)
    for epoch in outcome.epochs:
        assert 0 <= epoch.matchmaking_s < 2.0
        assert epoch.seconds == pytest.approx(epoch.computing_s + epoch.matchmaking_s + epoch.averaging_s)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    of = Distributions(leave_per_minute=0.5)
    one, same, other = (Swarm(small(12, seed, of=of)).run() for seed in (3, 3, 4))
    assert one == same
    assert one.joins > 0
    assert one != other


def test_bytes_of_all_roles_and_purposes_are_the_same_bytes():
    swarm = Swarm(small(12, of=Distributions().without_churn(), vouched=2))
    outcome = swarm.run()
    clients = sum(bool(swarm.people.is_client[peer]) for peer in swarm.people.trainers)
    counts = {"first peer": 1, "client": clients, "reducer": 12 - clients}
    assert sum(outcome.sent[role] * counts[role] for role in outcome.sent) == pytest.approx(
        sum(outcome.parts.values()), rel=1e-6
    )
    assert sum(outcome.received[role] * counts[role] for role in outcome.received) == pytest.approx(
        sum(outcome.parts.values()), rel=1e-6
    )


def test_more_peers_make_the_hash_tables_holders_send_more_than_in_proportion():
    of = Distributions.equal(100, 1.0)
    eight, sixteen = (
        Swarm(small(count, of=of, work=WORK.with_changes(target_batch_size=16 * count))).run() for count in (8, 16)
    )
    assert eight.mean("computing_s") == sixteen.mean("computing_s")
    assert sixteen.parts["hash table"] > 3 * eight.parts["hash table"]


def test_a_flat_group_ends_at_the_first_size_that_fails():
    fine = {"together": 1.0, "looks_in_vain": 0.0, "overhead": 0.3, "whole_rounds": 1.0}
    told = ends({"40": fine, "200": fine | {"together": 0.8}, "1000": fine | {"together": 0.1, "overhead": 0.7}})
    assert told["fewer than 90% in one group"] == 200
    assert told["more waiting than computing"] == 1000
    assert told["more than 1% of looks in vain"] is None


def test_planning_and_matchmaking_look_as_often():
    assert constants.LOOK_EVERY_S == group_keys.LOOK_EVERY_S
    assert constants.LOOK_S_PER_PEER == group_keys.LOOK_S_PER_PEER


def test_the_kit_itself_does_not_need_simpy():
    found = subprocess.run(["git", "grep", "-l", "simpy", "--", "dalle_lib"], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == ""


def test_a_small_study_prints_what_make_bench_reads():
    command = [sys.executable, ROOT / "benchmarks" / "scale.py", "--peers", "6", "--epochs", "1", "--computing-s", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert scale.json.loads(done.stdout)["rows"]["6"]["together"] > 0
