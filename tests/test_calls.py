"""What callers keep open at a peer is limited, and what they call off is forgotten."""

import subprocess
import sys

import pytest
from hivemind.p2p import PeerID

from dalle_lib.swarm.calls import Callers

ADA, BOB = PeerID(b"ada"), PeerID(b"bob")

PEER = """
import asyncio, math, os, sys
from hivemind.p2p import P2P
from hivemind.proto import averaging_pb2
from dalle_lib.swarm import calls

message = averaging_pb2.DownloadRequest()
kept = []

async def until(holds, seconds=60):
    for _ in range(20 * seconds):
        if holds():
            break
        await asyncio.sleep(0.05)

async def hold(requests, context):
    yield averaging_pb2.DownloadData()
    await asyncio.sleep(600)

async def peer_and_callers(count):
    peer = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    addresses = await peer.get_visible_maddrs()
    callers = [await P2P.create(initial_peers=addresses) for _ in range(count)]
    await peer.add_protobuf_handler("hold", hold, type(message), stream_input=True, stream_output=True)
    return peer, callers

async def is_answered(caller, peer):
    async def one():
        yield message
    stream = await caller.iterate_protobuf_handler(peer.peer_id, "hold", one(), averaging_pb2.DownloadData)
    kept.append(stream)
    try:
        return await anext(stream, None) is not None
    except ConnectionResetError:  # refused before this had sent all it had to say
        return False

async def open_silent(caller, peer):
    _, reader, writer = await caller.call_binary_stream_handler(peer.peer_id, "hold")
    writer.write(b"\\0")  # the beginning of a message: before that, no stream is opened
    kept.append(writer)
    return asyncio.ensure_future(reader.read())
"""
"""What the scripts of these tests share: a peer that answers, and what its callers do."""

GIVEN_UP = """
from uuid import uuid4
from hivemind.proto import p2pd_pb2

if sys.argv[1] == "installed":
    calls.install()

async def echo(request, context):
    return request

async def main():
    peer, (caller,) = await peer_and_callers(1)
    await peer.add_protobuf_handler("echo", echo, type(message))
    control, call_id, given_up = caller._client.control, uuid4(), asyncio.Future()
    given_up.cancel()
    control._pending_calls[call_id] = given_up  # as between the end of a call and its task's next step
    call = p2pd_pb2.CallUnaryRequest(peer=peer.peer_id.to_bytes(), proto="echo", data=b"")
    await control._pending_messages.put(p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, callUnary=call))
    await asyncio.sleep(1)
    answer = caller.call_protobuf_handler(peer.peer_id, "echo", message, type(message))
    try:
        await asyncio.wait_for(answer, 5)
        print("heard True")
    except TimeoutError:
        print("heard False")
    await caller.shutdown()
    await peer.shutdown()

asyncio.run(main())
"""

ANSWERS = """
patience = 3  # in which stock peers do nothing
if sys.argv[1] == "installed":
    calls.install()
    patience = 60

async def dawdle(request, context):
    await asyncio.sleep(600)

async def main():
    peer, (ada, bob) = await peer_and_callers(2)
    await peer.add_protobuf_handler("dawdle", dawdle, type(message))
    open_ = [await is_answered(ada, peer) for _ in range(12)]
    print("ada", sum(open_), "bob", await is_answered(bob, peer))
    await kept[0].aclose()
    again = False
    for _ in range(600):
        if again := await is_answered(ada, peer):
            break
        await asyncio.sleep(0.1)
    print("again", again)

    calls.FIRST_S = 0.5
    silent = await open_silent(bob, peer)
    await asyncio.wait([silent], timeout=patience)
    print("silent", "closed" if silent.done() else "open")

    def called(times):
        answer = averaging_pb2.DownloadData
        return [asyncio.ensure_future(ada.call_protobuf_handler(peer.peer_id, "dawdle", message, answer))
                for _ in range(times)]

    tasks, called_off = peer._client.control._handler_tasks, called(30)
    await until(lambda: len(tasks) == 30)
    for each in called_off:
        each.cancel()
    await until(lambda: all(task.done() for task in tasks.values()))
    print("kept", len(tasks))
    waiting = called(70)
    await until(lambda: sum(each.done() for each in waiting) >= 6, patience)
    await asyncio.sleep(0.5)
    print("refused", sum(each.done() for each in waiting))
    os._exit(0)

asyncio.run(main())
"""


FLOOD = """
calls.install()
calls.MAX_SILENT, calls._strangers = 8, calls.Callers(4, math.inf)

async def main():
    peer, (member, newcomer, *strangers) = await peer_and_callers(4)
    calls.members_first(lambda caller: caller == member.peer_id)

    async def closed_of(streams, expected=0):
        await asyncio.wait(streams, timeout=2)
        await until(lambda: sum(stream.done() for stream in streams) >= expected)
        return sum(stream.done() for stream in streams)

    members = await open_silent(member, peer)
    await asyncio.sleep(0.5)
    silent = [await open_silent(strangers[number % 2], peer) for number in range(8)]
    print("silent", await closed_of(silent))
    print("newcomer", await is_answered(newcomer, peer), "member", await is_answered(member, peer))
    print("closed", await closed_of(silent, 1), await closed_of([members]))
    print("strangers", sum([await is_answered(stranger, peer) for stranger in strangers for _ in range(3)]))
    print("newcomer", await is_answered(newcomer, peer), "member", await is_answered(member, peer))
    os._exit(0)

asyncio.run(main())
"""


def test_a_caller_has_a_share_and_all_callers_a_limit():
    callers = Callers(of_all=3, of_one=2)
    with callers.admitted(ADA) as first, callers.admitted(ADA) as second, callers.admitted(ADA) as third:
        assert (first, second, third) == (True, True, False)
        with callers.admitted(BOB) as bobs, callers.admitted(BOB) as too_many:
            assert (bobs, too_many) == (True, False)
    with callers.admitted(ADA) as again:
        assert again


def test_what_callers_send_counts_by_its_size():
    callers = Callers(of_all=300, of_one=200)
    with callers.admitted(ADA, 150) as first, callers.admitted(ADA, 51) as too_much, callers.admitted(ADA, 50) as rest:
        assert (first, too_much, rest) == (True, False, True)
        with callers.admitted(BOB, 101) as beyond, callers.admitted(BOB, 100) as bobs:
            assert (beyond, bobs) == (False, True)
    with callers.admitted(BOB, 200) as again:
        assert again


@pytest.mark.peers
def test_streams_are_limited_for_each_caller_and_calls_that_are_called_off_are_forgotten():
    told = {}
    for how in "installed", "stock":
        done = subprocess.run([sys.executable, "-c", PEER + ANSWERS, how], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told[how] = done.stdout.splitlines()
    assert told["installed"] == ["ada 8 bob True", "again True", "silent closed", "kept 0", "refused 6"]
    assert told["stock"] == ["ada 12 bob True", "again True", "silent open", "kept 30", "refused 0"], (
        "calls.py has become superfluous"
    )


@pytest.mark.peers
@pytest.mark.parametrize(("how", "hears"), [("installed", True), ("stock", False)])
def test_a_peer_hears_on_when_an_answer_comes_as_it_gives_up_its_call(how, hears):
    done = subprocess.run([sys.executable, "-c", PEER + GIVEN_UP, how], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"heard {hears}"], done.stderr


@pytest.mark.peers
def test_strangers_that_open_all_the_streams_they_can_keep_no_member_out():
    done = subprocess.run([sys.executable, "-c", PEER + FLOOD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "silent 0",
        "newcomer True member True",  # whoever sends at once takes the place of the one silent for longest
        "closed 1 0",
        "strangers 3",  # of the 4 that all unknown callers share, the newcomer has one
        "newcomer False member True",
    ]
