"""How a peer that does not count yet looks for the others' parameters; with real peers in test_beginnings.py."""

import contextlib
import queue
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager, waiting
from hivemind.averaging.control import AveragingStage
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.utils.performance_ema import PerformanceEMA

from dalle_lib.swarm.averaging.catching_up import NEW_ROUNDS
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.rounds import Group

pytestmark = pytest.mark.usefixtures("no_event_loop")


@pytest.fixture
def rounds():
    return ParameterRounds(Averager(), every=5, timeout_s=30.0)


def test_who_waits_looks_for_one_round_and_follows_the_epochs(rounds):
    rounds.look_for(5, b"token", 40.0, leads=False)
    first = rounds.pending
    assert rounds.averager.introduction == Introduction(5, True, b"token", is_reducer=False, is_counted=False)
    assert (first.weight, first.triggered) == (0.0, True)
    assert all(map(rounds.is_looking, (5, 6, 7))), "the others' round may begin late"
    assert not rounds.is_looking(8)
    assert first.cancelled()
    rounds.look_for(8, b"token", 50.0, leads=False)
    assert rounds.averager.introduction.epoch == rounds.epoch == 8
    assert rounds.averager.timeouts_s == [40.0, 50.0]


def test_a_round_that_has_begun_is_not_left_for_a_later_one(rounds):
    rounds.look_for(5, b"token", 40.0, leads=False)
    rounds.pending.stage, rounds.pending.began_allreduce = AveragingStage.RUNNING_ALLREDUCE, True
    running = rounds.pending
    assert rounds.is_looking(8)
    assert not running.cancelled()
    running.stage = AveragingStage.FINISHED  # which is seen before its result
    assert rounds.is_looking(8)
    running.stage = AveragingStage.LOOKING_FOR_GROUP  # again, as its group has failed
    assert not rounds.is_looking(8)
    assert running.cancelled()


def test_who_waits_for_an_average_stops_when_it_has_found_no_group_for_some_time(rounds):
    rounds.due_after = 4
    rounds.begin(1.0, token=b"")
    rounds.timeout_s = 1e6  # a wait for that long would end the test
    rounds.wait(search_s=0.2)
    assert rounds.pending.cancelled()
    rounds.wait(search_s=1e6)


def test_who_waits_drops_its_gradient_and_looks_when_the_others_epoch_is_about_to_end():
    early, late = waiting(eta_s=300.0), waiting(eta_s=4.0)
    for each in early, late:
        assert each.step(batch_size=8) is None
        assert each.told == [(3, 56)], "it is seen to compute"
    assert early.parameter_rounds.pending is None
    assert late.parameter_rounds.epoch == 5
    (timeout_s,) = late.parameter_rounds.averager.timeouts_s
    assert 30.0 < timeout_s <= 34.0, "beyond the end of the epoch"


def test_who_waits_leads_and_reduces_only_where_all_others_are_clients():
    for are_clients in False, True:
        peer = waiting(eta_s=4.0)
        peer.tracker.are_clients = are_clients
        peer.step(batch_size=8)
        told = peer.parameter_rounds.averager.introduction
        assert (told.may_lead, told.is_reducer, told.is_counted) == (are_clients, are_clients, False)


def test_who_averages_with_none_that_count_goes_on_waiting():
    peer, counted = waiting(eta_s=300.0), []
    peer.dht, peer.rounds, peer._count_after = SimpleNamespace(peer_id="own"), queue.SimpleQueue(), counted.append
    for weights in {"own": 1.0, "other": 1.0}, {"own": 0.0, "other": 1.0}:
        peer.parameter_rounds.collect = lambda weights=weights: Group(weights, 5)
        peer._collect_parameters()
    assert counted == [5]
    assert peer.rounds.qsize() == 1


def test_who_waits_for_long_and_is_left_alone_begins_an_epoch():
    peer = waiting(eta_s=300.0)
    peer.tracker.local_progress.samples_accumulated = 64
    peer.step(batch_size=8)
    assert peer.told == [(3, 8)]


def test_who_finds_no_round_in_two_epochs_asks_a_donor():
    peer, asked = waiting(eta_s=4.0), []
    peer.load_state_from_peers = lambda: asked.append(peer.tracker.global_epoch)
    for epoch in 5, 6, 7, 8, 9, 10, 11:
        peer.tracker.global_epoch = epoch
        peer.step(batch_size=8)
    assert peer.parameter_rounds.averager.timeouts_s == [pytest.approx(34.0, abs=1.0)] * 2, "of epochs 5 and 8"
    assert asked == [11]


def test_who_waits_leaves_a_round_of_gradients_that_it_was_to_take_part_in():
    peer = waiting(eta_s=300.0)
    peer.scheduled_grads = scheduled = Averager().schedule_step(timeout=30.0)
    peer.step(batch_size=8)
    assert scheduled.cancelled()
    assert peer.scheduled_grads is None


def test_who_begins_to_wait_looks_for_no_round_of_an_epoch_that_ends_in_hours():
    peer = waiting(eta_s=3600.0)
    peer._looked_at, peer.rounds, peer.grad_averager = 0.0, queue.SimpleQueue(), SimpleNamespace()
    peer.grad_averager.local_samples_accumulated, peer.grad_averager.reset_accumulated_grads_ = 8, lambda: None
    peer.tracker.pause_updates, peer.tracker.update_epoch = contextlib.nullcontext, lambda _: None
    peer.tracker.epochs.latest, peer.client_mode, peer.total_epochs = 100, False, 100
    peer.state_averager._update_scheduler = lambda: None
    peer.average_state_with_peers()
    peer.step(batch_size=8)
    assert peer.parameter_rounds.pending is None, "its introduction counts for ten minutes"


@pytest.mark.parametrize("is_given", [True, False])
def test_who_is_off_takes_a_state_or_else_the_others_next_average(is_given):
    peer = waiting(eta_s=300.0)
    peer.rounds, peer.dht, peer.is_counted = queue.SimpleQueue(), SimpleNamespace(peer_id="own"), True
    accumulated = peer.grad_averager = SimpleNamespace(local_samples_accumulated=8)
    accumulated.reset_accumulated_grads_ = lambda: setattr(accumulated, "local_samples_accumulated", 0)
    peer.tracker.pause_updates, peer.tracker.update_epoch = contextlib.nullcontext, lambda _: None
    peer.tracker.global_epoch, peer.tracker.epochs.latest, peer.client_mode, peer.total_epochs = 3, 4, True, 100
    peer.state_averager._update_scheduler, peer._load_from_donor = lambda: None, lambda *_: is_given
    peer.tracker.report_local_progress = lambda *_, **__: None
    peer.replace_parameters("they are off")
    told = peer.rounds.get_nowait()
    assert (told.epoch, told.samples) == (3, 8), "what was computed with the wrong ones"
    assert told.reason == ("they are off: took over their state" if is_given else "they are off")
    assert peer.is_behind is not is_given
    assert (accumulated.local_samples_accumulated, peer.is_counted) == (0, True)
    for epoch, is_behind in ((1, True), (2, False)):
        peer.parameter_rounds.look_for(epoch, b"", 30.0, leads=False)
        peer.parameter_rounds.pending.set_result(Group({"own": 0.0, "other": 1.0}, epoch))
        peer._collect_parameters()
        assert peer.is_behind is is_behind, "an average from before is as wrong"


def test_who_steps_seldom_begins_to_look_the_earlier():
    seldom = waiting(eta_s=60.0)
    seldom._looked_at -= 120.0
    seldom.step(batch_size=8)
    assert seldom.parameter_rounds.epoch == 5


@pytest.mark.parametrize(
    ("theirs", "goes_on_in", "is_behind"), [(6, 6, False), (7, 7, True), (8, 6, True), (5, 6, False)]
)
def test_who_has_their_parameters_goes_on_in_the_epoch_that_they_are_in_now(theirs, goes_on_in, is_behind):
    peer, looks = waiting(eta_s=300.0), []

    def look() -> None:
        looks.append(theirs)
        peer.tracker.global_epoch = theirs

    peer.tracker.look, peer.tracker.update_epoch = look, lambda epoch: looks.append(epoch)
    peer.tracker.pause_updates = contextlib.nullcontext
    peer.grad_averager = SimpleNamespace(reset_accumulated_grads_=lambda: None)
    peer.state_averager._update_scheduler, peer.client_mode, peer.total_epochs = lambda: None, False, 100
    peer._count_after(5)
    assert looks == [theirs, goes_on_in]
    assert (peer.local_epoch, peer.is_behind, peer.is_counted) == (goes_on_in, is_behind, True)
    assert peer.new_rounds > 0, "it follows others into its first round of gradients"


def test_who_is_new_leads_a_group_after_a_round_with_others_or_three_in_vain():
    peer = waiting(eta_s=300.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.tracker.epochs.latest, peer.tracker.newcomers, control = 100, 0, Averager().schedule_step(timeout=30.0)
    alone, together = Group({"own": 1.0}, 5), Group({"own": 1.0, "other": 1.0}, 5)
    for met, leads_after in ([together], 1), ([alone, together], 2), ([alone, alone, alone, together], 3):
        peer.new_rounds = NEW_ROUNDS
        for after, group in enumerate(met, 1):
            peer._outcome = lambda _, group=group: (group, None)
            peer._average_gradients_and_load_into_optimizer(control)
            assert (peer.new_rounds == 0) == (after >= leads_after)


@pytest.mark.parametrize(("of_group", "lacks"), [(4, 4), (5, None), (6, 5)])
def test_who_has_another_epoch_than_its_group_brings_no_parameters_to_the_next_average(of_group, lacks):
    peer = waiting(eta_s=300.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.tracker.epochs.latest, peer.tracker.newcomers, peer.is_behind = 100, 0, False
    peer._gradient_epoch = 5
    peer._outcome = lambda _: (Group({"own": 1.0, "b": 1.0, "c": 1.0}, of_group, is_behind=of_group != 5), None)
    peer._average_gradients_and_load_into_optimizer(Averager().schedule_step(timeout=30.0))
    assert (peer.is_behind, peer._lacks) == (lacks is not None, lacks or 0)
    assert peer.parameter_rounds.due_after == (None if lacks is None else of_group)


class Tracker(SimpleNamespace):
    """What others report, as a peer's threads look at it: one after the other."""

    pause_updates = ProgressTracker.pause_updates

    def look(self) -> None:
        assert self.lock_global_progress.is_held
        self.performance_ema.update(task_size=8)  # by the thread that trains on, if another one averages
        self.epochs.reported = self.after_the_look


class Held(contextlib.AbstractContextManager):
    """A lock for which nobody waits in vain, as a thread would that holds it already."""

    is_held = False

    def __enter__(self) -> None:
        assert not self.is_held, "it would be waited for without end"
        self.is_held = True

    def __exit__(self, *_error) -> None:
        self.is_held = False


@pytest.mark.parametrize("after_the_look", [5, 6])
@pytest.mark.parametrize("is_delayed", [True, False])
def test_who_is_led_by_a_peer_of_a_later_epoch_than_the_users_report_makes_its_own_update(is_delayed, after_the_look):
    peer = waiting(eta_s=300.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer._gradient_epoch, peer.delay_grad_averaging = 5, is_delayed
    tracker = peer.tracker = Tracker(
        epochs=SimpleNamespace(reported=5, least=5), newcomers=0, voters={}, after_the_look=after_the_look
    )
    tracker.lock_global_progress, tracker.performance_ema = Held(), PerformanceEMA()
    if not is_delayed:
        tracker.performance_ema.update = lambda **_: None  # hivemind pauses it, and nobody trains meanwhile
    peer._outcome = lambda _: (Group({"own": 1.0, "liar": 1.0}, 6), None)
    with contextlib.nullcontext() if is_delayed else tracker.pause_updates():  # as hivemind does
        peer._average_gradients_and_load_into_optimizer(Averager().schedule_step(timeout=30.0))
    assert peer._joined_later_round == (after_the_look == 6)


@pytest.mark.parametrize("least", [4, 5])
def test_who_is_led_by_peers_of_an_earlier_epoch_than_most_users_report_makes_its_own_update(least):
    peer = waiting(eta_s=300.0)
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer._gradient_epoch, peer.tracker.newcomers, peer.tracker.epochs.least = 5, 0, least
    peer._outcome = lambda _: (Group({"own": 1.0, "liar": 1.0, "its second id": 1.0}, 4), None)
    peer._average_gradients_and_load_into_optimizer(Averager().schedule_step(timeout=30.0))
    assert (peer._joined_earlier_round, peer.is_behind) == (least == 4, least == 4)
    assert peer.rounds.get_nowait().epoch == 5


@pytest.mark.parametrize("misses_next", [False, True])
def test_a_round_of_parameters_that_ends_while_gradients_are_averaged_is_taken_over_before_the_next(misses_next):
    peer = waiting(eta_s=300.0)
    peer.dht, peer.rounds, peer.is_counted = SimpleNamespace(peer_id="own"), queue.SimpleQueue(), True
    peer.state_averager = SimpleNamespace(pending_updates=set(), lacks_update=False)
    peer._lacks, peer.is_behind = 4, True
    peer.parameter_rounds.plan(4, is_urgent=True)
    peer._begin_averaging_parameters()
    peer.parameter_rounds.plan(5, is_urgent=True)  # by the thread that averages gradients
    peer._lacks = 5 if misses_next else 4
    peer.parameter_rounds.pending.set_result(Group({"own": 0.0, "other": 1.0}, 4))
    peer._begin_averaging_parameters()
    assert peer.parameter_rounds.averager.introduction == Introduction(5, misses_next)
    assert (peer.is_behind, peer.parameter_rounds.pending.weight) == (misses_next, float(not misses_next))
    assert peer.rounds.get_nowait().epoch == 4
    assert peer.parameter_rounds.averager.finished_averaging_round.is_set(), "the model gets the average"


def test_an_update_that_is_missed_in_the_moment_in_which_a_round_is_collected_stays_missing():
    peer = waiting(eta_s=300.0)

    class Misses(type(peer)):
        @property
        def _lacks(self) -> int:
            self.is_behind = True  # by the thread that averages gradients, which has set this to 5 a moment later
            return 4

    peer.__class__, peer.dht, peer.rounds, peer.is_counted = Misses, SimpleNamespace(peer_id="own"), queue.Queue(), True
    peer.parameter_rounds.look_for(4, b"", 30.0, leads=False)
    peer.parameter_rounds.pending.set_result(Group({"own": 0.0, "other": 1.0}, 4))
    peer._collect_parameters()
    assert peer.is_behind
