"""A trainer that does what others do and tells more: `python boasting_peer.py FOLDER`, with its settings there.

It claims three times its weight in averages, and losses that are a tenth lower. It leaves when standard input ends.
"""

import sys
from dataclasses import replace
from pathlib import Path

from dalle_lib.swarm.peer.main import main
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.evidence import BatchLoss

_post = MetricsBoard.post


def post(self, dht, status, *args, **options) -> None:
    batch = BatchLoss.read(status.trained)
    trained = "" if batch is None else str(replace(batch, loss=0.9 * batch.loss))
    _post(self, dht, replace(status, counted=3 * status.counted, trained=trained), *args, **options)


if __name__ == "__main__":
    MetricsBoard.post = post
    main(Path(sys.argv[1]))
