"""Averagers keep no memory of the trainer's process that they do not use."""

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dalle_lib.swarm.averaging.letting_go import let_go

MADE = """
import gc, multiprocessing, sys
multiprocessing.set_start_method("fork", force=True)
import hivemind, torch
from hivemind.utils.crypto import RSAPrivateKey
from dalle_lib.auth import Identity
from dalle_lib.model import DALLE
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import build_optimizer

def addresses(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}

def private():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return addresses(t for t in tensors if not t.is_shared() and t.untyped_storage().nbytes() >= 2**17)

card = RunCard.load("emoji-mini")
averaging = {**card.averaging.model_dump(), "strategy": sys.argv[1], "delayed": False}
card = card.with_changes(averaging=averaging)
model = DALLE(card.model)
dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
before = private() - addresses(model.parameters())
optimizer = build_optimizer(card, model, dht, Trust.of(card, identity=Identity(RSAPrivateKey())))
own = optimizer.inner.state.values() if sys.argv[1] == "local" else ()
kept = private() - before - addresses(tensor for state in own for tensor in state.values())
print(len(kept), "private tensors")
assert len(kept) > 20, "there is something to let go"
assert kept <= addresses(optimizer.grad_averager.of_trainer()), "all of it"
optimizer.shutdown()
dht.shutdown()
"""
"""Makes a run's optimizer, and compares its private tensors with those that the averager forked last lets go."""


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
def test_averagers_let_go_of_all_that_the_optimizer_makes_for_the_trainer_alone(strategy):
    done = subprocess.run([sys.executable, "-c", MADE, strategy], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
