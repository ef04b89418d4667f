"""How many bytes of RAM does a peer's optimizer take for each parameter?

Starts the embedded run's optimizer on a swarm of its own and counts the tensors that it makes. Prints JSON: bytes for
each parameter (figure), the memory calculator's prediction (reference) and their ratio. Without a GPU, gradients and
their sums, which would be on the GPU beside the model, are in RAM and are counted too. The snapshot that a trainer
takes later is not counted.
"""

import gc
import json

import hivemind
import torch
from hivemind.utils.crypto import RSAPrivateKey
from memory import describe_machine

from dalle_lib.auth import Identity
from dalle_lib.memory import Training, estimate
from dalle_lib.model import DALLE
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import build_optimizer


def storages() -> dict[int, int]:
    """Return the bytes of every storage that a living tensor uses, by address."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def main() -> None:
    """Count the optimizer's tensors, and print the comparison."""
    card = RunCard.load("emoji-mini")
    model = DALLE(card.model)
    count = sum(parameter.numel() for parameter in model.parameters())
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    trust = Trust.of(card, identity=Identity(RSAPrivateKey()))
    before = storages()
    optimizer = build_optimizer(card, model, dht, trust)
    made = {address: size for address, size in storages().items() if address not in before}
    expected = estimate("dalle-emoji", Training(swarm=True, optimizer="lamb8bit"), "cpu")
    ram = ("master copies", "offloaded state", "averaging buffers")
    reference = expected.gpu["averaging buffers"] + 4 * count + sum(expected.ram[term] for term in ram)
    figure = sum(made.values())
    result = {"figure": figure / count, "reference": reference / count, "ratio": figure / reference}
    print(json.dumps(result | {"machine": describe_machine("cpu")}, indent=1))
    optimizer.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
