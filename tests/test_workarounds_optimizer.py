"""Each workaround of the optimizer is still needed: hivemind still does what it is there for.

A test that fails here is good news. Its message says what can be deleted, after a look at how hivemind does it now.
"""

import os
import threading
from concurrent.futures import InvalidStateError
from types import SimpleNamespace

import hivemind
import pytest
import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import PeerID
from hivemind.utils import MPFuture

from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.trust import Trust

pytestmark = pytest.mark.usefixtures("no_event_loop")

PEER = PeerID.from_base58("QmP5UhU8o9PQEF7XiAkLioaZhXq2LE4t4RdqiutDdRQ7xb")


async def replicate_p2p() -> SimpleNamespace:
    return SimpleNamespace(peer_id=PEER)


def table(client_mode: bool = True) -> SimpleNamespace:
    """Return as much of a hash table as is needed by an averager that meets nobody."""
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
    """Return an object of a class of hivemind with these attributes only; nothing is started."""
    found = cls.__new__(cls)
    vars(found).update({"_parent_pid": -os.getpid(), **attributes})  # it would shut down what this process started
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
            "hivemind keeps the gradient of a failed round: _average_gradients_and_load_into_optimizer of "
            "CollaborativeOptimizer no longer has to choose what is applied then"
        )


def cancelled_round() -> StepControl:
    """Return the handle of a round that was given up before anybody was found."""
    trigger, cancel = MPFuture(), MPFuture()  # as hivemind does: a process cannot begin with a StepControl
    control = StepControl(0.0, 0.0, allow_retries=False, weight=1.0, data_for_gather=b"")
    control.attach(trigger, cancel)
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    control.cancel()
    return control


def leave(cls: type[hivemind.Optimizer], control: StepControl) -> None:
    """Shut down an optimizer that has nothing but that round."""
    part = SimpleNamespace(shutdown=lambda *_: None, step=lambda **_: None, drop_updates=lambda: None)
    parts = {"tracker": part, "state_averager": part, "grad_averager": part, "use_gradient_averaging": True}
    settings = {"status_loglevel": 10, "shutdown_timeout": 1.0, "scheduled_grads": control, "scheduled_state": None}
    bare(cls, **parts, **settings).shutdown()


def test_leaving_after_a_round_that_was_given_up_still_fails():
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


def test_a_failed_download_is_still_repeated_forever():
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


def test_parameters_that_lack_an_update_still_count_in_full():
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
        "hivemind weighs parameters: CollaborativeOptimizer need not average them itself (ParameterRounds), "
        "and MemberMatchmaking need not look for groups by epoch"
    )


def handed_in(averager: GradientAverager, sizes: list[int]) -> torch.Tensor:
    """Return what a peer hands in after batches of these sizes, whose mean gradients are 1, 2 and so on."""
    (parameter,) = averager.parameters
    for number, size in enumerate(sizes, 1):
        parameter.grad = torch.full((3,), float(number))
        averager.accumulate_grads_(batch_size=size)
    assert averager.local_samples_accumulated == sum(sizes)
    averager.load_accumulators_into_averager_()
    averager.reset_accumulated_grads_()
    with averager.get_tensors() as (gradient,):
        return gradient.clone()


def test_a_mean_over_batches_of_several_sizes_is_over_samples_and_hiveminds_still_is_not():
    own, theirs = (
        cls([torch.nn.Parameter(torch.zeros(3))], dht=table(), prefix="run", start=False, **more)
        for cls, more in ((RunGradientAverager, {"trust": Trust()}), (GradientAverager, {}))
    )
    for sizes in [16, 16], [16, 128, 8], [128, 16]:
        mean = sum(number * size for number, size in enumerate(sizes, 1)) / sum(sizes)
        assert handed_in(own, sizes).tolist() == pytest.approx([mean] * 3)
    assert handed_in(theirs, [16, 128]).tolist() == pytest.approx([(1 + 8 * 2) / 2] * 3), (
        "hivemind divides by samples: RunGradientAverager.accumulate_grads_ can go"
    )
