"""Peers of one run's name with other kits know of each other, whatever strangers say; later fields separate nobody."""

import asyncio
import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hivemind.p2p import P2P, P2PHandlerError, PeerID
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse

from dalle_lib.run import PROTOCOL
from dalle_lib.run.kit import MAX_BYTES, Kit
from dalle_lib.swarm.peer import kits
from dalle_lib.swarm.peer.kits import MAX_TOLD, Kits, kits_at, kits_of
from dalle_lib.swarm.peer.main import _require_answer
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.join import CannotJoin
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.version import __version__

OWN = Kit("0" * 16, 4, "0.3.0")
NEWER, OLDER, OTHER_CARD = Kit("1" * 16, 5, "0.4.0"), Kit("2" * 16, 3, "0.2.0"), Kit("3" * 16, 4, "0.3.0")
RUN = "pots"


def message(**changes) -> bytes:
    return json.dumps({"run": RUN, **asdict(NEWER), **changes}).encode()


def test_what_a_peer_tells_of_its_kit_is_read_and_fields_of_later_versions_are_passed_over():
    assert Kit.told(NEWER.as_told(RUN), RUN) == NEWER
    assert Kit.told(message(colour="blue", more={"a": [1]}), RUN) == NEWER


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * MAX_BYTES,
        b"{}",
        message(run="pans"),
        message(padding="x" * MAX_BYTES),
        message(fingerprint="1" * 15),
        message(fingerprint="G" * 16),
        message(fingerprint="1" * 16 + "\n"),
        message(fingerprint=1),
        message(protocol=-1),
        message(protocol=10**9),
        message(protocol=True),
        message(protocol=5.0),
        message(kit="9" * 33),
        message(kit="0.4.0\x1b[2J"),
        message(kit="0.4.0; reboot"),
        message(kit="٤.0"),
        message(kit="newest"),
        message(kit="1!2.0"),
        message(kit="1.x"),
        message(kit=4),
    ],
    ids=repr,
)
def test_what_is_no_kit_of_the_run_is_refused(told):
    with pytest.raises(ValueError, match=r"expected|Expecting|decode|Invalid version"):
        Kit.told(told, RUN)


@pytest.mark.parametrize(
    ("other", "what", "do"),
    [
        (NEWER, "trains with dalle-lib 0.4.0 (protocol 5), you have 0.3.0 (protocol 4)", "update with `pip install"),
        (OLDER, "trains with dalle-lib 0.2.0 (protocol 3), you have 0.3.0 (protocol 4)", "ask its organiser to update"),
        (OTHER_CARD, "have another card than you, with dalle-lib 0.3.0", "ask its organiser for it"),
    ],
)
def test_a_newcomer_is_told_in_a_line_what_differs_and_what_to_do(other, what, do):
    line = OWN.way_to(other, RUN)
    assert what in line
    assert do in line
    assert line.isprintable()


@pytest.mark.parametrize(("asked", "out"), [([], None), ([NEWER], NEWER), ([NEWER, OLDER], NEWER)])
def test_who_finds_their_own_kit_or_a_silent_peer_is_kept_out_by_no_other(asked, out):
    assert OWN.kept_out_by(asked) == out
    for friend in None, OWN, replace(OWN, kit="0.3.9"):
        assert OWN.kept_out_by([*asked, friend]) is None
        assert OWN.kept_out_by([friend, *asked]) is None


def test_the_kit_of_a_card_is_this_one(mini):
    assert Kit.own(mini) == Kit(mini.fingerprint, PROTOCOL, __version__)


@contextlib.asynccontextmanager
async def peers_of(*served):
    """A newcomer, connected to a first peer for each of what is `served`: a Kits, what it answers, or None."""
    first, newcomer = [await P2P.create() for _ in served], None
    try:
        for p2p, kind in zip(first, served, strict=True):
            if kind is not None:
                await kind.add_p2p_handlers(p2p)
        addresses = [str(address) for p2p in first for address in await p2p.get_visible_maddrs()]
        newcomer = await P2P.create(initial_peers=addresses)
        yield newcomer, first, addresses
    finally:
        for p2p in filter(None, [newcomer, *first]):
            await p2p.shutdown()


def telling(answer: bytes | float, folder: Path) -> Kits:
    """Return what answers every question by these bytes, or after so many seconds by none."""

    class Telling(Kits):
        _rpc_handlers = _stub_type = None

        @classmethod
        def _get_handle_name(cls, namespace, method_name):
            return Kits._get_handle_name(namespace, method_name)

        async def rpc_kit(self, request: ExpertRequest, context) -> ExpertResponse:
            if isinstance(answer, float):
                await asyncio.sleep(answer)
                raise ValueError
            return ExpertResponse(metadata=answer)

    return Telling(RUN, OWN, EventLog(folder))


class Garbage:
    """Answers every question with bytes that are no message at all."""

    async def add_p2p_handlers(self, p2p: P2P) -> None:
        async def answer(request: bytes, caller: PeerID) -> bytes:
            return b"\xff" * 100

        await p2p._client.add_unary_handler(Kits._get_handle_name(None, "rpc_kit"), answer)


def problems(folder) -> list[str]:
    return [event["problem"] for event in read_events(folder) if event["event"] == "problem"]


def test_peers_of_other_kits_tell_each_other_and_each_is_told_once(tmp_path):
    own = Kits(RUN, OWN, EventLog(tmp_path))

    async def meet() -> None:
        async with peers_of(own) as (newcomer, (first,), _):
            for kit in NEWER, NEWER, OWN:
                assert await kits_of(newcomer, [str(first.peer_id)], kit, RUN) == [OWN]
            stub = Kits.get_stub(newcomer, first.peer_id)
            with pytest.raises(P2PHandlerError, match=r"for this run, but got .*pans"):
                await stub.rpc_kit(ExpertRequest(metadata=NEWER.as_told("pans")))

    asyncio.run(meet())
    assert problems(tmp_path) == [
        "a peer of this run's name has dalle-lib 0.4.0 (protocol 5), this one 0.3.0 (protocol 4): they never meet, so "
        "update this one"
    ]


def test_strangers_that_invent_kits_are_told_a_few_times_and_first_peers_still_are(tmp_path):
    own = Kits(RUN, OWN, EventLog(tmp_path))

    async def meet() -> None:
        async with peers_of(own, Kits(RUN, OLDER, EventLog(tmp_path / "none"))) as (newcomer, (first, older), _):
            for number in range(50):
                invented = Kit(f"{number:016x}", 9, "9.9")
                assert await kits_of(newcomer, [str(first.peer_id)], invented, RUN) == [OWN]
            await own.ask(newcomer, [str(older.peer_id), "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"])

    (tmp_path / "none").mkdir()
    asyncio.run(meet())
    told = problems(tmp_path)
    assert sum("9.9" in line for line in told) == MAX_TOLD
    assert [line for line in told if "9.9" not in line] == [OWN.apart_from(OLDER)]


def test_a_newcomer_asks_those_that_are_there_and_lies_count_as_silence(mini, monkeypatch, tmp_path):
    monkeypatch.setattr(kits, "ANSWER_S", 3.0)
    own = Kit.own(mini)
    other = replace(own, fingerprint="f" * 16, protocol=own.protocol + 1)
    liars = [b"", b"x" * 10**6, b"\x1b[2J", other.as_told("other-run"), 600.0]
    told = (telling(lie, tmp_path) for lie in liars)
    serving = [Kits(mini.name, other, EventLog(tmp_path)), *told, Garbage(), None]

    async def ask() -> tuple[list[Kit | None], list[Kit | None]]:
        async with peers_of(*serving) as (_, _, addresses):
            gone = "/ip4/127.0.0.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
            one = await asyncio.to_thread(kits_at, [addresses[0], gone], mini)
            return one, await asyncio.to_thread(kits_at, addresses, mini)

    one, all_of_them = asyncio.run(ask())
    assert one == [other]
    assert own.kept_out_by(one) == other
    assert all_of_them == [other, *[None] * (len(liars) + 2)]
    assert problems(tmp_path) == [other.apart_from(own)], "who was asked knows of the newcomer"


def test_a_trainer_begins_unless_all_that_are_there_have_other_kits(mini, tmp_path):
    own = Kit.own(mini)
    other = replace(own, fingerprint="f" * 16, protocol=own.protocol + 1)
    membership = SimpleNamespace(identity=SimpleNamespace(peer_id="own"), folder=tmp_path)

    async def begin() -> None:
        async with peers_of(Kits(mini.name, other, EventLog(tmp_path)), Garbage()) as (_, _, addresses):
            for there in addresses[::-1], addresses[1:]:
                card = mini.with_changes(initial_peers=there)
                await asyncio.to_thread(_require_answer, card, PeerSettings(run=""), membership)
            card = mini.with_changes(initial_peers=addresses[:1])
            await asyncio.to_thread(_require_answer, card, PeerSettings(run="", alone=True), membership)
            with pytest.raises(CannotJoin, match=r"^run 'emoji-mini' trains with dalle-lib .*, you have .*: update"):
                await asyncio.to_thread(_require_answer, card, PeerSettings(run=""), membership)

    asyncio.run(begin())
