"""Ports for what has to know its port before it listens."""

import contextlib
import random
import socket

_LEFT = iter(random.SystemRandom().sample(range(20_000, 31_000), 11_000))
"""Below those that systems give to whoever asks for any, so that nobody gets one between its choice and its use."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens, another one each time."""
    for port in _LEFT:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("expected a port from 20000 to 30999 on which nobody listens, but there is none")
