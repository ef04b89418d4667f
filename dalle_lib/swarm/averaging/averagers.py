"""What averagers share: hivemind's, among members only, with rounds that report their content.

An averager is one object in two processes. The trainer's process makes it and calls its ordinary methods. hivemind then
forks: the copy in the averager's own process runs an event loop with all `async` methods, and talks to other peers.
After the fork an attribute that one copy sets is not seen by the other. Tensors and `complaints` are shared, and what
`_aggregate_with_group` returns travels back to whoever called `step`.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import AsyncIterator  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.load_balancing import hagenbach_bishoff
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import achain, as_aiter
from torch import Tensor

from dalle_lib.swarm import calls
from dalle_lib.swarm.averaging.all_reduce import TOO_LATE, Runner
from dalle_lib.swarm.averaging.answers import ends_after, until_hung_up
from dalle_lib.swarm.averaging.audit import Auditor
from dalle_lib.swarm.averaging.calling_off import safe_to_call_off
from dalle_lib.swarm.averaging.carried import Carried
from dalle_lib.swarm.averaging.complaints import Complaints
from dalle_lib.swarm.averaging.donors import (
    PARAMETER_BYTES,
    SLOWEST_BYTES_PER_S,
    TELL_PLACE_S,
    Line,
    offers_key,
    states_at_once,
    waiting_message,
)
from dalle_lib.swarm.averaging.group_keys import LOOK_EVERY_S
from dalle_lib.swarm.averaging.introductions import Introduction, for_hivemind, read, shares_and_counted, signed, vote
from dalle_lib.swarm.averaging.letting_go import give_back, let_go
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.patience import Patience
from dalle_lib.swarm.averaging.rounds import Group, RoundsNow
from dalle_lib.swarm.averaging.shares import shares_of
from dalle_lib.swarm.averaging.tasks import KeepsTasks
from dalle_lib.swarm.averaging.trust import Trust, owner_key
from dalle_lib.swarm.averaging.upload import Upload

logger = logging.getLogger(__name__)


class RunAverager(KeepsTasks):
    """What the kit's averagers share; as a base class it stands before one of hivemind's averagers.

    The trainer's process calls `schedule_step`. All other methods run in the averager's own process.
    """

    wire_type: type[DecentralizedAverager]
    """The class of hivemind whose name the calls of this averager carry on the wire."""
    matchmaking_type: type[MemberMatchmaking] = MemberMatchmaking
    """The class that finds a group; made at the first step."""
    is_by_epoch = False
    """Whether this averager meets only peers of its own epoch."""
    introduction = Introduction()
    """What this peer tells the group of its next round; the owner keeps it up to date."""
    # hivemind keeps the handlers of a class there, and subclasses would inherit them: its own lack `rpc_part_sent`.
    _rpc_handlers = _stub_type = None

    def __init__(
        self,
        *args,
        trust: Trust,
        rounds_now: RoundsNow | None = None,
        carried: Carried | None = None,
        upload: Upload | None = None,
        **kwargs,
    ) -> None:
        """Take `rounds_now`, `carried` and `upload` of this peer's other averager, if any: each knows of both's."""
        self.trust, self.rounds_now = trust, rounds_now or RoundsNow()
        self.carried, self.upload = carried or Carried(), upload or Upload()
        self.complaints, self.patience = Complaints(), Patience(trust.least_wait_s)
        self.line, self._copying = Line(states_at_once(self.upload.bytes_per_s)), None
        self.auditor, self._reachable = Auditor(trust), []
        if (roster := trust.roster) is not None:
            calls.members_first(lambda caller: roster.known(str(caller)) is not None)
        super().__init__(*args, **kwargs)

    def of_trainer(self) -> list[Tensor]:
        """Return the tensors that only the trainer's process uses."""
        raise NotImplementedError

    def run(self) -> None:  # the averager's own process
        let_go(self.of_trainer())
        super().run()

    def schedule_step(self, scheduled_time=None, **kwargs):
        """Return the handle of a round, for which the averager begins to look for a group.

        hivemind hands to the group what its peers give as `gather`: here their introductions.
        """
        reduces = self.introduction.is_reducer and self.mode is AveragingMode.NODE
        carried = self.carried.told() if self.trust.is_heard(str(self.peer_id)) else b""
        # Parameters of a peer that is too slow for the others wait for their next average: it would hold up each.
        is_behind = self.introduction.is_behind and not self.upload.steps_back
        spares = self.upload.spares
        own = replace(self.introduction, is_behind=is_behind, is_reducer=reduces, is_sparing=spares, carried=carried)
        kwargs["gather"] = signed(own, self.prefix, self.trust.identity)
        return safe_to_call_off(super().schedule_step(scheduled_time, **kwargs))

    async def _step(self, **kwargs) -> None:
        # hivemind finds a group, averages in it, and tries again if that fails. It has made its own matchmaking in the
        # middle of `_run_internal`, where no override reaches. Nobody uses that one before the first step, so a new
        # one takes its place here.
        if not isinstance(self._matchmaking, MemberMatchmaking):
            own = {"trust": self.trust, "is_by_epoch": self.is_by_epoch, "tell": self.tell}
            own |= {"expected": self.rounds_now.expected, "client_mode": self.client_mode, **self.matchmaking_kwargs}
            self._matchmaking = self.matchmaking_type(self._p2p, self.schema_hash, self.dht, **own)
            if self.client_mode:  # hivemind registers no handlers for a client; its reducers may still question it
                name = self._get_handle_name(self.prefix, "rpc_part_sent")
                await self._p2p.add_protobuf_handler(name, self.rpc_part_sent, averaging_pb2.AveragingData)
        await super()._step(**kwargs)
        give_back()

    async def _declare_for_download_periodically(self) -> None:
        # hivemind writes this under the bare id of the peer, where anybody may, and only it offers a state at all.
        offered = False
        while True:
            expires = get_dht_time() + self.declare_state_period
            offers = self.allow_state_sharing and self.line.at_once > 0
            if offers or offered:
                offered = offers
                value = self.state_sharing_priority if offered else None
                mark = owner_key(self.trust.identity.public_key)
                self.dht.store(offers_key(self.prefix), value, expires, subkey=mark, return_future=True)
            self._state_updated.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state_updated.wait(), max(0.0, expires - get_dht_time()))

    async def _aggregate_with_group(self, group_info: GroupInfo, min_vector_size: int, **kwargs) -> Group:
        # hivemind gives each peer parts to reduce by the bandwidth that it claims. Here the run's card says who may
        # reduce, vouched peers how much it can carry, and the caller of `step` learns what the round came to.
        by_peer = zip(group_info.peer_ids, group_info.gathered, strict=True)
        told = {peer: read(gathered, peer, self.prefix, float("inf")) for peer, gathered in by_peer}
        trust = self.trust.of_group({str(peer): introduction.token for peer, introduction in told.items()})
        shared = zip(shares_of(told, trust), told.values(), strict=True)
        group = replace(group_info, gathered=tuple(for_hivemind(share, of.is_counted) for share, of in shared))
        self._reachable = [peer for peer, introduction in told.items() if introduction.is_reducer]
        with self.rounds_now.one_more(group_info.group_id):
            await super()._aggregate_with_group(group, min_vector_size, trust=trust, **kwargs)
        runner = self._running_groups[group_info.group_id].result()
        epoch = vote(told, trust)
        return Group(
            counted=runner.counted(),
            epoch=epoch,
            is_behind=any(of.is_behind or (of.is_counted and of.epoch != epoch) for of in told.values()),
            is_whole=runner.is_whole,
            bytes_sent=runner.bytes_sent,
            bytes_received=runner.bytes_received,
            unchecked=self.auditor.obstacle(runner, self._reachable),
        )

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        # hivemind does the same with an `AllReduceRunner`, which it names in the middle of this method. Here it is a
        # `Runner`, with parts by `shares_of`, and part of what others reduce is checked after the round.
        shares, counts = shares_and_counted(group_info.gathered)
        kwargs |= {"peer_fractions": tuple(hagenbach_bishoff(self.total_size, shares)), "counts": counts}
        runner = Runner(
            upload=self.upload, patience=self.patience, tell=self.tell, p2p=self._p2p, servicer_type=type(self),
            prefix=self.prefix, tensors=tensors, group_id=group_info.group_id, ordered_peer_ids=group_info.peer_ids,
            **kwargs,
        )  # fmt: skip
        check = self.auditor.begin(runner, self._reachable)
        self._running_groups[group_info.group_id].set_result(runner)
        index = 0
        try:
            async for update in runner:
                if runner.answers is None:
                    tensors[index].add_(update, alpha=self._averaging_alpha)
                else:  # to add a difference would round, on each peer in another way
                    tensors[index].copy_(update)
                index += 1
        finally:
            came = runner.waiting.heard
            self._matchmaking.note_round(group_info, runner.failed, runner.refused, runner.slow, runner.cheap, came)
            if self.trust.is_heard(str(self.peer_id)):
                bounds = runner.paces.bounds(group_info.peer_ids, shares, self.peer_id)
                self.carried.note({peer: bounds[peer] for peer in self._reachable if peer in bounds})
        if check is not None:
            asyncio.create_task(self.auditor.finish(check, self.tell))  # noqa: RUF006  (kept by KeepsTasks)

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Answer a peer that asks to join a group of this peer's; hivemind lets anybody join.

        One that does not read would keep this peer from its own round, and from all later ones.
        """
        if not isinstance(self._matchmaking, MemberMatchmaking):
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_LOOKING_FOR_GROUP)
            return
        if (problem := await self._matchmaking.refusal(context.remote_id, request)) is not None:
            self.tell(context.remote_id, f"was not let into a group: {problem}", is_request=True)
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async for message in until_hung_up(super().rpc_join_group(request, context)):
            with ends_after(self.request_timeout):
                yield message

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Answer a groupmate's parts with their averages; a groupmate that starts before us waits for us.

        hivemind 1.1.12 means to let it wait too, but turns it away if an earlier round of ours ends at that moment:
        each of the two then averages without the other, after a time-out that delays the next round as well.
        """
        if (problem := await self.trust.refusal(str(context.remote_id))) is not None:
            self.tell(context.remote_id, f"may not send tensors: {problem}", is_request=True)
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        if (request := await anext(stream, None)) is None:
            return
        most_s = self.allreduce_kwargs["sender_timeout"]
        if isinstance(self._matchmaking, MemberMatchmaking) and request.group_id in self._matchmaking.leader_of:
            most_s = self._allreduce_timeout  # its round begins here when this peer's epoch has ended
        deadline = time.monotonic() + (most_s or self.request_timeout)
        over = self.rounds_now.is_over(request.group_id)
        while not over and request.group_id not in self._running_groups and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S / 10)
        parts = achain(as_aiter(request), stream)
        with ends_after(self._allreduce_timeout):
            answers = as_aiter(TOO_LATE) if over else super().rpc_aggregate_part(parts, context)
            async for message in until_hung_up(answers):
                await self.upload.send(message.ByteSize())
                yield message

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Answer with this peer's state, for peers that may have it, few at a time; hivemind gives it to anybody.

        While this peer averages with a group, nobody gets anything of it but word to wait.
        """
        if (problem := await self.trust.refusal(str(context.remote_id))) is not None:
            self.tell(context.remote_id, f"was refused our state: {problem}", is_request=True)
            return
        newcomer, loop = context.remote_id, asyncio.get_running_loop()
        if not self.line.join(newcomer):
            return  # it asks another donor
        task, end = asyncio.current_task(), None
        try:
            while (place := self.line.place_of(newcomer)) > 0 or self.rounds_now.is_any:
                yield waiting_message(place, self.line.wait_s(place))
                await asyncio.sleep(TELL_PLACE_S)
            # Who does not read keeps hivemind's task from asking for the next message, and would keep its turn.
            turn_s = self.request_timeout + PARAMETER_BYTES * self.total_size / SLOWEST_BYTES_PER_S
            end = loop.call_later(turn_s, task.cancel)
            async for message in until_hung_up(super().rpc_download_state(request, context)):
                while self.rounds_now.is_any:
                    yield waiting_message(0, 0.0)
                    await asyncio.sleep(TELL_PLACE_S)
                    end.cancel()
                    end = loop.call_at(end.when() + TELL_PLACE_S, task.cancel)
                await self.upload.send(message.ByteSize())
                yield message
        finally:
            self.line.leave(newcomer)
            if end is not None:
                end.cancel()

    async def _get_current_state_from_host_process(self):
        # hivemind copies the state for each request, also when the caller has hung up meanwhile. Here all who ask
        # while it is being copied share the copy, which nobody calls off.
        if self._copying is None:
            self._copying = asyncio.create_task(super()._get_current_state_from_host_process())
            self._copying.add_done_callback(lambda _: setattr(self, "_copying", None))
        return await asyncio.shield(self._copying)

    async def rpc_part_sent(
        self, request: averaging_pb2.AveragingData, context: P2PContext
    ) -> averaging_pb2.AveragingData:
        """Answer what this peer sent to a reducer, so that a groupmate can reduce that part a second time."""
        answer = self.auditor.answer(request, context.remote_id)
        await self.upload.send(answer.ByteSize())
        return answer

    def tell(self, peer: PeerID, what: str, is_request: bool = False) -> None:
        """Note what went wrong with a peer, or with its request alone, in `complaints` and in the log."""
        self.complaints.tell(str(peer), what, is_request)

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        # hivemind takes the name of `cls`. Here it is that of hivemind's class: its peers and ours find each other.
        return cls.wire_type._get_handle_name(namespace, method_name)
