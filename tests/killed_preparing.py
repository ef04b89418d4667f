"""Prepares a data set in one process after the other, each of which is killed without warning after a while.

python tests/killed_preparing.py SETTINGS SECONDS ..., where SETTINGS are the arguments of `prepare_dataset` as JSON.
It prints how many processes were killed before one came to its end.
"""

import json
import os
import signal
import sys
import time

import torch

from dalle_lib.streaming.prepare import making, prepare_dataset  # noqa: F401 (children need not import it again)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    for killed, delay in enumerate([*map(float, sys.argv[2:]), None]):
        if (child := os.fork()) == 0:
            torch.set_num_threads(1)
            prepare_dataset(**arguments)
            os._exit(0)
        ended = 0
        if delay is not None:
            until = time.monotonic() + delay
            while not ended and time.monotonic() < until:
                time.sleep(0.002)
                ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                os.kill(child, signal.SIGKILL)
        if not ended:
            _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(killed)
            sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
