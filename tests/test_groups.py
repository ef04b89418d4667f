"""Peers meet in one group on machines without a core to spare: the short form of benchmarks/groups.py.

Its busy loops leave little to other tests, so the Makefile has it run alone.
"""

import pytest
from checkout import load_script

groups = load_script("benchmarks/groups")

PEERS, EPOCHS = 12, 6


@pytest.mark.chaos
def test_on_saturated_cores_nearly_all_peers_of_an_epoch_are_in_one_group(swarm_folder):
    found = groups.measure(groups.Benchmark(peers=PEERS, epochs=EPOCHS, patience_s=400.0), swarm_folder)
    assert len(found["groups"]) == EPOCHS
    assert found["figure"] >= 0.9, found
    assert all(abs(lacks) < 0.05 for lacks in found["updates lacking"]), found
