"""Simulated links carry no more than their rates and lose no bytes; rounds come to what small ones come to by hand."""

import numpy as np
import pytest
import simpy
from simulated import WORK, people

from dalle_lib.planning.constants import ROUND_SLOWDOWN
from scaling import rounds
from scaling.distributions import BYTES_PER_MBIT, Distributions, Population
from scaling.links import Network, fair_rates
from scaling.rounds import exchange, kinds_of, shares_of, with_leavers


def test_rates_are_fair_and_fill_links_without_exceeding_them():
    random = np.random.default_rng(0)
    for coarse in 1e-9, 0.05:
        capacity = random.uniform(1, 100, 14)
        links = np.stack([random.integers(0, 7, 60), random.integers(7, 14, 60)])
        rates = fair_rates(capacity, links, coarse=coarse)
        used = sum(np.bincount(side, rates, 14) for side in links)
        assert (used <= capacity * (1 + 1e-9)).all()
        full = used >= capacity * (1 - 1e-6 - coarse * 14)
        assert (full[links[0]] | full[links[1]]).all(), "a flow on no full link could run faster"
        for flow in range(60):
            on_full = [side for side in links[:, flow] if full[side]]
            others = [np.isin(links, side).any(0) for side in on_full]
            assert any(rates[flow] >= rates[some].max() * (1 - 0.3 * (coarse > 1e-6) - 1e-6) for some in others)


def test_two_flows_on_one_upload_get_half_each_and_the_rest_when_one_is_done():
    env = simpy.Environment()
    network = Network(env, np.array([10.0, 100.0, 100.0]), np.array([100.0, 100.0, 2.0]))
    arrived = {}

    def send(to: int, size: float):
        yield network.send(0, to, size).done
        arrived[to] = env.now

    env.process(send(1, 30.0))
    env.process(send(2, 12.0))
    env.run()
    assert arrived == {1: pytest.approx(30 / 8), 2: pytest.approx(6.0)}  # 2 a second is all that peer 2 takes
    assert network.sent(0) == pytest.approx(42)
    assert network.received(1) + network.received(2) == pytest.approx(42)


@pytest.mark.parametrize("grain_s", [0.0, 0.2])
def test_what_is_sent_is_received_and_no_link_carries_more_than_its_rate(grain_s):
    random, env = np.random.default_rng(1), simpy.Environment()
    up, down = random.uniform(1, 50, 6), random.uniform(1, 50, 6)
    network, sizes, left = Network(env, up, down, grain_s), [], []

    def send():
        for _ in range(40):
            yield env.timeout(random.exponential(0.3))
            source, target = random.choice(6, 2, replace=False)
            sizes.append(random.exponential(40))
            transfer = network.send(int(source), int(target), sizes[-1])
            if random.random() < 0.2:
                yield env.timeout(0.5)
                left.append(network.stop(transfer))

    def watch():
        while True:
            before = network.carried.copy()
            yield env.timeout(1.0)
            network._settle()
            assert (network.carried - before <= np.concatenate([up, down]) + 1e-6).all()

    env.process(watch())
    for _ in range(3):
        env.process(send())
    env.run(until=400)
    sent, received = network.carried[:6], network.carried[6:]
    assert 0 < sum(left) < sum(sizes)
    assert sent.sum() == pytest.approx(received.sum())
    assert sent.sum() == pytest.approx(sum(sizes) - sum(left))


def test_two_peers_average_in_the_time_that_the_slower_one_needs_for_half_of_both():
    pair = people([16.0, 800.0])
    done = exchange(np.arange(2), pair, np.array([0.5, 0.5]), WORK)
    bytes_each = (WORK.up_bytes + WORK.answer_bytes) / 2
    assert done.sent == pytest.approx([bytes_each] * 2, rel=0.01)
    assert done.received == pytest.approx(done.sent)
    assert done.links_s == pytest.approx(bytes_each / (16 * BYTES_PER_MBIT), rel=0.03)
    assert done.seconds == pytest.approx(ROUND_SLOWDOWN * done.links_s)


def test_a_client_sends_its_own_parts_once_and_gets_each_average_once():
    three = people([40.0, 400.0, 400.0], clients=(0,))
    shares = shares_of(np.arange(3), three, vouched=np.array([], int))
    assert list(shares) == [0.0, 0.5, 0.5]
    done = exchange(np.arange(3), three, shares, WORK)
    assert done.sent[0] == pytest.approx(WORK.up_bytes, rel=0.01)
    assert done.received[0] == pytest.approx(WORK.answer_bytes, rel=0.01)
    assert done.sent.sum() == pytest.approx(done.received.sum())
    assert done.links_s == pytest.approx(WORK.up_bytes / (40 * BYTES_PER_MBIT), rel=0.05), "answers come meanwhile"


def test_what_is_averaged_again_is_sent_by_all_and_received_by_reducers():
    crowd = people([100.0] * 5, clients=(0,))
    shares = shares_of(np.arange(5), crowd, np.array([], int))
    without, checked = (exchange(np.arange(5), crowd, shares, WORK.with_changes(audits=count)) for count in (0, 2))
    more = 2 * WORK.up_bytes / WORK.messages * 4 / 5
    assert checked.sent - without.sent == pytest.approx([more] * 5)
    assert checked.received - without.received == pytest.approx([0, *[more * 5 / 4] * 4])


def test_no_answer_overtakes_the_slowest_senders_parts(monkeypatch):
    mixed, steps, share_rates = people([8.0, 400.0, 30.0, 400.0], clients=(0,)), [], rounds._rates

    def watched(capacity, links, weights, left, size, other, flows, step_s):
        rates = share_rates(capacity, links, weights, left, size, other, flows, step_s)
        done = 1 - np.maximum(0.0, left - rates * step_s) / size
        for reducer in np.unique(other):
            steps.append((done[:flows][other == reducer].min(), done[flows:][other == reducer].max()))
        return rates

    monkeypatch.setattr(rounds, "_rates", watched)
    shares = shares_of(np.arange(4), mixed, np.array([], int))
    took_s = exchange(np.arange(4), mixed, shares, WORK).links_s
    assert took_s >= WORK.up_bytes / (8 * BYTES_PER_MBIT)
    assert all(answered <= parts + 1e-9 for parts, answered in steps)
    assert any(0 < answered < 1 for _, answered in steps), "reducers answer while others still send"


def test_many_peers_by_kinds_take_about_as_long_as_each_by_itself(monkeypatch):
    random = np.random.default_rng(2)
    crowd = Population.drawn(30, Distributions(), random, first_peers=0)
    shares = shares_of(np.arange(30), crowd, np.array([], int))
    assert len(kinds_of(np.arange(30), crowd, shares)) == 30
    exact = exchange(np.arange(30), crowd, shares, WORK)
    monkeypatch.setattr("scaling.rounds.EXACT_UP_TO", 0)
    assert len(kinds_of(np.arange(30), crowd, shares)) < 30
    by_kinds = exchange(np.arange(30), crowd, shares, WORK)
    assert by_kinds.links_s == pytest.approx(exact.links_s, rel=0.2)
    assert by_kinds.sent.sum() == pytest.approx(exact.sent.sum(), rel=0.02)


def test_vouched_peers_take_over_from_slow_links():
    mixed = people([8.0, 8.0, 800.0, 800.0])
    assert list(shares_of(np.arange(4), mixed, np.array([2]))) == [0.25] * 4, "one alone is measured by nobody"
    assert list(shares_of(np.arange(4), mixed, np.array([2, 3]))) == pytest.approx([0, 0, 0.5, 0.5], abs=0.01)


def test_who_leaves_in_a_round_is_waited_for_only_if_it_vanishes():
    group, four = np.arange(4), people([80.0] * 4)
    shares = np.full(4, 0.25)
    done = exchange(group, four, shares, WORK)
    at = np.array([np.inf, done.seconds / 2, np.inf, np.inf])
    closed = with_leavers(done, shares, at, np.zeros(4, bool), timeout_s=40)
    assert not closed.is_whole
    assert closed.lost_share == pytest.approx(0.125)
    assert closed.seconds == done.seconds
    vanished = with_leavers(done, shares, at, np.arange(4) == 1, timeout_s=40)
    assert vanished.seconds == pytest.approx(max(20 + done.seconds / 2, 30))
    client = with_leavers(done, np.array([0.5, 0, 0.25, 0.25]), at, np.arange(4) == 1, timeout_s=40)
    assert client.is_whole
    assert client.seconds == pytest.approx(20 + done.seconds / 2)
