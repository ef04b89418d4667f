"""What a trainer computes with: model, device and data, ready before it connects to others."""

import os
from dataclasses import dataclass

import torch

from dalle_lib.machine import check_gpu, choose_device, require_room_in_cache
from dalle_lib.model import DALLE
from dalle_lib.model.inputs import check_inputs
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.peer.computing.room import limit_gpu
from dalle_lib.swarm.process.settings import FIRST_GPU, PeerSettings
from dalle_lib.swarm.process.threads import threads_of


def stand_back(settings: PeerSettings) -> None:
    """Let this thread compute at a peer's niceness and on as many threads as it may, which begin after this.

    Linux gives a priority to the calling thread and to those that it makes later: answering other peers goes before
    computing.
    """
    os.nice(settings.niceness)
    torch.set_num_threads(threads_of(settings))


@dataclass(frozen=True)
class Workplace:
    """What a trainer computes with, ready before it connects to others."""

    model: DALLE
    device: torch.device
    """Where the model is."""
    further: list[torch.device]
    """Where workers compute with copies of it."""
    batches: TrainingBatches
    """What it trains on, of which the first can be read."""
    pace: Pace

    @property
    def told(self) -> str:
        """The devices, as torch names them."""
        return ", ".join(map(str, [self.device, *self.further]))

    @classmethod
    def prepare(cls, card: RunCard, settings: PeerSettings, peer_id: str) -> "Workplace":
        """Return the run's model on this peer's first device, and its data in the order of the peer of this id.

        Raises NotEnoughRoom before anything is downloaded, and ValueError if the device does not compute, or if what
        the run's card names is not beside it, is another, or cannot be trained on.
        """
        device, *further = devices_of(settings)
        limit_gpu(device, settings.gpu_share)
        card.require_beside()
        require_room_in_cache(f"run {card.name!r}", card.downloads)
        steps_itself = card.averaging.strategy == "local"
        pace = Pace(card.averaging.target_batch_size, settings.batch_size, steps_itself=steps_itself)
        model, batches = initial_model(card), batches_of(card, pace.most, settings.data_seed(peer_id))
        begin, first = batches.state_dict(), next(batches)
        check_inputs(card.model, first.text, first.codes)
        batches.load_state_dict(begin)
        return cls(model.to(device), device, further, batches, pace)


def devices_of(settings: PeerSettings) -> list[torch.device]:
    """Return the devices of a peer: those that are named, or the first GPU that works and all after it, or a processor.

    Whether further GPUs compute is seen by their workers: this process would take memory of each that it tried. Raises
    ValueError if the first one that is named does not compute, or another is not here.
    """
    if not settings.devices:
        gpus = (f"cuda:{number}" for number in range(torch.cuda.device_count()))
        first = next((gpu for gpu in gpus if check_gpu(gpu).problem is None), "cpu")
        return [torch.device(gpu) for gpu in ([first] if settings.device == FIRST_GPU else [first, *gpus])]
    first = settings.devices[0]
    if first.startswith("cuda") and (problem := check_gpu(first).problem):
        raise ValueError(
            f'{first} does not compute here: {problem}. Choose another --device; "auto" takes all GPUs that work, '
            "or else the processor."
        )
    return list(map(choose_device, settings.devices))
