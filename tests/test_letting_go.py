"""Averagers keep no memory of the trainer's process that they do not use."""

import gc
import multiprocessing
import re
from pathlib import Path

import hivemind
import pytest
import torch
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity
from dalle_lib.model import DALLE
from dalle_lib.swarm.averaging.letting_go import let_go
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import build_optimizer

LARGE = 2**17


def own_memory() -> int:
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def test_a_fork_gives_back_what_it_lets_go_and_its_parent_keeps_it():
    kept, shared = torch.ones(2**24), torch.ones(2**10).share_memory_()
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def child() -> None:
        before = own_memory()
        let_go([kept, shared, torch.ones(1).expand(3)])
        told.put((before - own_memory(), float(shared.sum())))

    process = context.Process(target=child)
    process.start()
    given_back, of_shared = told.get()
    process.join()
    assert given_back > 0.9 * kept.nbytes
    assert of_shared == shared.numel()
    assert kept.sum() == kept.numel()


@pytest.mark.parametrize("strategy", ["gradients", "local"])
def test_averagers_let_go_of_all_that_the_optimizer_makes_for_the_trainer_alone(mini, strategy):
    averaging = {**mini.averaging.model_dump(), "strategy": strategy, "delayed": False}
    card = mini.with_changes(averaging=averaging)
    model = DALLE(card.model)
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    before = set(private())
    optimizer = build_optimizer(card, model, dht, Trust.of(card, identity=Identity(RSAPrivateKey())))
    try:
        let_go_of = addresses(optimizer.grad_averager.of_trainer())
        assert addresses(model.parameters()) <= let_go_of
        inner = optimizer.inner.state.values() if strategy == "local" else ()
        kept = set(private()) - before - let_go_of - addresses(t for state in inner for t in state.values())
        assert not kept, f"{len(kept)} tensors of {[private()[address] for address in kept]} bytes"
    finally:
        optimizer.shutdown()
        dht.shutdown()


def addresses(tensors) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def private() -> dict[int, int]:
    """Return the bytes of each large storage that living tensors of this process alone use, by address."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors if not tensor.is_shared()]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes() >= LARGE}
