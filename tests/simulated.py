"""What tests of simulated swarms share; importing it makes `benchmarks/scaling` importable."""

import sys

import numpy as np
from checkout import ROOT

from dalle_lib.planning import Work

sys.path.append(str(ROOT / "benchmarks"))

from scaling.distributions import BYTES_PER_MBIT, Population

WORK = Work(
    tensors=(2_000_000,), epochs=100, target_batch_size=60, matchmaking_s=3.0, timeout_s=40.0, state_every=1000,
    delayed=False, audits=0,
)  # fmt: skip


def people(mbps: list[float], clients: tuple[int, ...] = (), trip_s: float = 0.01) -> Population:
    """Return trainers with these links both ways."""
    rates = np.array(mbps) * BYTES_PER_MBIT
    return Population(
        up=rates.copy(), down=rates.copy(), is_client=np.isin(np.arange(len(mbps)), clients),
        samples_per_s=np.ones(len(mbps)), trip_s=np.full(len(mbps), trip_s / 2), first_peers=0,
    )  # fmt: skip
