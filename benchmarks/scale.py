"""How many peers can one flat group have, and what does a run of so many cost its peers?

Plays runs of the paper's size with simpy: peers compute, look at each other's progress in the hash table, find their
group, average over links that are shared like a fluid, give newcomers their state, come and go. Speeds, links and stays
are drawn from `Distributions` (`benchmarks/scaling/distributions.py`): 10 to 1,000 Mbit/s up, 30% behind NAT, 2% leave
in a minute. The algorithms are those of `dalle_lib/swarm/averaging`, the constants those of `dalle-lib run plan`.

    python benchmarks/scale.py                                # 40, 200, 1,000 and 5,000 peers
    python benchmarks/scale.py --peers 60 80 100 120 --seeds 3
    python benchmarks/scale.py --measure                      # the constants as they are on this machine, half a minute
    python benchmarks/scale.py --recorded                     # against real swarms of eight peers in results/plan.json
    python benchmarks/scale.py --real 4 8 12 24               # real peers on this machine, against simulated ones

Prints JSON: the seconds of an epoch (figure), those that `dalle_lib.planning.plan_run` plans for the same machines
(reference), their ratio, and for each size the epoch's overhead, bytes by role and by purpose, groups, and the loads of
the first peers and of those that hold the hash table's busiest key; `ends` says beyond how many peers one flat group
fails, and by what. With `--real` and `--recorded`, figure and reference are the seconds of real and simulated epochs,
with `--measure` the constants as measured and as they stand there.
"""

import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from math import log
from statistics import mean

import tyro

from dalle_lib.organizing.sizing import matchmaking_for
from dalle_lib.planning import Machines, Work, constants, plan_run
from scaling.distributions import BYTES_PER_MBIT, Distributions, Population
from scaling.outcome import Outcome
from scaling.report import ends, row
from scaling.swarm import Scenario, Swarm

EXACT_UP_TO = 16
"""Peers up to which links are shared anew at each change; beyond, every so many seconds."""
GRAINS = {60: 0.1, 200: 0.25, 10**9: 1.0}
"""Seconds between two sharings of links, up to so many peers."""
RECORDED = ("equal", "two slow uplinks", "clients")
"""Scenarios of `benchmarks/plan.py` that average gradients."""
BANDS = ((10, 30), (30, 100), (100, 300), (300, 1001))
"""Links that the plan takes for equal, in Mbit/s."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to simulate."""

    peers: tuple[int, ...] = (40, 200, 1000, 5000)
    epochs: int = 2
    seeds: int = 1
    computing_s: float = 200.0
    """Seconds in which all compute an epoch, at least; `target_batch_size` follows from it and their speeds."""
    matchmaking_s: float | None = None
    """None for what `dalle-lib run new --volunteers` sets, and no less than the paper's."""
    upload_bits: int = 8
    timeout_s: float = 300.0
    measure: bool = False
    """Simulate nothing, and measure the constants that the simulation takes from `dalle_lib/planning/constants.py`."""
    recorded: bool = False
    """Compare with the real swarms of eight peers in `results/plan.json`, and simulate nothing else."""
    real: tuple[int, ...] = ()
    """Peers of real swarms that run here, one after another, and are compared with simulated ones."""
    real_epochs: int = 6
    """Epochs of each that count."""


def scenario(study: Study, peers: int, seed: int = 0) -> Scenario:
    """Return the run of so many peers: the paper's model, and epochs that are long enough for them."""
    paper = Work.paper()
    matchmaking_s = study.matchmaking_s or max(paper.matchmaking_s, matchmaking_for(peers))
    computing_s = max(study.computing_s, 2 * matchmaking_s)
    low, high = Distributions().samples_per_s
    mean_speed = (high - low) / log(high / low)
    work = paper.with_changes(
        matchmaking_s=matchmaking_s, timeout_s=max(study.timeout_s, 2 * matchmaking_s),
        target_batch_size=round(peers * mean_speed * computing_s), up_bits=constants.UP_BITS[study.upload_bits],
    )  # fmt: skip
    grain_s = 0.0 if peers <= EXACT_UP_TO else next(grain for most, grain in GRAINS.items() if peers <= most)
    return Scenario(peers=peers, work=work, epochs=study.epochs, seed=seed, grain_s=grain_s)


def planned_s(of: Scenario, people: Population) -> float:
    """Return the seconds of an epoch that are planned for the same peers, in bands of equal links."""
    machines = []
    for low, high in BANDS:
        for is_client in False, True:
            some = [
                peer for peer in people.trainers
                if people.is_client[peer] == is_client and low <= people.up[peer] / BYTES_PER_MBIT < high
            ]  # fmt: skip
            if some:
                machines.append(
                    Machines(
                        name=f"{low} to {high} Mbit/s{', behind NAT' * is_client}", count=len(some),
                        samples_per_second=mean(people.samples_per_s[some]), up_mbps=min(people.up[some]) / 1.25e5,
                        down_mbps=min(people.down[some]) / 1.25e5, reduces=not is_client,
                    )
                )  # fmt: skip
    return plan_run(of.work, machines).epoch_s


def simulated(study: Study, peers: int) -> dict:
    """Return what runs of so many peers came to, the mean over seeds."""
    began, outcomes, planned = time.perf_counter(), [], []
    for seed in range(study.seeds):
        swarm = Swarm(scenario(study, peers, seed))
        planned.append(planned_s(swarm.scenario, swarm.people))
        outcomes.append(swarm.run())
    made = row(swarm.scenario, outcomes, mean(planned)) | {"took_s": round(time.perf_counter() - began, 1)}
    print(peers, json.dumps(made), file=sys.stderr)
    return made


def compared(study: Study, peers: int) -> dict:
    """Return what a real swarm of so many peers came to, and a simulated one."""
    from scaling.real import WITHOUT, Real, measured

    real = Real(peers=peers, epochs=study.real_epochs)
    outcome: Outcome = Swarm(real.scenario(os.cpu_count(), 0)).run()
    counted = Outcome(epochs=outcome.epochs[WITHOUT:], sent=outcome.sent, work_s=outcome.work_s)
    played = {
        "seconds": counted.mean("seconds"), "sent": outcome.parts["rounds"] / peers, "work_s": counted.work_s,
        "largest": counted.mean("largest") / peers, "waiting_s": counted.mean("seconds") - real.computing_s,
    }  # fmt: skip
    seen = measured(real)
    made = {"real": seen, "simulated": played, "ratio": {name: seen[name] / played[name] for name in seen},
            "settings": asdict(real)}  # fmt: skip
    print(peers, json.dumps(made), file=sys.stderr)
    return made


def main(study: Study) -> None:
    """Simulate, or compare with real swarms, and print what came of it."""
    told = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"}
    if study.measure:
        from scaling.measure import measured

        figure = measured()
        reference = {name: getattr(constants, name) for name in figure}
        rows = {}
    elif study.recorded:
        from scaling.real import recorded

        rows = {name: recorded(name) for name in RECORDED}
        figure, reference = ({at: row[of]["seconds"] for at, row in rows.items()} for of in ("real", "simulated"))
    elif study.real:
        rows = {str(peers): compared(study, peers) for peers in study.real}
        figure, reference = ({at: row[of]["seconds"] for at, row in rows.items()} for of in ("real", "simulated"))
    else:
        rows = {str(peers): simulated(study, peers) for peers in study.peers}
        figure = {at: row["seconds"] for at, row in rows.items()}
        reference = {at: row["planned_s"] for at, row in rows.items()}
        told["ends"] = ends(rows)
    ratio = {at: figure[at] / reference[at] for at in figure}
    result = {"figure": figure, "reference": reference, "ratio": ratio, "rows": rows}
    print(json.dumps(result | told | {"settings": asdict(study)}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Study, description=__doc__))
