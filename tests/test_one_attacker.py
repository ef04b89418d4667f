"""What one peer makes another one hold of memory and disk is bounded, and a run goes on under it."""

from pathlib import Path

import psutil
import pytest
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card, start_beside

pytestmark = [pytest.mark.chaos, pytest.mark.peers]

SCRIPT = Path(__file__).parent / "one_attacker.py"
MAX_GROWN_BYTES = 200 * 2**20
"""What docs/threats.md says of all processes of a peer but p2pd."""
MAX_WRITTEN_BYTES = 2**20


def held(peer: OneHotPeer) -> dict[int, int]:
    """Return the bytes of memory that belong to each process of a peer alone, by its number; p2pd is left out."""
    family = [psutil.Process(peer.process.pid), *psutil.Process(peer.process.pid).children(recursive=True)]
    return {each.pid: each.memory_full_info().uss for each in family if each.name() != "p2pd"}


def written(peer: OneHotPeer) -> int:
    return sum(file.stat().st_size for file in peer.folder.iterdir())


def test_one_attacker_neither_stops_a_run_nor_fills_a_peer(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1000), swarm_folder) as swarm:
        victim = swarm.add()
        for _ in range(2):
            swarm.add()
        swarm.go()
        swarm.wait_together(swarm.peers, after=2)
        memory, disk = held(victim), written(victim)
        with start_beside(SCRIPT, swarm_folder / "attacker", **swarm.way_in()) as attacker:
            assert attacker.stdout.readline() == "records 0 stored\n"
            epoch = victim.epoch
            swarm.wait_together(swarm.peers, after=epoch + 1)
            grown = []
            for told in "streams of grad_averager\n", "streams of state_averager\n", "texts\n":
                assert attacker.stdout.readline() == told
                grown.append(sum(now - memory.get(pid, 0) for pid, now in held(victim).items()))
            epoch = victim.epoch
            swarm.wait_together(swarm.peers, after=epoch + 1)
            print(
                f"one attacker: {[round(each / 2**20) for each in grown]} MiB, {written(victim) - disk:,} bytes written"
            )
            assert max(grown) < MAX_GROWN_BYTES
            assert written(victim) - disk < MAX_WRITTEN_BYTES
            attacker.kill()
