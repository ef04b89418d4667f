"""A peer's optimizer without processes: what it does between rounds, step by step."""

import threading
import time
from collections import deque
from types import SimpleNamespace

from hivemind.averaging.control import StepControl
from hivemind.utils import MPFuture, get_dht_time

from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.averaging.two_groups import TwoGroups
from dalle_lib.swarm.averaging.upload import Upload


class Averager(RunStateAverager):
    """What begins rounds of parameters, without the process in which a group would be looked for."""

    def __init__(self) -> None:
        self.timeouts_s, self.introduction = [], None
        self.finished_averaging_round = threading.Event()

    def __del__(self) -> None:
        """Nothing has to end."""

    def schedule_step(self, timeout: float) -> StepControl:
        """Return the handle of a round that finds no group."""
        self.timeouts_s.append(timeout)
        trigger, cancel = MPFuture(), MPFuture()  # as hivemind does: a process cannot begin with a StepControl
        control = StepControl(get_dht_time(), get_dht_time() + timeout, True, 1.0, b"")
        control.attach(trigger, cancel)
        return control


def waiting(eta_s: float) -> CollaborativeOptimizer:
    """Return the optimizer of a peer that waits in epoch 3, while the others need `eta_s` seconds to end epoch 5."""

    class Waiting(CollaborativeOptimizer):
        """One without processes."""

        def __init__(self) -> None:
            self.parameter_rounds = ParameterRounds(Averager(), every=5, timeout_s=30.0)
            self.state_averager = SimpleNamespace(step=lambda **_: None, local_epoch=3)
            self.upload, self.two_groups = Upload(), TwoGroups()
            self.trust, self.matchmaking_time, self.averaging_timeout = SimpleNamespace(token=b""), 6.0, 30.0
            self._looked_at, self.scheduled_grads, self.is_counted = time.monotonic(), None, False
            self.dht, self._brought, self._averaged_with = SimpleNamespace(peer_id="own"), deque(), {}
            self.tracker = SimpleNamespace(
                is_alone=False,
                are_clients=False,
                voters={},
                global_epoch=5,
                epochs=SimpleNamespace(ahead=5, reported=100, least=0),
                parted=SimpleNamespace(others=None, together_until=lambda epoch, donor: 10**9),
                beyond=frozenset(),
                global_progress=SimpleNamespace(eta_next_epoch=get_dht_time() + eta_s),
                local_progress=SimpleNamespace(samples_accumulated=48),
                target_batch_size=128,
                report_local_progress=lambda *told: self.told.append(told),
            )
            self.told = []

        def __del__(self) -> None:
            """Nothing has to end."""

    return Waiting()
