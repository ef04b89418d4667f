"""A peer that was too slow for the others says so for some rounds: it reduces only in need, and hurries nobody."""

import queue

import pytest
from bare_optimizer import Averager, waiting
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging import averagers
from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.carried import Carried
from dalle_lib.swarm.averaging.introductions import Introduction, read
from dalle_lib.swarm.averaging.rounds import Group
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import FIRST_REST, Upload


class Asked:
    """What begins to look for a group."""

    def schedule_step(self, _scheduled_time, gather: list[bytes]) -> bytes:
        """Return what the peer tells, as hivemind gathers it."""
        return wire.dumps([None, AveragingMode.NODE.value, wire.dumps(gather)])


class Asking(RunAverager, Asked):
    """An averager without a network and a process."""

    prefix, mode = "rounds", AveragingMode.NODE

    def __init__(self, introduction: Introduction) -> None:
        self.trust, self.upload, self.carried = Trust(identity=Identity(RSAPrivateKey())), Upload(), Carried()
        self.introduction, self.peer_id = introduction, PeerID.from_base58(self.trust.identity.peer_id)

    def tells(self) -> Introduction:
        """Return what this peer tells the group of its next round."""
        return read(self.schedule_step(), self.peer_id, self.prefix)


def test_who_was_too_slow_reduces_only_in_need_and_has_nobody_average_parameters_at_once(monkeypatch):
    monkeypatch.setattr(averagers, "safe_to_call_off", lambda step: step)
    peer = Asking(Introduction(epoch=3, is_behind=True))
    assert peer.tells() == Introduction(epoch=3, is_behind=True)
    peer.upload.note_round(is_late=True)
    assert peer.tells() == Introduction(epoch=3, is_sparing=True)
    for _ in range(FIRST_REST):
        peer.upload.note_round(is_late=False)
    assert peer.tells() == Introduction(epoch=3, is_behind=True)


@pytest.mark.usefixtures("no_event_loop")
@pytest.mark.parametrize(("is_late", "others_ask"), [(False, False), (True, False), (True, True)])
def test_who_was_too_slow_looks_for_no_average_of_parameters_to_which_only_others_as_slow_would_come(
    is_late, others_ask
):
    peer = waiting(eta_s=300.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.tracker.newcomers, peer._gradient_epoch = 0, 6
    peer.upload.note_round(is_late)
    peer._outcome = lambda _: (Group({"own": 1.0, "b": 1.0}, 6, is_behind=others_ask, is_whole=False), "in part")
    peer._average_gradients_and_load_into_optimizer(Averager().schedule_step(timeout=30.0))
    assert peer.is_behind
    assert peer.parameter_rounds.due_after == (None if is_late and not others_ask else 6)


def rests(upload: Upload, *late: bool) -> list[bool]:
    """Return whether a peer steps back after each of some rounds, in which it was late or not."""
    return [upload.note_round(is_late) or upload.steps_back for is_late in late]


def test_who_is_too_slow_again_steps_back_for_longer_and_who_is_in_time_again_for_less():
    upload = Upload()
    for rounds in 4, 8, 16, 32, 64, 64:
        assert rests(upload, True, *[False] * rounds) == [True] * rounds + [False]
    assert not any(rests(upload, *[False] * 60))
    assert rests(upload, True, *[False] * 8) == [True] * 8 + [False]


def test_who_is_too_slow_even_for_its_own_tensors_steps_back_for_as_long_as_it_is():
    upload = Upload()
    assert all(rests(upload, *[True] * 9, False, False, False))
    assert not any(rests(upload, False))
