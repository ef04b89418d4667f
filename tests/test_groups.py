"""Peers meet in one group on machines without a core to spare: the short form of benchmarks/groups.py."""

import pytest
from checkout import load_script

groups = load_script("benchmarks/groups")

PEERS, EPOCHS = 8, 6


@pytest.mark.chaos
def test_on_saturated_cores_nearly_all_peers_of_an_epoch_are_in_one_group(swarm_folder):
    benchmark = groups.Benchmark(peers=PEERS, epochs=EPOCHS, patience_s=400.0)
    found = groups.measure(benchmark, swarm_folder)
    assert len(found["groups"]) == EPOCHS
    assert found["figure"] >= 0.9, found
    assert all(abs(lacks) < 0.05 for lacks in found["updates lacking"]), found
