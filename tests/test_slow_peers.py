"""A peer whose upload is slow costs itself alone: the others go on without it, it is told, and blames nobody."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace

import torch
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import as_aiter
from two_peers import connect, port_of_peer

from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.patience import Patience
from dalle_lib.swarm.averaging.rounds import RoundsNow
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload

PARTS = 5
"""Parts of 100 values that each of two reducers gets of each peer."""
LATE = "the others went on without the rest of its tensors, which came too slowly"


@contextlib.asynccontextmanager
async def peers_of_hivemind(count: int) -> AsyncIterator[list[P2P]]:
    """Peers on 127.0.0.1 that are all connected to each other."""
    peers = []
    try:
        for _ in range(count):
            peers.append(await P2P.create())
            for other in peers[:-1]:
                await connect(peers[-1], other, await port_of_peer(other))
        yield peers
    finally:
        for peer in peers:
            await peer.shutdown()


class Noted(Runner):
    """One side of a round that notes whom it names."""

    def __init__(self, p2p: P2P, peers: list[P2P], **options) -> None:
        self.told: list[tuple[PeerID, str]] = []
        ids = [peer.peer_id for peer in peers]
        super().__init__(
            trust=Trust(), upload=Upload(), tell=lambda *complaint: self.told.append(complaint), p2p=p2p,
            counts=[True] * len(peers), servicer_type=Runner, prefix="round", group_id=b"group", part_size_bytes=400,
            tensors=[torch.full((200 * PARTS,), float(ids.index(p2p.peer_id)))], ordered_peer_ids=ids,
            **{"peer_fractions": (0.5, 0.5, *(0.0 for _ in peers[2:])), **options},
        )  # fmt: skip

    @classmethod
    def _get_handle_name(cls, namespace: str, method_name: str) -> str:
        return Runner._get_handle_name(namespace, method_name)

    async def average(self) -> torch.Tensor:
        """Return what this side has after the round."""
        updates = torch.cat([update async for update in self])
        return self.tensor_part_container.local_tensors[0] + updates


class Impatient(Noted):
    """Waits for no second part of the last peer, if it is one of the first reducers."""

    impatient: int

    async def _counting(self, parts, sender_index: int):
        async for part in super()._counting(parts, sender_index):
            yield part
            if sender_index == len(self.sender_peer_ids) - 1 and self.place < self.impatient:
                raise TimeoutError("it kept the others waiting")

    @property
    def place(self) -> int:
        """This peer's place among all."""
        return self.ordered_peer_ids.index(self.peer_id)


async def averages_of(runners: list[Noted]) -> list[torch.Tensor]:
    """Return what each side has after a round."""
    for runner in runners:
        await runner.add_p2p_handlers(runner._p2p, namespace="round")
    return await asyncio.wait_for(asyncio.gather(*(runner.average() for runner in runners)), 60)


def impatient(count: int) -> type[Impatient]:
    """Return the side of a round in which the first `count` peers wait for no second part of the last one."""
    return type("", (Impatient,), {"impatient": count})


def test_a_slow_sender_is_told_that_it_is_and_blames_nobody():
    async def play() -> None:
        async with peers_of_hivemind(3) as peers:
            runners = [impatient(2)(p2p, peers) for p2p in peers]
            *fast, slow = runners
            *averages, own = await averages_of(runners)
            of_all, of_fast = torch.tensor([1.0]), torch.tensor([0.5])
            expected = torch.cat([of_all.expand(100), of_fast.expand(100 * (PARTS - 1))] * 2)
            for average in averages:
                torch.testing.assert_close(average, expected)
            torch.testing.assert_close(own, torch.where(expected == 1.0, expected, 2.0))
            assert [runner.is_whole for runner in runners] == [True, True, False]
            for runner in fast:
                assert runner.told == [(slow.peer_id, "its tensors came too slowly: it kept the others waiting")]
                assert runner.failed == runner.slow == {slow.peer_id}
            assert slow.told == [(slow.peer_id, LATE)]
            assert slow.is_late
            assert not slow.failed | slow.refused
            assert [runner.upload.spares for runner in runners] == [False, False, True]

    asyncio.run(play())


def test_a_reducer_that_alone_says_that_a_peer_is_slow_is_blamed_for_it():
    async def play() -> None:
        async with peers_of_hivemind(3) as peers:
            runners = [impatient(1)(p2p, peers) for p2p in peers]
            await averages_of(runners)
            liar, _other, sender = runners
            assert not sender.is_late
            assert sender.failed == {liar.peer_id}
            assert [peer for peer, _ in sender.told] == [liar.peer_id]
            assert "most others do not" in sender.told[0][1]

    asyncio.run(play())


def test_a_peer_that_most_have_called_slow_shortly_before_believes_one_that_says_so():
    async def play() -> None:
        async with peers_of_hivemind(3) as peers:
            runners = [impatient(1)(p2p, peers) for p2p in peers]
            *_, slow = runners
            slow.upload.note_round(is_late=True)
            await averages_of(runners)
            assert not slow.failed | slow.late_to
            assert slow.told == [(slow.peer_id, LATE)]

    asyncio.run(play())


def test_who_comes_when_the_round_is_over_is_told_so_at_once():
    """It would wait for a round that began long ago, and then say that nobody reduced its parts."""

    class Averager(RunAverager):
        def __init__(self) -> None:
            self.trust, self.upload, self.rounds_now, self._allreduce_timeout = Trust(), Upload(), RoundsNow(), None
            self._running_groups, self._matchmaking, self.allreduce_kwargs = {}, None, {"sender_timeout": 600.0}

    async def answered() -> averaging_pb2.AveragingData:
        averager, request = Averager(), averaging_pb2.AveragingData(group_id=b"group")
        with averager.rounds_now.one_more(b"group"):
            assert not averager.rounds_now.is_over(b"group")
        context = SimpleNamespace(remote_id=PeerID(b"late"))
        answers = averager.rpc_aggregate_part(as_aiter(request), context)
        return await asyncio.wait_for(anext(answers), 30)

    assert asyncio.run(answered()).code == averaging_pb2.CANCELLED


def test_a_round_that_failed_is_not_over_and_tells_nobody_that_they_came_late():
    rounds = RoundsNow()
    with contextlib.suppress(ZeroDivisionError), rounds.one_more(b"group"):
        raise ZeroDivisionError
    assert not rounds.is_over(b"group")
    assert not rounds.is_any


class Short(Patience):
    """Waits for the last of some peers, once it is late, as it does for the others, and for ever for these."""

    def __init__(self, last: PeerID, is_late: asyncio.Event) -> None:
        super().__init__()
        self.last, self.is_late = last, is_late

    def spared_s(self, peer: PeerID) -> float:
        return 0.0 if peer == self.last else 600.0

    def for_sender(self, sender: PeerID, waited_s: Mapping[PeerID, float], most_s: float) -> float:
        if sender == self.last and not self.is_late.is_set():
            return most_s
        return super().for_sender(sender, waited_s, most_s)


class Fast(Noted):
    """Says when it has all averages."""

    def __init__(self, p2p: P2P, peers: list[P2P], done: list[asyncio.Event], late: asyncio.Event, **options) -> None:
        super().__init__(p2p, peers, sender_timeout=600.0, patience=Short(peers[-1].peer_id, late), **options)
        self.done, self.late = done, late

    async def average(self) -> torch.Tensor:
        mine = await super().average()
        self.done[self.ordered_peer_ids.index(self.peer_id)].set()
        return mine

    async def others(self) -> None:
        """Return when all others are done."""
        for event in self.done[:-1]:
            await event.wait()


class SlowSender(Fast):
    """Sends two parts to each reducer, and the others when nobody needs them any more."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.heard = Counter()

    def _hear(self, reducer: PeerID, answer: averaging_pb2.AveragingData) -> None:
        super()._hear(reducer, answer)
        self.heard[reducer] += 1
        if sorted(self.heard.values()) == [2, 2]:  # both have averaged what it has sent
            self.late.set()

    async def _generate_input_for_peer(self, peer_index: int):
        count = 0
        async for part in super()._generate_input_for_peer(peer_index):
            if count == 2:
                await self.others()
            yield part
            count += 1


class Starter(Fast):
    """Begins when the others are done."""

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        self.late.set()
        await self.others()
        await super()._communicate_with_peer(peer_id)


class SlowReducer(Fast):
    """Gives back its averages when nobody needs them any more."""

    async def _accumulate_parts_streaming(self, stream, sender_index: int):
        async for answer in super()._accumulate_parts_streaming(stream, sender_index):
            await self.others()
            yield answer


async def of_four(last: type[Fast], **options) -> tuple[list[Fast], list[torch.Tensor]]:
    """Return the sides of a round whose last peer is slow, and what each has after it."""
    async with peers_of_hivemind(4) as peers:
        done, late = [asyncio.Event() for _ in peers], asyncio.Event()
        kinds = [Fast, Fast, Fast, last]
        runners = [kind(p2p, peers, done, late, **options) for kind, p2p in zip(kinds, peers, strict=True)]
        return runners, await averages_of(runners)


def test_a_round_goes_on_without_a_slow_sender_when_the_others_are_waited_for_no_more():
    (*fast, slow), averages = asyncio.run(of_four(SlowSender))
    of_all, of_fast = torch.tensor([1.5]), torch.tensor([1.0])
    expected = torch.cat([of_all.expand(200), of_fast.expand(100 * (PARTS - 2))] * 2)
    for runner, average in zip(fast, averages[:-1], strict=True):
        torch.testing.assert_close(average, expected)
        assert runner.is_whole
    for reducer in fast[:2]:
        assert reducer.cheap == {slow.peer_id}
        assert [peer for peer, _ in reducer.told] == [slow.peer_id]
        assert "came too slowly" in reducer.told[0][1]
        assert reducer.patience._late == {slow.peer_id: 1}
    assert not fast[2].told
    assert slow.told == [(slow.peer_id, LATE)]


def test_a_round_goes_on_without_a_peer_that_has_not_begun_when_the_others_have():
    (*fast, slow), averages = asyncio.run(of_four(Starter))
    for runner, average in zip(fast, averages[:-1], strict=True):
        torch.testing.assert_close(average, torch.ones(200 * PARTS))
        assert runner.is_whole
    for reducer in fast[:2]:
        assert [peer for peer, _ in reducer.told] == [slow.peer_id]
        assert "sent none of its tensors" in reducer.told[0][1]


def test_a_round_goes_on_without_a_slow_reducer_when_half_of_the_others_are_done():
    (*fast, slow), averages = asyncio.run(of_four(SlowReducer, peer_fractions=(0.2, 0.2, 0.2, 0.4)))
    for runner, average in zip(fast, averages[:-1], strict=True):
        own = float(fast.index(runner))
        torch.testing.assert_close(average, torch.tensor([1.5] * 600 + [own] * 400))
        assert runner.failed == runner.unreduced == {slow.peer_id}
        assert [peer for peer, _ in runner.told] == [slow.peer_id]
        assert "did not reduce its parts" in runner.told[0][1]
    assert slow.is_whole
    assert not slow.told
