"""What a newcomer makes of first peers that answer lies, or harm to a terminal."""

import asyncio
import contextlib
import json
import time

import pytest
from hivemind.p2p import P2P
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from two_peers import port_of, two_peers

from dalle_lib.swarm.peer import dry_run
from dalle_lib.swarm.peer.greeter import MAX_BYTES, NotMeasured, dial_back, upload_mbps

PEER = "12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
NO_REACHED = ("NaN", "[1]", '"\\u001b[2Jport"', "31338", "-1", "{}")
NO_TIME = ("NaN", "Infinity", "-Infinity", "-1.0", "1e300", '"now"', "null")
NO_COUNT = ("NaN", "Infinity", "-1", '"5"', "null", str(MAX_BYTES + 1), "5e6")
NO_SECONDS = ("NaN", "Infinity", "-1.0", '"5"', "null")


def test_a_newcomer_refuses_what_a_first_peer_cannot_have_seen():
    answers = [f'{{"time": 1e9, "reached": {reached}}}' for reached in NO_REACHED]
    answers += [f'{{"time": {told}, "reached": 0}}' for told in NO_TIME]
    counts = [f'{{"bytes": {count}, "seconds": 1.0}}' for count in NO_COUNT]
    counts += [f'{{"bytes": 1000, "seconds": {seconds}}}' for seconds in NO_SECONDS]

    said = {"reached": '{"time": 1e9, "reached": 31337}', "counted": '{"bytes": 1000000, "seconds": 2.0}'}

    async def lie(request: ExpertRequest, _) -> ExpertResponse:
        return ExpertResponse(metadata=said["reached"].encode())

    async def miscount(_, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(f"{{}}\n{said['counted']}\n".encode())
            while await reader.read(2**16):
                pass

    async def meet() -> None:
        async with two_peers(float("inf")) as (first, newcomer, _):
            await first.add_protobuf_handler("Greeter.rpc_dial_back", lie, ExpertRequest)
            await first.add_binary_stream_handler("Greeter.upload", miscount)
            assert (await dial_back(newcomer, first.peer_id, [31337]))["reached"] == 31337
            assert await upload_mbps(newcomer, first.peer_id) == 4
            for said["reached"] in answers:
                with pytest.raises(ValueError, match="it did not answer with the time and which of"):
                    await dial_back(newcomer, first.peer_id, [31337])
            for said["counted"] in counts:
                with pytest.raises(NotMeasured, match="it did not answer how many bytes"):
                    await upload_mbps(newcomer, first.peer_id)

    asyncio.run(meet())


def test_a_strangers_words_are_short_and_printable(capsys):
    words = "\x1b[2J\x1b]0;no\x07 \u202e" + 10**5 * "x"

    async def fail(request: ExpertRequest, _) -> ExpertResponse:
        raise RuntimeError(words)

    async def answer(request: ExpertRequest, _) -> ExpertResponse:
        return ExpertResponse(metadata=json.dumps({"time": time.time(), "reached": 0}).encode())

    async def refuse(_, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(json.dumps({"refused": words[:9000]}).encode() + b"\n")
            await reader.read()

    async def meet(dial_back) -> None:
        async with two_peers(float("inf")) as (first, newcomer, _):
            await first.add_protobuf_handler("Greeter.rpc_dial_back", dial_back, ExpertRequest)
            await first.add_binary_stream_handler("Greeter.upload", refuse)
            await dry_run._is_greeted(newcomer, first.peer_id.to_base58())

    for dial_back_as in fail, answer:
        asyncio.run(meet(dial_back_as))
        told = capsys.readouterr().out.splitlines()
        said = {key: value for line in told for key, value in json.loads(line).items()}["upload"]
        assert "xxx" in said
        assert said.isprintable()
        assert len(said) < 400


def test_a_stranger_at_a_first_peers_address_cannot_control_the_terminal():
    async def say(_, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            for line in b"/multistream/1.0.0\n", b"\x1b[2J\x1b]0;no\x07 \xe2\x80\xaeelse\n":
                writer.write(bytes([len(line)]) + line)
            await writer.drain()

    async def meet() -> None:
        newcomer = await P2P.create()
        try:
            async with await asyncio.start_server(say, "127.0.0.1", 0) as stranger:
                address = f"/ip4/127.0.0.1/tcp/{port_of(stranger)}"
                why = await dry_run._connect(newcomer, PEER, [address])
        finally:
            await newcomer.shutdown()
        assert why.startswith(address)
        assert "else" in why
        assert why.isprintable()

    asyncio.run(meet())
