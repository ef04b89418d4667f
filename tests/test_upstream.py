"""Each workaround in `dalle_lib/swarm` is still needed: hivemind still does what it is there for.

A test that fails here is good news. Its message says what can be deleted, after a look at how hivemind does it now.
"""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import InvalidStateError
from types import SimpleNamespace

import hivemind
import pytest
import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.matchmaking import Matchmaking, PotentialLeaders
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.progress_tracker import LocalTrainingProgress, ProgressTracker
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, MSGPackSerializer, get_dht_time
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.timed_storage import ValueWithExpiration

from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer


@pytest.fixture(autouse=True)
def no_event_loop():
    """hivemind's futures would make one of their own, and leave it open."""
    asyncio.set_event_loop(None)


PEER = PeerID.from_base58("QmP5UhU8o9PQEF7XiAkLioaZhXq2LE4t4RdqiutDdRQ7xb")


async def replicate_p2p() -> SimpleNamespace:
    return SimpleNamespace(peer_id=PEER)


def table(client_mode: bool = True) -> SimpleNamespace:
    """Return as much of a hash table as an averager needs that meets nobody."""
    return SimpleNamespace(client_mode=client_mode, peer_id=PEER, replicate_p2p=replicate_p2p)


class FailedRound:
    """The handle of a round that fails."""

    triggered = False
    weight = 1.0

    def allow_allreduce(self) -> None:
        self.triggered = True

    def result(self, timeout: float | None = None):
        raise TimeoutError


def bare(cls: type, **attributes):
    """Return an object of a class of hivemind with these attributes and no others; nothing is started."""
    found = cls.__new__(cls)
    vars(found).update({"_parent_pid": -os.getpid(), **attributes})  # it shuts down what it started, by process
    return found


def test_a_failed_round_still_applies_a_zero_gradient():
    parameter = torch.nn.Parameter(torch.zeros(3))
    averager = GradientAverager([parameter], dht=table(), prefix="run", start=False)
    parameter.grad = torch.ones(3)
    averager.accumulate_grads_(batch_size=1)
    optimizer = bare(hivemind.Optimizer, grad_averager=averager, offload_optimizer=True, status_loglevel=10)
    optimizer.averaging_timeout = None
    control = averager.step(control=FailedRound(), wait=False)
    optimizer._average_gradients_and_load_into_optimizer(control)
    with averager.get_tensors() as (gradient,):
        assert not gradient.any(), (
            "hivemind keeps the gradient of a failed round: in CollaborativeOptimizer, "
            "_average_gradients_and_load_into_optimizer need no longer say what is applied then"
        )


def cancelled_round() -> StepControl:
    """Return the handle of a round that was given up before anybody was found."""
    control = StepControl(0.0, 0.0, allow_retries=False, weight=1.0, data_for_gather=b"")
    control.attach(MPFuture(), MPFuture())
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    control.cancel()
    return control


def leave(cls: type[hivemind.Optimizer], control: StepControl) -> None:
    """Shut an optimizer down that has nothing but that round."""
    part = SimpleNamespace(shutdown=lambda *_: None, step=lambda **_: None)
    parts = {"tracker": part, "state_averager": part, "grad_averager": part, "use_gradient_averaging": True}
    settings = {"status_loglevel": 10, "shutdown_timeout": 1.0, "scheduled_grads": control, "scheduled_state": None}
    bare(cls, **parts, **settings).shutdown()


def test_who_leaves_after_a_round_that_was_given_up_still_fails():
    leave(CollaborativeOptimizer, cancelled_round())
    try:
        leave(hivemind.Optimizer, cancelled_round())
    except InvalidStateError:
        return
    pytest.fail("hivemind cancels no round twice: CollaborativeOptimizer.shutdown can go")


def test_client_mode_still_stays_none():
    class Seen(Exception):
        """Ends the constructor."""

    class Constructed(hivemind.Optimizer):
        is_alive = lambda self: False  # noqa: E731

        def _make_progress_tracker(self, *_args, **_kwargs):
            raise Seen(self.client_mode)

    parameter = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(Seen) as seen:
        Constructed(dht=table(), run_id="run", target_batch_size=1, optimizer=torch.optim.SGD([parameter], lr=1.0))
    assert seen.value.args == (None,), "hivemind takes client_mode from its table: CollaborativeOptimizer need not"


def test_a_failed_download_is_still_repeated_for_ever():
    tries = []

    def load_state_from_peers(**_kwargs):
        tries.append(1)
        raise KeyboardInterrupt if len(tries) == 5 else TimeoutError

    optimizer = bare(
        hivemind.Optimizer,
        scheduled_grads=None,
        load_state_timeout=0.0,
        tracker=ProgressTracker,
        state_averager=SimpleNamespace(step=lambda **_kwargs: None, load_state_from_peers=load_state_from_peers),
    )
    optimizer.tracker = SimpleNamespace(pause_updates=threading.Lock)
    with pytest.raises(KeyboardInterrupt):
        optimizer.load_state_from_peers()
    assert len(tries) == 5, "hivemind gives a download up: delete CollaborativeOptimizer.load_state_from_peers"


def test_parameters_still_count_in_full_whatever_they_lack():
    begun = []

    class Recorder(DecentralizedAverager):
        def step(self, **kwargs):
            begun.append(kwargs)
            raise RuntimeError("seen")

    class Averager(TrainingStateAverager, Recorder):
        """hivemind's, whose rounds are seen and then fail."""

    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    averager = Averager(dht=table(), optimizer=optimizer, prefix="run", start=False)
    averager._do(None, False, False, True, None, None, True)
    assert "weight" not in begun[0], (
        "hivemind weighs parameters: CollaborativeOptimizer need not average them itself (_begin_state_round), "
        "nor MemberMatchmaking look for groups by epoch"
    )


def test_groups_are_still_formed_across_epochs():
    request = averaging_pb2.JoinRequest(schema_hash=b"s", group_key="run.0b", expiration=get_dht_time() + 60)
    leader = SimpleNamespace(
        is_looking_for_group=True,
        assembled_group=SimpleNamespace(done=lambda: False),
        client_mode=False,
        schema_hash=b"s",
        group_key_manager=SimpleNamespace(current_key="run.0b"),
        potential_leaders=SimpleNamespace(declared_group_key="run.0b", declared_expiration_time=get_dht_time()),
        current_leader=None,
        current_followers={},
        peer_id=PEER,
        target_group_size=None,
    )
    context = SimpleNamespace(remote_id=PeerID(b"somebody else"))
    for epoch in 1, 2:
        request.gather = MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(epoch)])
        refusal = Matchmaking._check_reasons_to_reject(leader, request, context)
        assert refusal is None, "hivemind looks at what peers gather: delete MemberMatchmaking.looking_for_group"


AVERAGER = """
import asyncio, gc, threading, time, weakref
from types import SimpleNamespace
import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.p2p import PeerID

held, peer = {}, PeerID(b"nobody")

class Averager(DecentralizedAverager):
    async def _wait(self, name):
        held[name] = weakref.ref(asyncio.current_task())
        await asyncio.get_running_loop().create_future()

async def replicate_p2p():
    return SimpleNamespace(peer_id=peer)

asyncio.set_event_loop(None)
table = SimpleNamespace(client_mode=True, peer_id=peer, replicate_p2p=replicate_p2p)
averager = Averager([torch.zeros(3)], table, prefix="run", start=False)
threading.Thread(target=averager._run_internal, daemon=True).start()
averager.wait_until_ready(timeout=60)
for name in "first", "second":
    averager._outer_pipe.send(("_wait", [name], {}))
while "second" not in held:
    time.sleep(0.01)
gc.collect()
print("ended" if held["first"]() is None else "held")
"""


def test_a_task_still_ends_when_nobody_holds_it():
    done = subprocess.run([sys.executable, "-c", AVERAGER], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended\n", f"hivemind holds its tasks: delete KeepsTasks. Or see:\n{done.stderr}"


def test_who_waits_for_a_group_still_looks_without_a_pause():
    looks = []

    async def get_averagers(*_args, **_kwargs):
        looks.append(1)
        return []

    async def declare_averager(*_args, **_kwargs):
        return True

    async def search() -> None:
        leaders = PotentialLeaders(PEER, min_matchmaking_time=60.0, target_group_size=None)
        keys = SimpleNamespace(current_key="run.0b", get_averagers=get_averagers, declare_averager=declare_averager)
        step = SimpleNamespace(deadline=get_dht_time() + 60, scheduled_time=get_dht_time() + 60)
        async with leaders.begin_search(step, keys):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(leaders.pop_next_leader(), 1.0)

    asyncio.run(search())
    assert len(looks) > 20, "hivemind pauses between its looks: delete PacedKeyManager"


def test_a_part_that_comes_early_is_still_turned_away_when_another_round_ends():
    async def answers() -> list[averaging_pb2.AveragingData]:
        averager = SimpleNamespace(_running_groups={}, _pending_groups_registered=asyncio.Event())
        part = averaging_pb2.AveragingData(group_id=b"the round that is about to begin")
        with DecentralizedAverager._register_allreduce_group(averager, SimpleNamespace(group_id=b"another")):
            averager._running_groups[b"another"].set_result(None)
            averager._pending_groups_registered.clear()  # the next round looks for its group
            stream = DecentralizedAverager.rpc_aggregate_part(averager, as_aiter(part), SimpleNamespace())
            answer = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
        return await asyncio.wait_for(answer, 10)

    assert asyncio.run(answers()).code == averaging_pb2.BAD_GROUP_ID, (
        "hivemind lets early parts wait: delete RunAverager.rpc_aggregate_part, but for who may send"
    )


def test_what_is_sent_to_a_reducer_is_still_not_checked():
    async def average(*parts: tuple[list[float], float]) -> torch.Tensor:
        reducer = TensorPartReducer([torch.Size([2])], len(parts))
        sent = [reducer.accumulate_part(i, 0, torch.tensor(part), w) for i, (part, w) in enumerate(parts)]
        return (await asyncio.gather(*sent))[0]

    good = ([1.0, 1.0], 1.0)
    spoilt = {
        "a weight below zero": asyncio.run(average(good, ([2.0, 2.0], -0.999))),
        "weights of zero": asyncio.run(average(([1.0, 1.0], 0.0), ([1.0, 1.0], 0.0))),
        "one value for a whole part": asyncio.run(average(good, ([float("nan")], 1.0))),
    }
    for what, result in spoilt.items():
        assert not (result >= 0).logical_and(result <= 2).all(), f"hivemind refuses {what}: does Reducer still need to?"


def test_results_of_reducers_are_still_not_checked():
    parts = TensorPartContainer([torch.ones(2)], [1.0])
    parts.register_processed_part(0, 0, torch.full((2,), 1e9))
    assert parts._outputs_registered_by_peer == [1], "hivemind refuses such results: does Parts still need to?"


def test_the_highest_epoch_that_anybody_claims_is_still_believed():
    def record(epoch: int) -> LocalTrainingProgress:
        return LocalTrainingProgress(
            peer_id=bytes([epoch % 256]),
            epoch=epoch,
            samples_accumulated=0,
            samples_per_second=1.0,
            time=get_dht_time(),
            client_mode=False,
        )

    tracker = SimpleNamespace(
        local_progress=record(3),
        performance_ema=SimpleNamespace(eps=1e-20),
        target_batch_size=100,
        expected_drift_peers=3,
        expected_drift_rate=0.2,
        min_refresh_period=0.5,
        max_refresh_period=10.0,
        status_loglevel=10,
        prefix="run",
    )
    told = {str(e): ValueWithExpiration(record(e).dict(), get_dht_time() + 60) for e in (3, 3, 4, 10**9)}
    progress = ProgressTracker._parse_swarm_progress_data(tracker, told)
    assert progress.epoch == 10**9, "hivemind doubts false records: delete PlausibleProgress, but for who is a member"
