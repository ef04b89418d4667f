"""A small internet on one machine: processes that reach each other only over links of a given rate and delay.

It needs Linux, root and iproute2 (apt-get install iproute2). Nothing is left behind: devices are in networks that
belong to processes, and the kernel ends all these processes with the one in which `isolate` returns.
"""

import ctypes
import fcntl
import itertools
import multiprocessing
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

_MOUNTS, _PROCESS_NUMBERS, _NETWORK = 0x00020000, 0x20000000, 0x40000000
_END_WITH_PARENT = 1
_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_PACKETS, _BARE, _LARGE = 0x0001, 0x1000, 0x4000
_CHECKSUMS, _TCP4 = 0x01, 0x02
_LARGEST_PACKET = 2**16 + 64
_PATIENCE_S = 20
_fork = multiprocessing.get_context("fork")
_libc = ctypes.CDLL(None, use_errno=True)


def isolate() -> None:
    """Return in a new process with a network of its own; when it ends, the kernel ends every process that it started.

    The caller's process waits for the new one, exits with its exit code, and ends it when it is told to end itself.
    Raises PermissionError without root, FileNotFoundError without iproute2.
    """
    if not shutil.which("tc"):
        raise FileNotFoundError("links are made by ip and tc, which are not installed. Try: apt-get install iproute2")
    _separate(_NETWORK | _MOUNTS | _PROCESS_NUMBERS)
    inner = os.fork()
    if not inner:
        _libc.prctl(_END_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches both processes; the outer one answers it
        _run("mount --make-rprivate /")
        _run("mount -t proc proc /proc")
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _, status = os.waitpid(inner, 0)
    except BaseException:
        os.kill(inner, signal.SIGKILL)
        raise
    sys.exit(os.waitstatus_to_exitcode(status))


@dataclass(kw_only=True)
class ShapedNetwork:
    """Links that meet in this process's network, which forwards packets between them. Make it after `isolate`."""

    megabits: float
    """Rate of each link each way, in Mbit/s."""
    round_trip_ms: float = 0.0
    """Round-trip time between the ends of two idle links."""
    queue_ms: float = 200.0
    """Longest delay in a link's queue; packets that would wait longer are dropped."""
    congestion_control: str | None = None
    """How TCP finds its rate: one of net.ipv4.tcp_allowed_congestion_control; None keeps this machine's setting."""

    def __post_init__(self) -> None:
        self._links = itertools.count()
        _set("ip_forward", "1")
        if self.round_trip_ms:
            agree = _fork.Barrier(2, timeout=_PATIENCE_S)
            _fork.Process(target=_delay, args=(self.round_trip_ms / 2000, agree), daemon=True).start()
            agree.wait()
            _run("ip route add default dev delay table 100")
            _run("ip rule add iif delay lookup main priority 1")

    def start(self, target: Callable, *args, up: float | None = None, down: float | None = None) -> BaseProcess:
        """Start a process at the end of a new link, which runs `target` with its address and `args`; return it.

        `up` and `down` are rates of this link as the process sees it, in Mbit/s; without them it has the network's.
        """
        number, agree = next(self._links), _fork.Barrier(2, timeout=_PATIENCE_S)
        link, network = f"link{number}", f"10.77.{number}"
        process = _fork.Process(target=self._at_the_end, args=(network, up, agree, target, *args))
        process.start()
        agree.wait()
        _run(f"ip link add {link} type veth peer name end netns {process.pid}")
        _run(f"ip address add {network}.1/24 dev {link}")
        self._limit(link, down)
        if self.round_trip_ms:
            _run(f"ip rule add iif {link} lookup 100 priority 2")
        agree.wait()
        agree.wait()
        return process

    def _at_the_end(self, network: str, up: float | None, agree: Barrier, target: Callable, *args) -> None:
        _separate(_NETWORK)
        agree.wait()  # now there is a network to which the other process can link
        agree.wait()  # now it has
        if self.congestion_control:
            _set("tcp_congestion_control", self.congestion_control)
        _run("ip link set lo up")
        _run(f"ip address add {network}.2/24 dev end")
        self._limit("end", up)
        _run(f"ip route add default via {network}.1")
        agree.wait()
        target(f"{network}.2", *args)

    def _limit(self, device: str, megabits: float | None) -> None:
        # An idle link passes a little more than the largest packet at once; the kernel would split larger ones.
        rate = f"rate {megabits or self.megabits}mbit burst 70kb latency {self.queue_ms}ms"
        _run(f"tc qdisc add dev {device} root tbf {rate}")
        _run(f"ip link set {device} up")


def _delay(seconds: float, agree: Barrier) -> None:
    """Give each packet that leaves the device "delay" back to it `seconds` later, without end.

    This runs in user space, because not every kernel has netem. The kernel hands packets over before it splits them to
    a wire's size, so they are few.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH22x", b"delay", _PACKETS | _BARE | _LARGE))
    fcntl.ioctl(device, _SET_OFFLOAD, _CHECKSUMS | _TCP4)
    _run("ip link set delay up txqueuelen 10000")
    agree.wait()
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([device], [], [], patience)[0]:
            waiting.append((time.monotonic() + seconds, os.read(device, _LARGEST_PACKET)))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(device, waiting.popleft()[1])


def _separate(what: int) -> None:
    """Give this process its own namespaces of the kinds in `what`."""
    if _libc.unshare(what):
        raise PermissionError(f"could not make a network: {os.strerror(ctypes.get_errno())}. Run this as root.")


def _set(name: str, value: str) -> None:
    """Set one of the kernel's IPv4 settings for this process's network."""
    Path("/proc/sys/net/ipv4", name).write_text(value)


def _run(command: str) -> None:
    """Run a command. Raises CalledProcessError, and shows what it printed, if it fails."""
    subprocess.run(command.split(), check=True)
