"""A peer's processes keep no memory that they do not use."""

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dalle_lib.swarm.averaging.letting_go import give_back, let_go

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
sums = optimizer.grad_averager._local_accumulators or ()
assert kept <= addresses([*optimizer.state_averager.of_trainer(), *sums]), "the trainer keeps what it does not use"
optimizer.shutdown()
dht.shutdown()
"""
"""Makes a run's optimizer, and compares its private tensors with those that the averager forked last lets go, and with
those that are still in use: hivemind puts others in the place of some while it makes the optimizer."""


TABLE = """
import multiprocessing, os, sys, time
multiprocessing.set_start_method("fork", force=True)
import hivemind, torch
from pathlib import Path
from dalle_lib.swarm.peer import first_peers
from test_letting_go import own_memory

weights = torch.ones(2**25)
dht = hivemind.DHT(start=False, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
first_peers.start(dht, [], Path(sys.argv[1]), [weights])
deadline = time.monotonic() + 60
while own_memory(dht.pid) > own_memory() - weights.nbytes / 2:
    assert time.monotonic() < deadline, "the hash table's process keeps the weights"
    time.sleep(0.2)
assert weights.sum() == weights.numel()
dht.shutdown()
"""
"""Starts a hash table beside weights of 128 MB."""


def own_memory(process: int | str = "self") -> int:
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1])


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


def test_the_hash_tables_process_lets_go_of_the_trainers_weights(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TABLE, tmp_path], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_freed_memory_is_given_back_from_below_what_is_in_use():
    blocks = [bytearray(b"1" * 100_000) for _ in range(2_000)]
    highest = bytearray(b"1" * 100_000)  # above all others in the heap, whose end stays where it is
    before = own_memory()
    del blocks
    kept = own_memory()
    give_back()
    assert own_memory() < min(kept, before - 150_000_000)
    assert highest


@pytest.mark.parametrize("strategy", ["gradients", "local"])
def test_averagers_let_go_of_all_that_the_optimizer_makes_for_the_trainer_alone(strategy):
    done = subprocess.run([sys.executable, "-c", MADE, strategy], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
