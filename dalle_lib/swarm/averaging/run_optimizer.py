"""hivemind's optimizer, assembled from the kit's progress tracker and averagers."""

import sys
from collections.abc import Iterator
from functools import partial

import hivemind

from dalle_lib.amounts import count
from dalle_lib.swarm.averaging.carried import Carried
from dalle_lib.swarm.averaging.complaints import RUN, Pace
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.progress import PlausibleProgress
from dalle_lib.swarm.averaging.rounds import RoundsNow
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload


def state_prefix(run_key: str) -> str:
    """Return the name under which the averagers of a run's parameters meet, and offer states."""
    return f"{run_key}_state_averager"


RUN_SPLIT = (
    "The run is split: {} apart from yours. Nothing to do: the part with most users goes on, and the others take over "
    "its state"
)
"""What is told while a run is split; who leaves its part says so when it does."""
RUN_IS_ONE = "The run is one again: {} with yours"
"""What is told when peers that trained apart are in step again, on both sides."""


def peers_train(peers: int, how: str = "") -> str:
    """Return that so many peers train: `1 peer trains`, `2 peers train`; `how` comes before that verb."""
    return f"{count(peers, 'peer')} {how}{'trains' if peers == 1 else 'train'}"


class RunOptimizer(hivemind.Optimizer):
    """hivemind.Optimizer whose tracker and averagers are the kit's. What happens in an epoch is the subclass's part."""

    averager_type: type[RunGradientAverager] = RunGradientAverager
    """Class of the averager of gradients."""
    _doubted: dict[str, str]
    """The tracker's doubts that `problems` has returned already, by peer id; only the training thread uses it."""

    _are_apart: bool = False
    """Whether others trained apart from this peer at the last call of `problems`."""

    _were_apart: frozenset[str] = frozenset()
    """The peers that trained apart last; none once it is told that some of them are in step again."""

    def __init__(
        self,
        *,
        dht: hivemind.DHT,
        total_epochs: int,
        trust: Trust,
        part_bytes: int = 2**19,
        upload: Upload | None = None,
        longest_matchmaking_s: float | None = None,
        **kwargs,
    ) -> None:
        """Wait for peers that are ready for up to `longest_matchmaking_s`, or `matchmaking_time` if that is None."""
        self.trust, self.total_epochs, self.upload = trust, total_epochs, upload or Upload()
        self._doubted, self._pace = {}, Pace()
        self.longest_matchmaking_s = longest_matchmaking_s or kwargs["matchmaking_time"]
        rounds_now = RoundsNow(self.longest_matchmaking_s)
        self._expected = rounds_now.expected
        shared = {"rounds_now": rounds_now, "carried": Carried(), "upload": self.upload}
        averager_options = {"trust": trust, "part_size_bytes": part_bytes, **shared}
        super().__init__(
            dht=dht,
            # If left out, it would stay None on a client's DHT, and crash at the first epoch.
            client_mode=dht.client_mode,
            average_state_every=sys.maxsize,  # hivemind averages no parameters itself: see ParameterRounds
            grad_averager_factory=partial(self.averager_type, **averager_options, allow_state_sharing=False),
            averager_opts=averager_options,
            **kwargs,
        )

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self.opt.param_groups[0]["lr"]

    def problems(self) -> list[tuple[str, str]]:
        """Return what went wrong with other peers, or with the RUN, since the last call, as (peer id, what)."""
        doubted = self.tracker.doubted
        new = [(peer, what) for peer, what in doubted.items() if self._doubted.get(peer) != what]
        self._doubted = doubted
        new += self._split()
        found = [(peer, told) for peer, what in new if (told := self._pace.paced(what)) is not None]
        return [*found, *self.grad_averager.complaints.read(), *self.state_averager.complaints.read()]

    def _split(self) -> Iterator[tuple[str, str]]:
        """Yield that the run is split, or is one again, where that is new."""
        apart, were_apart = self.tracker.parted.parted_from, self._are_apart
        self._are_apart, self._were_apart = bool(apart), apart or self._were_apart
        if apart and not were_apart:
            yield RUN, RUN_SPLIT.format(peers_train(len(apart)))
        if not apart and (back := self._were_apart & self.tracker.parted.near):
            self._were_apart = frozenset()
            yield RUN, RUN_IS_ONE.format(peers_train(len(back), "that trained apart "))

    @property
    def _request_timeout_s(self) -> float:
        """Seconds to wait for another peer's answer: with more, two that ask each other miss the round."""
        return min(3.0, self.longest_matchmaking_s / 2)

    def _make_progress_tracker(self, target_batch_size: int, **kwargs) -> PlausibleProgress:
        return PlausibleProgress(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            trust=self.trust,
            total_epochs=self.total_epochs,
            shortest_epoch_s=self.matchmaking_time,
            expected=self._expected,
            private_key=self.trust.identity.private_key,
            start=True,
            **kwargs,
        )

    def _make_state_averager(self, **kwargs) -> RunStateAverager:
        return RunStateAverager(
            dht=self.dht,
            prefix=state_prefix(self.run_id),
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=self.offload_optimizer,
            custom_gradients=self.offload_optimizer,
            status_loglevel=self.status_loglevel,
            client_mode=self.client_mode,
            auxiliary=self.auxiliary,
            start=True,
            **{"request_timeout": self._request_timeout_s, **kwargs},
        )

    def _make_gradient_averager(self, factory, **kwargs) -> RunGradientAverager:
        own = {"request_timeout": self._request_timeout_s, "others": self.state_averager.of_trainer}
        return super()._make_gradient_averager(factory, **{**own, **kwargs})
