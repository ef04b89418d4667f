"""What a peer would meet on this machine: codecs, p2pd and a run's first peers, tried without joining the run.

`dalle_lib.checks.doctor` calls `trial`, which starts this module as a process of its own: hivemind forks, which the
kernel of a notebook must not do, and a process that hangs can be killed with everything that it started.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from dalle_lib.one_line import in_one_line, printable
from dalle_lib.run import RunCard
from dalle_lib.run.kit import Kit
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import MAX_SHOWN

TIMEOUT_S = 150.0
"""Seconds after which the whole trial is ended."""
START_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 15.0
MAX_WORDS = 300
"""Letters of what a first peer says that are shown."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found, as far as the trial came. A problem is None where there is none."""

    codecs: str | None
    """What is wrong with the codecs."""
    p2pd: str | None
    """Why hivemind's p2pd does not start."""
    addresses: Sequence[str] = ()
    """Where p2pd listens."""
    first_peers: dict[str, str | None]
    """Why each of the run's first peers does not answer, by its id, or by its address if that has no id."""
    kits: Sequence[dict | None] = ()
    """The fields of the `Kit` of each first peer that answers; None for one that does not tell it."""
    greeting: str | None = "no first peer answers"
    """Why no first peer could be asked to dial back."""
    reached: int | None = None
    """The port on which a first peer reached this machine; 0 if it reached none, None if that was not tried."""
    ahead: float | None = None
    """Seconds by which this machine's clock is ahead of that peer's."""
    upload: str | None = "no first peer answers"
    """Why the upload was not measured."""
    mbps: float | None = None
    """Megabits per second from this machine to that peer."""
    look: str | None = "no first peer answers"
    """Why it is not known who trains."""
    others: Sequence[float] | None = None
    """Samples a second of each peer that computes now, by its own account; None if that is not known."""
    epoch: int = 0
    """The epoch of the one in their middle."""


def trial(
    settings: PeerSettings,
    first_peers: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    *,
    key: str | None = None,
    card: RunCard | None = None,
) -> Iterator[dict]:
    """Yield what a peer with `settings` would meet, fields of `Findings` as soon as they are known.

    At the end all fields without a default are known, and all that was started to find them out is ended.
    `first_peers` are addresses such as /ip4/.../tcp/.../p2p/...; the trial is ended after `timeout_s` seconds. `key` is
    that of the run's card, by which the hash table is asked who trains; members alone can ask that of theirs. `card` is
    the run's, for which first peers are asked which kits they have.
    """
    asked = {
        "first_peers": list(first_peers),
        "host": settings.host,
        "port": settings.port,
        "client_mode": bool(settings.client_mode),
        "key": key,
        "run": card and card.name,
        "kit": card and asdict(Kit.own(card)),
    }
    known = set()
    with tempfile.TemporaryDirectory() as folder:
        told, complaints = Path(folder, "told"), Path(folder, "complaints")
        with open(told, "w") as output, open(complaints, "w") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "dalle_lib.swarm.peer.dry_run", json.dumps(asked)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors, process_group=0,
            )  # fmt: skip
        try:
            with open(told) as lines:
                for facts in _facts(lines, child, time.monotonic() + timeout_s):
                    known |= facts.keys()
                    yield facts
            end = f"it hung for {timeout_s:.0f} s" if child.poll() is None else "it ended early"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        end = ": ".join([end, *complaints.read_text().strip().splitlines()[-1:]])
    unfinished = {"codecs": end, "p2pd": end, "first_peers": dict.fromkeys(first_peers, end)}
    yield {name: value for name, value in unfinished.items() if name not in known}


def _facts(lines: TextIO, child: subprocess.Popen, deadline: float) -> Iterator[dict]:
    """Yield the JSON objects in a file, line by line, that `child` writes until it ends or `deadline` has come."""
    begun, is_over = "", False
    while not is_over:
        is_over = child.poll() is not None or time.monotonic() > deadline  # before reading, or the last lines are lost
        while part := lines.readline():
            begun += part
            if begun.endswith("\n"):
                if begun.startswith("{"):
                    yield json.loads(begun)
                begun = ""
        time.sleep(0.05)


def main(asked: dict) -> None:
    """Try one thing after another, and print each result as a line of JSON as soon as it is known."""
    import hivemind

    from dalle_lib.swarm import hash_table
    from dalle_lib.swarm.averaging import codec

    multiprocessing.set_start_method("fork", force=True)
    try:
        codec.install()
        hash_table.install()
        _tell(codecs=None)
    except Exception as error:  # a peer would fail by the same error, whatever it is
        _tell(codecs=in_one_line(error))
    board = None if asked["key"] is None else _board(asked["key"])
    try:
        # Two p2pd would share a port, and each would get some of the other's connections: try the port without one.
        socket.create_server((asked["host"], asked["port"])).close()
        dht = hivemind.DHT(
            start=True,
            host_maddrs=[f"/ip4/{asked['host']}/tcp/{asked['port']}"],
            client_mode=asked["client_mode"],
            record_validators=board.validators if board else (),
            startup_timeout=START_TIMEOUT_S,
        )
    except Exception as error:
        _tell(p2pd=in_one_line(error))
        return
    answering = asyncio.run(_meet(dht, asked))
    if board is not None and answering:
        _look(dht, board, answering)
    dht.shutdown()


def _board(key: str):
    """Return where the peers of a run tell of themselves."""
    from dalle_lib.swarm.peer.metrics import MetricsBoard

    return MetricsBoard(key)


async def _meet(dht, asked: dict) -> list[str]:
    """Print what the first peers answer, and return the ids of those that do."""
    from dalle_lib.swarm.peer.kits import kits_of

    p2p = await dht.replicate_p2p()
    _tell(p2pd=None, addresses=[str(address) for address in await p2p.get_visible_maddrs()])
    by_peer: dict[str, list[str]] = {}
    for address in asked["first_peers"]:
        where, _, peer = address.rpartition("/p2p/")
        by_peer.setdefault(peer if where else address, []).append(where)
    problems = await asyncio.gather(*(_connect(p2p, peer, addresses) for peer, addresses in by_peer.items()))
    _tell(first_peers=dict(zip(by_peer, problems, strict=True)))
    answering = [peer for peer, problem in zip(by_peer, problems, strict=True) if problem is None]
    if asked["kit"] is not None:
        kits = await kits_of(p2p, answering, Kit(**asked["kit"]), asked["run"])
        _tell(kits=[kit and asdict(kit) for kit in kits])
    for peer in answering:
        if await _is_greeted(p2p, peer):
            break
    return answering


def _look(dht, board, first_peers: Sequence[str]) -> None:
    """Print who trains a run, as its hash table tells whoever asks, or why that is not known."""
    from hivemind.p2p import PeerID

    from dalle_lib.swarm.peer.metrics import LOOK_S

    try:
        peers = [PeerID.from_base58(peer) for peer in first_peers]
        if not dht.run_coroutine(partial(_ping, peers=peers), return_future=True).result(LOOK_S):
            _tell(look="the first peers' hash table does not answer")
            return
        there = board.read(dht)[:MAX_SHOWN]
        epoch = statistics.median_low(peer.epoch for peer in there) if there else 0
        _tell(look=None, others=[peer.samples_per_s for peer in there if not peer.is_held], epoch=epoch)
    except Exception as error:  # a stranger may answer anything
        _tell(look=_strangers_words(error))


async def _ping(_dht, node, peers: Sequence) -> bool:
    """Return whether one of these peers answers in the hash table, in whose process this runs."""
    return any(answer is not None for answer in await asyncio.gather(*map(node.protocol.call_ping, peers)))


async def _connect(p2p, peer: str, addresses: list[str]) -> str | None:
    """Return why `peer` cannot be reached at any of `addresses`, or None if it can."""
    from hivemind.p2p import PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
    from hivemind.utils.multiaddr import Multiaddr

    try:
        peer_id, dialled = PeerID.from_base58(peer), [Multiaddr(address) for address in addresses]
    except ValueError:
        return "this is not an address: expected one such as /ip4/…/tcp/…/p2p/…"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await p2p._client.connect(peer_id, dialled)  # hivemind has no public way to try one peer
    except TimeoutError:
        return f"{', '.join(addresses)}: no answer within {CONNECT_TIMEOUT_S:.0f} s"
    except ControlFailure as error:
        tried = re.findall(r"\* \[(\S+)\] ([^\n]*)", str(error))
        return ", ".join(f"{address}: {printable(why)[:MAX_WORDS]}" for address, why in tried) or _strangers_words(
            error
        )
    return None


async def _is_greeted(p2p, peer: str) -> bool:
    """Print what a first peer answers to a newcomer, and return whether it did all for it, as trainers do not."""
    from hivemind.p2p import PeerID

    from dalle_lib.swarm.peer.greeter import dial_back, upload_mbps

    addresses = map(str, await p2p.get_visible_maddrs(latest=True))
    ports = sorted({int(port) for address in addresses for port in re.findall(r"/tcp/(\d+)", address)})
    try:
        _tell(greeting=None, **await dial_back(p2p, PeerID.from_base58(peer), ports))
    except Exception as error:  # a stranger may answer anything
        _tell(greeting=f"{peer}: {_strangers_words(error)}", upload=f"{peer}: {_strangers_words(error)}")
        return False
    try:
        _tell(upload=None, mbps=await upload_mbps(p2p, PeerID.from_base58(peer)))
    except Exception as error:
        _tell(upload=f"{peer}: {_strangers_words(error)}")
        return False
    return True


def _strangers_words(error: Exception) -> str:
    """Return the first MAX_WORDS letters of an error that a stranger may have written, as a terminal shows them."""
    return in_one_line(error)[:MAX_WORDS]


def _tell(**facts) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    # hivemind leaves threads behind that would keep the process alive.
    os._exit(0)
