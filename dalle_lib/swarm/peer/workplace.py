"""What a trainer computes with: model, device and data, ready before it connects to others."""

import os
from dataclasses import dataclass

import torch

from dalle_lib.machine import check_gpu, require_room_in_cache, working_gpus
from dalle_lib.model import DALLE
from dalle_lib.model.inputs import check_inputs
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.threads import threads_of


def stand_back(settings: PeerSettings) -> None:
    """Let this thread compute at a peer's niceness and on as many threads as it may, which begin after this.

    Linux gives a priority to the calling thread and to those that it makes later: answering other peers goes before
    computing.
    """
    os.nice(settings.niceness)
    torch.set_num_threads(threads_of(settings))


def limit_gpu(device: torch.device, share: float) -> None:
    """Let this process allocate at most a share of a GPU's memory; of other devices, nothing is limited."""
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


@dataclass(frozen=True)
class Workplace:
    """What a trainer computes with, ready before it connects to others."""

    model: DALLE
    device: torch.device
    batches: TrainingBatches
    """What it trains on, of which the first can be read."""
    pace: Pace
    idle_gpus: list[str]
    """GPUs that work but are not used, because a peer computes on one."""

    @classmethod
    def prepare(cls, card: RunCard, settings: PeerSettings, peer_id: str) -> "Workplace":
        """Return the run's model on this peer's device, and its data in the order of the peer of this id.

        Raises NotEnoughRoom before anything is downloaded, and ValueError if the device does not compute, or if what
        the run's card names is not beside it, is another, or cannot be trained on.
        """
        found = working_gpus() if settings.device == "auto" else []
        device = torch.device(settings.device if settings.device != "auto" else next(iter(found), "cpu"))
        if device.type == "cuda" and not found and (problem := check_gpu(str(device)).problem):
            raise ValueError(
                f'{settings.device} does not compute here: {problem}. Choose another --device; "auto" takes a GPU that '
                "works, or else the processor."
            )
        limit_gpu(device, settings.gpu_share)
        card.require_beside()
        require_room_in_cache(f"run {card.name!r}", card.downloads)
        steps_itself = card.averaging.strategy == "local"
        pace = Pace(card.averaging.target_batch_size, settings.batch_size, steps_itself=steps_itself)
        model, batches = initial_model(card), batches_of(card, pace.most, settings.data_seed(peer_id))
        begin, first = batches.state_dict(), next(batches)
        check_inputs(card.model, first.text, first.codes)
        batches.load_state_dict(begin)
        return cls(model.to(device), device, batches, pace, found[1:])
