"""Peers tell sketches of their parameters: how far they are apart, and whose are off, as most users say, not one."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from statuses import peer_status

from dalle_lib.compression import dequantize, quantize
from dalle_lib.monitor.alarms import problems
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.sketch import sketch
from dalle_lib.swarm.process.drift import (
    DIFFERENCE,
    FAR,
    MAX_COMPARED,
    MAX_SCALE,
    MAX_SKETCH,
    SIZE,
    Sketch,
    Spread,
    explained,
)
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

LIMIT = 0.1


@given(st.integers(0, 10**9 - 1), st.integers(0, 2**32), st.floats(0, 1e8))
def test_a_sketch_is_read_as_it_was_told(epoch, seed, scale):
    values = scale * np.random.default_rng(seed).normal(size=SIZE)
    text = str(Sketch(epoch, values))
    assert len(text) <= MAX_SKETCH
    read = Sketch.read(text)
    assert read.epoch == epoch
    np.testing.assert_allclose(read.values, values, rtol=0, atol=2e-5 * abs(values).max() + 1e-30)


RIGHT = str(Sketch(5, np.arange(float(SIZE))))


@given(st.text(max_size=MAX_SKETCH) | st.integers(0, len(RIGHT)).map(lambda at: f"{RIGHT[:at]}e{RIGHT[at + 1 :]}"))
def test_whatever_a_peer_tells_is_read_or_nothing(text):
    read = Sketch.read(text)
    assert read is None or np.isfinite(read.values).all()


@pytest.mark.parametrize("scale", ["1e999", "nan", "-1", "1e10", "1.2.3", "e"])
def test_a_sketch_that_cannot_be_is_none(scale):
    epoch, _, levels = RIGHT.split(" ")
    assert Sketch.read(f"{epoch} 2 {levels}") is not None
    assert Sketch.read(f"{epoch} {scale} {levels}") is None


BASE = np.random.default_rng(0).normal(size=SIZE)


def told(off: float = 0.002, seed: int = 0, epoch: int = 5) -> str:
    """Return the sketch of a peer whose parameters are so far off, relative to their norm, in some direction."""
    way = np.random.default_rng(seed + 1).normal(size=SIZE)
    return str(Sketch(epoch, BASE + off * way * np.linalg.norm(BASE) / np.linalg.norm(way)))


def honest(count: int, **how) -> dict[str, str]:
    return {f"P{number}": told(seed=number, **how) for number in range(count)}


def test_who_is_off_is_found_and_how_far():
    spread = Spread.of(honest(4) | {"bad": told(0.3, seed=9)}, {})
    assert spread.epoch == 5
    assert spread.most < 0.005
    assert spread.off(LIMIT) == {"bad": pytest.approx(0.3, rel=0.05)}
    assert spread.farthest == pytest.approx(0.3, rel=0.05)
    assert Spread.of(honest(4), {}).off(LIMIT) == {}


def test_two_can_not_say_which_of_them_is_off_nor_can_halves():
    for good in 1, 3:
        spread = Spread.of(honest(good) | {f"bad{n}": told(0.3, seed=9) for n in range(good)}, {})
        assert spread.off(LIMIT) == {}
        assert spread.most > LIMIT


def test_one_user_makes_nobody_take_a_state_again_with_any_number_of_peers():
    lies = {f"L{number}": told(0.5, seed=99) for number in range(50)}
    users = dict.fromkeys(lies, "liar")
    assert set(Spread.of(honest(2) | lies, users).off(LIMIT)) == set(lies)
    assert set(Spread.of(honest(1) | lies, users).off(LIMIT)) == set(), "one against one"
    assert set(Spread.of(honest(2) | lies, {}).off(LIMIT)) == {"P0", "P1"}, "as many users are believed"


def test_the_peers_of_one_user_alone_judge_each_other():
    of_one = dict.fromkeys(["P0", "P1", "P2", "bad"], "ada")
    assert set(Spread.of(honest(3) | {"bad": told(0.3)}, of_one).off(LIMIT)) == {"bad"}


@pytest.mark.parametrize("seed", range(20))
def test_a_minority_of_liars_with_any_sketches_accuses_nobody_honest(seed):
    random = np.random.default_rng(seed)
    users = {f"P{number}": f"user-{number}" for number in range(5)}
    lies = {}
    for number in range(4):  # as near as may be, far, huge, nothing, of other epochs, and each with several peers
        for each in range(random.integers(1, 6)):
            peer, off = f"L{number}-{each}", random.choice([0.9 * LIMIT, 1.1 * LIMIT, 3.0, 1e8])
            lies[peer] = random.choice([told(off, int(random.integers(99)), int(random.choice([5, 5, 4, 10**8]))), ""])
            users[peer] = f"liar-{number}"
    spread = Spread.of(honest(5) | lies, users)
    assert not set(spread.off(LIMIT)) & set(honest(5))


PLACES = st.floats(-3 * LIMIT, 3 * LIMIT)


@given(
    liars=st.lists(st.tuples(PLACES, st.sampled_from([4, 5])), max_size=5),
    late=st.lists(st.sampled_from([4, 5, 6, None]), min_size=5, max_size=5),
)
@example(liars=[(0.99 * LIMIT, 5), *[(1.98 * LIMIT, 5)] * 3], late=[5, 5, 5, 4, 4])
@example(liars=[(3 * LIMIT, 5)] * 5, late=[5, 5, 5, 5, None])
def test_as_many_liars_as_honest_peers_accuse_no_honest_one_though_some_of_these_are_late(liars, late):
    """An honest peer that lacks an update, as after a round that liars made it miss, tells no sketch: `None`."""
    norm = np.linalg.norm(BASE)
    places = {f"L{number}": each for number, each in enumerate(liars)}
    places |= {f"P{number}": (-0.002 * number, epoch) for number, epoch in enumerate(late)}
    told = {
        peer: "" if epoch is None else str(Sketch(epoch, BASE + place * norm * np.eye(SIZE)[0]))
        for peer, (place, epoch) in places.items()
    }
    spread = Spread.of(told, {})
    assert spread is None or not [peer for peer in spread.off(LIMIT) if peer.startswith("P")]


def test_a_liar_just_within_the_limit_of_most_is_not_the_measure_of_the_others():
    near, far = (BASE + shift * np.eye(SIZE)[0] * np.linalg.norm(BASE) for shift in (0.002, -0.002))
    sketches = {"P0": near, "P1": near, "P2": near, "victim": far}
    sketches["liar"] = BASE + 0.999 * LIMIT * np.eye(SIZE)[0] * np.linalg.norm(BASE)
    assert Spread.of({peer: str(Sketch(5, values)) for peer, values in sketches.items()}, {}).off(LIMIT) == {}


def test_only_sketches_of_the_same_update_are_compared_and_a_minority_of_them_decides_nothing():
    before = honest(3, epoch=4)
    spread = Spread.of(before | {"ahead": told(0.3, epoch=5)}, {})
    assert (spread.epoch, set(spread.apart)) == (4, set(before))
    few = {"P0": told(), "P1": told(seed=1), "victim": told(0.3)}
    others = {f"Q{number}": told(epoch=6 + number) for number in range(3)}
    assert Spread.of(few, {}).off(LIMIT) == {"victim": pytest.approx(0.3, rel=0.05)}
    assert Spread.of(few | others, {}).off(LIMIT) == {}, "two of six users"


def test_a_few_of_a_flood_of_peers_are_compared_and_a_distance_that_nobody_can_have_is_told_in_few_digits():
    spread = Spread.of({f"F{number}": told(seed=number) for number in range(MAX_COMPARED + 500)}, {})
    assert len(spread.apart) == MAX_COMPARED
    huge = str(Sketch(5, MAX_SCALE * np.ones(SIZE)))
    for sketches in {"a": told(), "b": huge}, {"a": huge, "b": str(Sketch(5, np.zeros(SIZE)))}:
        assert Spread.of(sketches, {}).most <= FAR


def test_steps_of_their_own_explain_any_distance():
    card = RunCard.load("emoji-mini")
    local = card.with_changes(averaging={**card.averaging.model_dump(), "strategy": "local", "delayed": False})
    assert Spread.of(honest(4) | {"bad": told(3.0, seed=9)}, {}).off(explained(local)) == {}


def test_who_tells_nothing_is_not_compared_and_is_one_of_all_users():
    assert Spread.of({}, {}) is None
    assert Spread.of({"old": "", "later": "what a later version says"}, {}) is None
    assert set(Spread.of(honest(2) | {"old": ""}, {}).apart) == {"P0", "P1"}
    two_of_three = honest(2) | {"bad": told(0.3, seed=9)}
    assert set(Spread.of(two_of_three, {}).off(LIMIT)) == {"bad"}
    assert Spread.of(two_of_three | {"old": ""}, {}).off(LIMIT) == {}, "two of four users"
    assert set(Spread.of(two_of_three | {"P2": ""}, {"P2": "P1"}).off(LIMIT)) == {"bad"}, "the user tells one"


def test_parameters_of_zero_are_compared_with_themselves_alone():
    zero = str(Sketch(0, np.zeros(SIZE)))
    assert Spread.of({"a": zero, "b": zero}, {}).off(LIMIT) == {}


def test_honest_peers_stay_below_the_limit_over_many_rounds_in_8_bits():
    # In float64 but for the codec: gradients are averaged as reducers answer them, the average less what they got.
    card, random = RunCard.load("emoji-mini"), torch.Generator().manual_seed(0)
    common = [torch.randn(shape, generator=random).double() for shape in ((130, 192), (64, 300))]
    peers, most = [[each.clone() for each in common] for _ in range(4)], 0.0
    for epoch in range(60):
        gradients = [[torch.randn(each.shape, generator=random).double() for each in common] for _ in peers]
        for place in range(len(common)):
            for peer, own in zip(peers, averaged([each[place] for each in gradients]), strict=True):
                peer[place] -= card.optimizer.lr * peer[place].norm() * own / own.norm()  # as LAMB does
        if epoch % card.averaging.state_every == 4:
            for place in range(len(common)):
                for peer, own in zip(peers, averaged([peer[place] for peer in peers]), strict=True):
                    peer[place] = own
        sketches = {str(number): str(Sketch(epoch, sketch(peer))) for number, peer in enumerate(peers)}
        most = max(most, Spread.of(sketches, {}).farthest)
    assert 0.001 < most < DIFFERENCE < explained(card)


def averaged(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what each peer has after a round: its own value, and the difference to the average, both in 8 bits."""
    sent = [coded(each) for each in values]
    mean = sum(sent) / len(sent)
    return [own + coded(mean - its) for own, its in zip(values, sent, strict=True)]


def coded(values: torch.Tensor) -> torch.Tensor:
    levels, codebook = quantize(values.float().reshape(-1))
    return dequantize(levels.numpy(), torch.from_numpy(codebook)).reshape(values.shape).double()


def swarm(peers: list[PeerStatus], second: float = 0.0) -> SwarmStatus:
    return SwarmStatus(time=1.79e9 + second, epoch=5, total_epochs=99, samples_in_epoch=None, target_batch_size=64,
                       peers=peers)  # fmt: skip


def peers_of(sketches: dict[str, str], **told) -> list[PeerStatus]:
    return [peer_status(peer, f"name-{peer}", sketch=text, **told) for peer, text in sketches.items()]


def test_a_status_tells_the_spread_of_peers_at_work():
    assert swarm(peers_of(honest(3))).spread.most < 0.005
    paused = [replace(each, held="schedule") for each in peers_of({"bad": told(0.3)})]
    assert set(swarm(peers_of(honest(3)) + paused).spread.apart) == {"P0", "P1", "P2"}
    assert swarm(peers_of(honest(1))).spread is None
    assert swarm(peers_of(honest(1) | {"other": told(epoch=6)})).spread is None


def test_a_monitor_names_who_is_off_and_remembers_the_spread(tmp_path):
    database = MonitorDatabase(tmp_path / "monitor.sqlite")
    try:
        observer = Observer(database, explained=LIMIT)
        _, found = observer.take_in(swarm(peers_of(honest(3) | {"bad": told(0.3)})), bytes(32), True)
        (problem,) = [each for each in found if each.kind == "off"]
        assert problem.subject == "bad"
        assert re.match(r"name-bad \(bad\) has parameters that are (29|30)\.\d% off those of most", problem.told)
        row = database.row("SELECT * FROM epochs")
        assert row["spread"] < 0.005 < 0.29 < row["farthest"] < 0.31
        observer.take_in(swarm(peers_of(dict.fromkeys(honest(3), ""), epoch=6), 60.0), bytes(32), True)
        last = database.row("SELECT * FROM epochs ORDER BY epoch DESC")
        assert (last["epoch"], last["spread"]) == (6, row["spread"]), "the last that was told"
        observer.take_in(swarm(peers_of(dict.fromkeys(honest(3), ""), epoch=20), 600.0), bytes(32), True)
        last = database.row("SELECT * FROM epochs ORDER BY epoch DESC")
        assert (last["epoch"], last["spread"], last["farthest"]) == (20, None, None), "it was told long ago"
        assert not list(problems(swarm(peers_of(honest(3))), database, explained=LIMIT))
    finally:
        database.close()
