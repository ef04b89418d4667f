"""Signals by which a person, a service manager or a system that shuts down asks a process to end."""

import _thread
import signal
import threading


def set_when_asked(leave: threading.Event) -> None:
    """Let such signals do no more than set `leave`, in this process and, for its copy, in those forked after this.

    A thread sets it: this one may hold the event's lock when a signal comes, and would wait for itself. The end of a
    terminal that is ignored, as under `nohup`, stays so.
    """
    heeded = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heeded.append(signal.SIGHUP)
    for number in heeded:
        signal.signal(number, lambda *_: _thread.start_new_thread(leave.set, ()))
