"""The state of another peer is taken over bit for bit, and only if it can be right."""

import asyncio
import contextlib
import math
import subprocess
import sys
from types import SimpleNamespace

import msgpack
import pytest
import torch
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from one_hot import OneHotSwarm, one_hot_card
from state_donor import DONOR, EXPECTED, STATE, WHOLE, download_from, newcomer, sent

from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging import averagers, donors
from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.rounds import RoundsNow
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload

TRAVEL = """
import hivemind, torch
from hivemind.optim.state_averager import TrainingStateAverager
from dalle_lib.optimizer import LAMB8bit

SHAPES = (300, 301), (50, 7)

def peer(seed, initial_peers):
    torch.manual_seed(seed)
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=initial_peers)
    averager = TrainingStateAverager(
        dht=dht, prefix="travel", start=True, target_group_size=2, optimizer=LAMB8bit, offload_optimizer=True,
        custom_gradients=True, params=[torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES],
    )
    return dht, averager

def train(averager):
    for i, p in enumerate(averager.optimizer.param_groups[0]["params"]):
        p.grad.copy_(torch.randn(SHAPES[i], generator=torch.Generator().manual_seed(averager.local_epoch)))
    averager.step(optimizer_step=True, increment_epoch=True)

def check_equal(donor, joiner):
    for a, b in zip(donor.main_parameters, joiner.main_parameters, strict=True):
        assert torch.equal(a, b), "parameters differ"
    ours, theirs = (averager.optimizer.state_dict()["state"] for averager in (donor, joiner))
    scaled = {"first", "first_scales", "second", "second_scales"}
    assert [set(state) for state in theirs.values()] == [scaled, {"first", "second"}], "other things came along"
    for i, state in ours.items():
        for name, value in state.items():
            assert value.any(), name
            assert theirs[i][name].dtype == value.dtype, (i, name, theirs[i][name].dtype)
            assert torch.equal(theirs[i][name], value), (i, name)
    assert ours[0]["first"].dtype == ours[0]["second"].dtype == torch.uint8

peers = []
try:
    peers.append(peer(1, []))
    peers.append(peer(2, peers[0][0].get_visible_maddrs()))
    (_, donor), (_, joiner) = peers
    for _ in range(3):
        train(donor)
    donor.state_sharing_priority = donor.local_epoch
    joiner.load_state_from_peers(timeout=60)
    assert joiner.local_epoch == 3, "nothing was loaded"
    check_equal(donor, joiner)
    train(donor), train(joiner)
    check_equal(donor, joiner)
finally:
    for dht, averager in peers:
        averager.shutdown()
        dht.shutdown()
"""


def test_statistics_travel_to_a_peer_that_joins_bit_for_bit():
    done = subprocess.run([sys.executable, "-c", TRAVEL], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


def test_a_state_of_the_right_form_has_no_problem():
    assert EXPECTED.problem(*STATE) is None


@pytest.mark.parametrize(
    ("metadata", "tensors", "told"),
    [
        (None, STATE[1], "its epoch is None"),
        ({"epoch": "7"}, STATE[1], "its epoch is '7'"),
        ({"epoch": 4}, STATE[1], "its epoch is 4, expected 5 to 100"),
        ({"epoch": 101}, STATE[1], "its epoch is 101"),
        (STATE[0], STATE[1][:1], "it has 1 tensors, expected 2"),
        (STATE[0], [torch.zeros(3, 2), STATE[1][1]], r"its tensor 0 is torch.float32 (3, 2)"),
        (STATE[0], [STATE[1][0].half(), STATE[1][1]], "its tensor 0 is torch.float16"),
        (STATE[0], [STATE[1][0], torch.zeros(4)], "its tensor 1 is torch.float32"),
        (STATE[0], [torch.full((2, 3), math.nan), STATE[1][1]], "its tensor 0 holds NaN"),
        (STATE[0], [torch.full((2, 3), math.inf), STATE[1][1]], "its tensor 0 holds NaN or infinity"),
    ],
)
def test_a_state_that_cannot_be_right_is_refused_with_a_reason(metadata, tensors, told):
    assert told in EXPECTED.problem(metadata, tensors)


def taken_from(messages, monkeypatch, timeout_s: float = 60.0, **limits: float) -> tuple[str | None, int]:
    """Return why the state of a donor that sends these messages is refused, if it is, and how many were read.

    `limits` replace those of `donors`.
    """
    read = []

    async def counted():
        async for message in messages:
            read.append(1)
            yield message

    for name, value in limits.items():
        monkeypatch.setattr(donors, name, value)
    found, told = download_from(counted(), EXPECTED, timeout_s)
    return (None if found is not None else told[0]), len(read)


def test_a_state_that_arrives_whole_is_taken(monkeypatch):
    assert taken_from(sent(*WHOLE), monkeypatch) == (None, 2)


def test_who_is_told_to_wait_waits_and_then_takes_the_state(monkeypatch):
    waits = [donors.waiting_message(place, 2.0 * place) for place in (2, 1, 1)]
    assert taken_from(sent(*waits, *WHOLE), monkeypatch) == (None, 5)


def test_a_newcomer_tells_its_place_and_how_much_is_here(monkeypatch):
    monkeypatch.setattr(donors, "TELL_EVERY_S", 0.0)
    waits, held = [donors.waiting_message(place, 20.0 * place) for place in (2, 1)], donors.waiting_message(0, 0.0)
    nonsense = [donors.waiting_message(10**9, 1.0), donors.waiting_message(1, math.nan)]
    told, taken = [], []
    averager = newcomer({DONOR: 5}, lambda _: sent(*waits, WHOLE[0], held, WHOLE[1]), Trust(), told)
    donor, metadata, _ = asyncio.run(donors.download(averager, EXPECTED, 60.0, tell=taken.append))
    assert not told
    assert metadata == STATE[0], "word to wait in the middle of a state is no part of it"
    assert [(news.place, news.wait_s) for news in taken] == [(2, 40.0), (1, 20.0), (None, 0.0), (0, 0.0), (None, 0.0)]
    assert {news.source for news in taken} == {donor}
    assert 0 < taken[2].share <= taken[4].share <= 1
    for message in nonsense:
        taken.clear()
        averager = newcomer({DONOR: 5}, lambda _, first=message: sent(first, *WHOLE), Trust(), told)
        asyncio.run(donors.download(averager, EXPECTED, 60.0, tell=taken.append))
        assert all(news.place in (None, 1) and news.wait_s == 0.0 for news in taken)


def test_while_it_averages_a_donor_gives_nothing_but_word_to_wait(monkeypatch):
    monkeypatch.setattr(averagers, "TELL_PLACE_S", 0.01)
    monkeypatch.setattr("dalle_lib.swarm.averaging.answers.HANG_UP_S", 0.0)

    class Host:
        async def rpc_download_state(self, *_):
            for message in WHOLE:
                yield message

    class Donor(RunAverager, Host):
        request_timeout, total_size = 3.0, 10

        def __init__(self):
            self.trust, self.rounds_now, self.line, self.upload = Trust(), RoundsNow(), donors.Line(), Upload()

    async def come() -> str:
        donor, came = Donor(), ""
        rounds = contextlib.ExitStack()
        rounds.enter_context(donor.rounds_now.one_more(b"group"))
        answers = donor.rpc_download_state(None, SimpleNamespace(remote_id=PeerID(b"newcomer")))
        async for message in answers:
            came += "s" if message.tensor_part.dtype else "w"
            if came.count("w") % 3 == 0:
                rounds.close()
            if came.endswith("s") and came.count("s") < len(WHOLE):
                rounds.enter_context(donor.rounds_now.one_more(b"group"))
        assert donor.line.join(PeerID(b"newcomer")), "it is in the line no more"
        return came

    assert asyncio.run(come()) == "wwwswwws"


def test_who_waits_for_too_long_asks_another(monkeypatch):
    messages = sent(donors.waiting_message(1, 0.0), again=100, pause_s=0.01)
    told, _ = taken_from(messages, monkeypatch, MAX_WAIT_S=0.05)
    assert "it let this peer wait" in told


def test_newcomers_get_the_state_in_the_order_in_which_they_came():
    line = donors.Line()
    newcomers = [PeerID(bytes([number])) for number in range(donors.MAX_DOWNLOADS + donors.MAX_WAITING)]
    last = PeerID(b"last")
    assert line.join(newcomers[0])
    assert not line.join(newcomers[0]), "it is in the line already"
    assert all(map(line.join, newcomers[1:]))
    assert not line.join(last), "the line is full"
    places = [line.place_of(newcomer) for newcomer in newcomers]
    assert places == [0] * donors.MAX_DOWNLOADS + list(range(1, donors.MAX_WAITING + 1))
    line.leave(newcomers.pop(1))
    line.leave(newcomers.pop(-1))
    assert [line.place_of(newcomer) for newcomer in newcomers] == [0] * donors.MAX_DOWNLOADS + list(
        range(1, donors.MAX_WAITING - 1)
    )
    assert 0 < line.wait_s(1) == line.wait_s(donors.MAX_DOWNLOADS) < line.wait_s(donors.MAX_DOWNLOADS + 1)
    assert line.join(last)


def test_empty_messages_without_end_are_given_up(monkeypatch):
    told, read = taken_from(sent(averaging_pb2.DownloadData(), again=10**6), monkeypatch)
    assert "it is larger than the 28 bytes of the run's tensors" in told
    assert read < 1100


def test_a_donor_that_gives_none_now_is_told_as_one_that_is_not_broken():
    found, (told,) = download_from(sent(), EXPECTED, 60.0)
    assert found is None
    assert told.startswith("its state did not arrive: it gives none now")


def test_a_donor_that_sends_a_little_now_and_then_is_given_up(monkeypatch):
    messages = sent(averaging_pb2.DownloadData(), again=10**6, pause_s=0.2)
    told, _ = taken_from(messages, monkeypatch, timeout_s=1.0, MESSAGE_BYTES=0, SLOWEST_BYTES_PER_S=math.inf)
    assert "did not arrive: TimeoutError" in told


def test_metadata_that_would_end_a_process_are_refused(monkeypatch):
    message = b"\x90"
    for _ in range(300):
        message = msgpack.packb([msgpack.ExtType(wire.TUPLE, message)])
    told, _ = taken_from(sent(averaging_pb2.DownloadData(metadata=message)), monkeypatch)
    assert "12 containers" in told


def test_those_who_ask_and_hang_up_leave_one_copy_of_the_state_behind():
    made, copied = [], asyncio.Event()

    class Host:
        async def _get_current_state_from_host_process(self):
            made.append(1)
            await copied.wait()
            return STATE

    class Averager(RunAverager, Host):
        def __init__(self):
            self._copying = None

    async def ask() -> object:
        averager = Averager()
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(averager._get_current_state_from_host_process(), 0.01)
        waiting = asyncio.ensure_future(averager._get_current_state_from_host_process())
        await asyncio.sleep(0)
        copied.set()
        assert await waiting is STATE
        return averager._copying

    assert asyncio.run(ask()) is None, "it holds a copy that nobody gets"
    assert len(made) == 1


@pytest.mark.chaos
def test_a_newcomer_refuses_spoilt_states_and_takes_the_next(mini, swarm_folder):
    spoilt = {"with_nan": "NaN", "too_long": "its tensor 0 is torch.float32 (1000000,)", "silent": "did not arrive"}
    with OneHotSwarm(one_hot_card(mini, state_every=1000), swarm_folder) as swarm:
        honest, *liars = swarm.add(), *(swarm.add(spoils=how) for how in spoilt)
        swarm.go()
        swarm.wait_for_epoch(3)
        late = swarm.add()
        swarm.wait(lambda: late.events("joined"))
        swarm.wait(lambda: late.events("update"))
        told = {event["peer"]: event["problem"] for event in late.events("problem") if "state" in event["problem"]}
        assert {peer.peer_id for peer in liars} == set(told), swarm.told()
        for peer, what in zip(liars, spoilt.values(), strict=True):
            assert what in told[peer.peer_id], told
        (joined,) = late.events("joined")
        assert joined["epoch"] >= 3
        # It goes on from the honest peer's parameters; each peer's part of an update is less than 1.
        epoch, values = late.states()[0]
        assert values[:, 0].min() > 0.5
        assert torch.allclose(values, [v for e, v in honest.states() if e <= epoch][-1], atol=0.7)


@pytest.mark.chaos
def test_without_a_good_state_a_newcomer_goes_on_from_its_own_and_counts_once_averaged(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1000), swarm_folder) as swarm:
        liar = swarm.add(spoils="with_nan")
        swarm.go()
        swarm.wait_for_epoch(2)
        late = swarm.add()
        swarm.wait(lambda: late.events("joined"))
        joined_at = liar.epoch
        swarm.wait_together([liar, late], after=joined_at)
        (left_out, *_) = late.events("LeftOut")
        assert "no peer could give its state" in left_out["reason"]
        for _, values in (*liar.states(), *late.states()):
            assert values.isfinite().all()
        assert torch.allclose(liar.states()[-1][1], late.states()[-1][1], atol=1.1)  # equal within one update
