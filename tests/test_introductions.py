"""What a peer tells its group counts only as it has signed it, for these rounds and now."""

from dataclasses import astuple, replace

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity
from dalle_lib.swarm import calls, wire
from dalle_lib.swarm.averaging import introductions
from dalle_lib.swarm.averaging.carried import ENTRY_BYTES, MAX_TOLD
from dalle_lib.swarm.averaging.introductions import (
    LATER,
    MAX_BYTES,
    VALID_S,
    Introduction,
    for_hivemind,
    read,
    shares_and_counted,
    signed,
    vote,
)
from dalle_lib.swarm.averaging.trust import Trust

ADA, EVE = (Identity(RSAPrivateKey()) for _ in range(2))
ROUNDS, TOLD = "run_grad_averager", Introduction(epoch=7, is_behind=True, token=b"token", is_reducer=False)


def peer(identity: Identity) -> PeerID:
    return PeerID.from_base58(identity.peer_id)


def gathered(told: list, bandwidth: float | None = None, mode: int = AveragingMode.NODE.value) -> bytes:
    """Return what hivemind makes of what a peer gives it to gather."""
    return MSGPackSerializer.dumps([bandwidth, mode, MSGPackSerializer.dumps(told)])


def message(*told) -> bytes:
    """Return an introduction of any content, which Ada has signed."""
    packed = wire.dumps(list(told))
    return gathered([packed, ADA.public_key, ADA.private_key.sign(packed)])


def test_what_a_peer_signs_is_what_others_read():
    assert read(gathered(signed(TOLD, ROUNDS, ADA)), peer(ADA), ROUNDS) == TOLD


NEW, WAITS = {"is_new": True}, {"is_counted": False}


@pytest.mark.parametrize(
    ("told", "epoch"),
    [
        ([(9, {}), (8, NEW), (8, NEW)], 9),
        ([(8, NEW), (8, NEW), (9, NEW)], 8),
        ([(9, {}), (8, {}), (8, {})], 8),
        ([(9, {}), (8, {})], 9),
        ([(7, WAITS), (7, WAITS), (9, {})], 9),
        ([(7, WAITS), (7, WAITS), (9, WAITS)], 7),
        ([(90, {}), (8, NEW), (8, NEW)], 9),
        ([(0, {}), (8, NEW), (8, NEW)], 7),
        ([(9, {}), (8, {}), (8, NEW), (8, NEW)], 8),
        ([(9, {}), (8, {}), (9, NEW), (9, NEW)], 9),
    ],
)
def test_newcomers_leave_it_to_the_others_which_of_the_epochs_next_to_theirs_a_round_is_of(told, epoch):
    group = {PeerID(bytes([i])): Introduction(of, **kind) for i, (of, kind) in enumerate(told)}
    assert vote(group, Trust()) == epoch


@pytest.mark.parametrize("bandwidth", [None, 0.0, 1e30, float("nan"), "much"])
@pytest.mark.parametrize("mode", [*(mode.value for mode in AveragingMode), 17])
def test_what_nobody_has_signed_counts_for_nothing(bandwidth, mode):
    told = signed(TOLD, ROUNDS, ADA)
    assert read(gathered(told, bandwidth, mode), peer(ADA), ROUNDS) == TOLD


def test_a_leader_cannot_change_what_a_peer_told_nor_speak_for_it():
    packed, key, signature = signed(TOLD, ROUNDS, ADA)
    for place in range(0, len(packed), 3):
        changed = packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]
        with pytest.raises(ValueError, match="changed after it had signed it"):
            read(gathered([changed, key, signature]), peer(ADA), ROUNDS)
    with pytest.raises(ValueError, match="signed by somebody else"):
        read(gathered(signed(TOLD, ROUNDS, EVE)), peer(ADA), ROUNDS)
    with pytest.raises(ValueError, match="changed after it had signed it"):
        read(gathered([packed, key, EVE.private_key.sign(packed)]), peer(ADA), ROUNDS)


def test_an_introduction_counts_for_its_rounds_and_for_ten_minutes(monkeypatch):
    told = gathered(signed(TOLD, ROUNDS, ADA))
    with pytest.raises(ValueError, match="other rounds: 'run_grad_averager'"):
        read(told, peer(ADA), "run_state_averager")
    for late_s in VALID_S + 60, -VALID_S - 60:  # it was signed a moment ago, or on a busy machine some seconds
        now = get_dht_time() + late_s
        monkeypatch.setattr(introductions, "get_dht_time", lambda now=now: now)
        with pytest.raises(ValueError, match="another time"):
            read(told, peer(ADA), ROUNDS)


@pytest.mark.parametrize(
    "told",
    [
        {0: "other_rounds"},
        {0: None},
        {1: float("nan")},
        {1: "now"},
        {1: 0},
        {2: -1},
        {2: 2**62},
        {2: True},
        {2: 7.0},
        {3: 1},
        {4: "token"},
        {5: None},
        {6: 0},
        {7: 1.0},
        {8: 1},
        {9: "carried"},
    ],
    ids=str,
)
def test_an_introduction_of_another_form_is_refused_though_it_is_signed(told):
    honest = dict(enumerate([ROUNDS, get_dht_time(), *astuple(TOLD)]))
    assert read(message(*honest.values()), peer(ADA), ROUNDS) == TOLD
    with pytest.raises(ValueError, match="its introduction"):
        read(message(*(honest | told).values()), peer(ADA), ROUNDS)


@pytest.mark.parametrize("fields", [0, 1, 7, 9, 11])
def test_an_introduction_with_too_few_or_too_many_fields_is_refused_though_it_is_signed(fields):
    honest = [ROUNDS, get_dht_time(), *astuple(TOLD), True]
    with pytest.raises(ValueError, match="another form"):
        read(message(*honest[:fields]), peer(ADA), ROUNDS)


@pytest.mark.parametrize("told", [TOLD, replace(TOLD, is_sparing=True)])
def test_what_a_later_version_adds_is_passed_over(told):
    fields = [ROUNDS, get_dht_time(), *astuple(told)]
    later = {"mood": "sunny", "numbers": [1.5, 2]}
    assert read(message(*fields, later), peer(ADA), ROUNDS) == told
    assert read(message(*fields[:-LATER], later), peer(ADA), ROUNDS) == replace(told, is_sparing=False)
    for wrong in [*fields, later, later], [*fields[:-1], later], [later], [*fields, [later]]:
        with pytest.raises(ValueError, match="another form"):
            read(message(*wrong), peer(ADA), ROUNDS)


@pytest.mark.parametrize(
    "gathered",
    [
        b"",
        b"\xc1",
        b"\x90",
        MSGPackSerializer.dumps([None, 0, b""]),
        gathered([]),
        gathered([1, 2, 3]),
        gathered([b""] * 3),
    ],
    ids=repr,
)
def test_what_is_not_signed_is_refused(gathered):
    with pytest.raises(ValueError, match=r"message|introduction|signed"):
        read(gathered, peer(ADA), ROUNDS)


def test_what_a_peer_has_measured_is_read_as_it_signed_it_and_left_out_where_it_has_nothing():
    told = replace(TOLD, carried=bytes(range(18)))
    assert read(gathered(signed(told, ROUNDS, ADA)), peer(ADA), ROUNDS) == told
    assert len(wire.loads(signed(TOLD, ROUNDS, ADA)[0])) == len(wire.loads(signed(told, ROUNDS, ADA)[0])) - LATER


@pytest.mark.parametrize("carried", [b"1", bytes(10), bytes(18), bytes(range(9)) + bytes(8) + b"1" * 560], ids=len)
def test_measurements_of_another_form_are_refused_though_they_are_signed(carried):
    told = replace(TOLD, carried=carried)
    with pytest.raises(
        ValueError, match=r"others' uploads in another form: (expected 9 bytes|it tells of a peer twice)"
    ):
        read(gathered(signed(told, ROUNDS, ADA)), peer(ADA), ROUNDS)


def test_the_introductions_of_the_largest_group_fit_into_one_message_and_longer_ones_are_refused():
    levels = b"".join(bytes([peer]) * ENTRY_BYTES for peer in range(MAX_TOLD))
    longest = replace(TOLD, token=bytes(4096), carried=levels)  # no access token is longer
    assert read(gathered(signed(longest, ROUNDS, ADA)), peer(ADA), ROUNDS) == longest
    peers = calls.MAX_STREAMS + 1
    group = averaging_pb2.MessageFromLeader(ordered_peer_ids=[bytes(40)] * peers, gathered=[bytes(MAX_BYTES)] * peers)
    assert group.ByteSize() <= wire.MAX_RECEIVED_BYTES
    for long in replace(TOLD, token=bytes(2**19)), replace(TOLD, token=bytes(MAX_BYTES)):
        with pytest.raises(ValueError, match="bytes: expected at most"):
            read(gathered(signed(long, ROUNDS, ADA)), peer(ADA), ROUNDS)
    with pytest.raises(ValueError, match="bytes: expected at most"):
        read(message(ROUNDS, get_dht_time(), *astuple(TOLD), {"later": bytes(MAX_BYTES)}), peer(ADA), ROUNDS)


def test_hivemind_gets_a_role_and_no_bandwidth():
    assert MSGPackSerializer.loads(for_hivemind(share=7))[:2] == [None, AveragingMode.NODE.value]
    assert MSGPackSerializer.loads(for_hivemind(share=0))[:2] == [0.0, AveragingMode.CLIENT.value]
    assert shares_and_counted([for_hivemind(7), for_hivemind(0, False)]) == ([7, 0], [True, False])
