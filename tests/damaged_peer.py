"""A trainer whose parameters are damaged once, as by a fault of its memory: `python damaged_peer.py FOLDER`.

In the middle of epoch EPOCH its largest tensor is multiplied by FACTOR, where its optimizer has it, and nothing tells
the peer. It leaves when standard input ends.
"""

import sys
from pathlib import Path

import torch

from dalle_lib.swarm.peer.main import main
from dalle_lib.swarm.peer.trainer import Trainer

EPOCH, FACTOR = 4, 3.0
_step = Trainer.step


def step(self, batches) -> None:
    _step(self, batches)
    averager = self.optimizer.state_averager
    if averager.epoch_of_parameters >= EPOCH and not self.optimizer.is_updating:
        parameters = [parameter for group in averager.optimizer.param_groups for parameter in group["params"]]
        with torch.no_grad(), averager.lock_averaged_tensors:
            max(parameters, key=torch.Tensor.numel).mul_(FACTOR)
        Trainer.step = _step


if __name__ == "__main__":
    Trainer.step = step
    main(Path(sys.argv[1]))
