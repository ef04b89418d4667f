"""Each workaround of the averagers and the progress tracker is still needed: hivemind still does what it is there for.

A test that fails here is good news. Its message says what can be deleted, after a look at how hivemind does it now.
"""

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.control import StepControl
from hivemind.averaging.matchmaking import Matchmaking, PotentialLeaders
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer
from hivemind.optim.progress_tracker import LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, MSGPackSerializer, get_dht_time
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.timed_storage import ValueWithExpiration

from dalle_lib.swarm.averaging.calling_off import safe_to_call_off

PEER = PeerID(b"this peer")


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


def test_a_peer_that_waits_for_a_group_still_looks_without_a_pause():
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


@pytest.mark.usefixtures("no_event_loop")
def test_a_round_that_is_called_off_is_cancelled_before_its_averager_looks_and_hiveminds_still_is_not():
    def woken_for(safe) -> list[bool]:
        """Return whether the round was cancelled each time that its averager's process was woken."""
        MPFuture()  # as in hivemind: a process cannot begin with a StepControl
        step, woken = StepControl(get_dht_time(), get_dht_time() + 60, True, 1.0, b""), []
        step.attach(
            SimpleNamespace(cancel=lambda: woken.append(step.cancelled()), done=lambda: True),
            SimpleNamespace(set_result=lambda _: woken.append(step.cancelled())),
        )
        safe(step).cancel()
        assert step.cancelled()
        return woken

    assert woken_for(safe_to_call_off) == [True, True]
    assert woken_for(lambda step: step) == [False, False], "hivemind cancels first: delete CalledOff"


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
