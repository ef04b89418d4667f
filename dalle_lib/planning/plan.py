"""How long a run takes, what it sends and what it costs: `plan_run`.

A round has two halves. First every peer that trains sends its tensors to the reducers, an equal part to each; then each
reducer sends every other peer the average of its part. With `U` bytes of a peer's tensors, `A` of all averages, `n`
peers and `r` reducers::

    sent first:   a client U           a reducer U (r - 1) / r
    got first:    a client 0           a reducer U (n - 1) / r
    sent then:    a client 0           a reducer A (n - 1) / r
    got then:     a client A           a reducer A (r - 1) / r

A round takes as long as its fullest link: any upload or download with both halves on it, or a reducer's download of the
first and upload of the second half. The last one is an upper bound: it was measured while these took turns, and since
then reducers answer while others still send.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dalle_lib.memory import Training, estimate
from dalle_lib.planning.constants import (
    DAY_S,
    FILES_PER_STATE,
    LOOK_EVERY_S,
    LOOK_S_PER_PEER,
    MAX_ASKED,
    PROGRESS_EVERY_S,
    READ_AHEAD,
    RECORD_BYTES,
    ROUND_SLOWDOWN,
    ROUND_START_S,
    ROW_BYTES_PER_CODE,
    STEP_PARAMETERS_PER_S,
    WEIGHT_BYTES,
)
from dalle_lib.planning.faults import what_goes_wrong
from dalle_lib.planning.machines import Machines
from dalle_lib.planning.work import Work


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one machine of a group sends and receives, in bytes, and what all of the group cost."""

    name: str
    sent_per_epoch: float
    received_per_epoch: float
    sent_per_day: float
    """Bytes that it sends in its hours of a day, with the states that newcomers take over."""
    received_per_day: float
    price: float
    """Price of the whole group until the end of the run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will take, by the formulas of this module."""

    work: Work
    machines: tuple[Machines, ...]
    phases: dict[str, float]
    """Seconds of an epoch by phase: what is hidden behind another phase counts 0. Their sum is `epoch_s`."""
    round_s: float
    """Seconds of a round from its first byte on."""
    bottleneck: str
    """The link that a round waits for longest."""
    traffic: tuple[Traffic, ...]
    """In the order of `machines`."""
    warnings: tuple[str, ...]
    """What would go wrong."""

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch, averages of parameters included."""
        return sum(self.phases.values())

    @property
    def total_s(self) -> float:
        """Seconds until the run is complete."""
        return self.epoch_s * self.work.epochs

    @property
    def days(self) -> float:
        """Days until the run is complete."""
        return self.total_s / DAY_S

    @property
    def price(self) -> float:
        """Price of the whole run."""
        return sum(group.price for group in self.traffic)

    def needed(self) -> tuple[int, int, int] | None:
        """Return the most bytes that a trainer needs on a GPU at batch 1, in RAM, and on disk for its state.

        None if the work does not name its model. The first two are the upper ends of the memory calculator's ranges.
        """
        if not self.work.model:
            return None
        optimizer = {8: "lamb8bit", 32: "lamb"}[self.work.optimizer_bits]
        training = Training(optimizer=optimizer, reversible=True, swarm=True)
        memory = estimate(dict(self.work.model), training)
        return memory.gpu_range[1], memory.ram_range[1], round(FILES_PER_STATE * self.work.state_bytes)

    def as_dict(self) -> dict:
        """Return all of it as a dictionary that JSON can hold."""
        work = asdict(self.work) | {"tensors": len(self.work.tensors), "parameters": self.work.parameters}
        work["model"] = dict(self.work.model)
        needed = self.needed()
        sums = {"epoch_s": self.epoch_s, "days": self.days, "price": self.price}
        sums["trainer"] = needed and dict(zip(("gpu_bytes", "ram_bytes", "disk_bytes"), needed, strict=True))
        return {**asdict(self), "work": work, **sums}


@dataclass(frozen=True, kw_only=True)
class _Half:
    """Bytes of one machine of each group in one half of a round."""

    sent: tuple[float, ...]
    received: tuple[float, ...]


def plan_run(work: Work, machines: Iterable[Machines]) -> Plan:
    """Return what a run takes with these machines.

    Raises ValueError if nobody trains, or several peers train and none of them reduces.
    """
    machines = tuple(machines)
    peers = sum(group.online for group in machines if group.trains)
    reducers = sum(group.online for group in machines if group.reduces)
    if not peers:
        raise ValueError("nobody trains: give at least one group its samples a second, such as speed=0.5.")
    if peers > 1 and not reducers:
        raise ValueError(
            "nobody reduces: averaging needs at least one peer to which the others can connect. Add `reduces` to a "
            "group with an open port, such as vm=1,speed=0.2,up=1000,down=1000,reduces."
        )
    there, back = _halves(work, machines, work.up_bytes)
    fullest_s, bottleneck = _fullest(machines, there, back)
    averaging_s = ROUND_SLOWDOWN * fullest_s
    phases = phases_where(work, machines, machines)
    epoch_s = sum(phases.values())
    rounds = 1 + 1 / work.state_every if peers > 1 else 0.0
    sent, received = _per_epoch(work, machines, rounds, there, back, epoch_s)
    return Plan(
        work=work, machines=machines, phases=phases, round_s=averaging_s,
        bottleneck=bottleneck,
        traffic=_traffic(work, machines, sent, received, epoch_s),
        warnings=what_goes_wrong(work, machines, averaging_s, phases),
    )  # fmt: skip


def phases_where(work: Work, computing: tuple[Machines, ...], averaging: tuple[Machines, ...]) -> dict[str, float]:
    """Return the seconds of an epoch by phase, where the first machines compute it and the others average it."""
    peers = sum(group.online for group in averaging if group.trains)
    there, back = _halves(work, averaging, work.up_bytes)
    parameters_there, _ = _halves(work, averaging, work.answer_bytes)
    averaging_s = ROUND_SLOWDOWN * _fullest(averaging, there, back)[0]
    parameters_s = ROUND_SLOWDOWN * _fullest(averaging, parameters_there, back)[0]
    return _phases(work, computing, averaging_s if peers > 1 else None, parameters_s)


def _halves(work: Work, machines: tuple[Machines, ...], up_bytes: float) -> tuple[_Half, _Half]:
    peers = sum(group.online for group in machines if group.trains)
    reducers = sum(group.online for group in machines if group.reduces)
    part = 1 / max(reducers, 1)
    answers = work.answer_bytes + WEIGHT_BYTES * peers * work.messages
    to_others = [(max(0.0, 1 - part) if group.reduces else 1.0) * group.trains for group in machines]
    for_others = [part * max(0.0, peers - 1) * group.reduces for group in machines]
    if peers <= 1:
        to_others = for_others = [0.0] * len(machines)
    there = _half(to_others, for_others, up_bytes)
    return there, _half(for_others, to_others, answers)


def _half(sent: list[float], received: list[float], size: float) -> _Half:
    return _Half(sent=tuple(share * size for share in sent), received=tuple(share * size for share in received))


def _fullest(machines: tuple[Machines, ...], there: _Half, back: _Half) -> tuple[float, str]:
    """Return the seconds of the link that a round waits for longest, and its name."""
    links = []
    for group, *ways in zip(machines, there.sent, back.sent, there.received, back.received, strict=True):
        up, down = 1e6 / 8 * group.up_mbps, 1e6 / 8 * group.down_mbps
        links += [
            (ways[2] / down + ways[1] / up, f"what {group.name} reduce: in, then out"),
            ((ways[0] + ways[1]) / up, f"the upload of {group.name}"),
            ((ways[2] + ways[3]) / down, f"the download of {group.name}"),
        ]
    return max(links)


def _phases(
    work: Work, machines: tuple[Machines, ...], averaging_s: float | None, parameters_s: float
) -> dict[str, float]:
    """Return the seconds of an epoch by phase; `averaging_s` is None for a peer that is alone.

    `parameters_s` are those of a round of parameters, which travel to reducers in as many bits as averages.
    """
    trainers = [group for group in machines if group.trains]
    computing = work.target_batch_size / sum(group.online * group.samples_per_second for group in trainers)
    # A peer notices the end of an epoch between two batches: the last of n comes after n / (n + 1) of its batch's time.
    last = max(
        group.batch_size / group.samples_per_second * max(1.0, group.online) / (max(1.0, group.online) + 1)
        for group in trainers
    )
    step = work.parameters / STEP_PARAMETERS_PER_S
    if averaging_s is None:
        hidden = 0.0 if work.delayed else step
        return {"computing": computing, "last batch": 0.0, "matchmaking": 0.0, "averaging": 0.0, "step": hidden,
                "parameters": 0.0}  # fmt: skip
    matchmaking = ROUND_START_S + max(0.0, work.matchmaking_s - computing)
    state_s = work.matchmaking_s + parameters_s
    if work.strategy == "local":  # peers wait for it
        parameters = state_s / work.state_every
    else:  # it goes on while peers compute
        parameters = max(0.0, state_s - max(computing, work.matchmaking_s)) / work.state_every
    if work.delayed == "averaging":
        last_s, averaging_s, step = last, max(0.0, averaging_s + step - computing - last), 0.0
    else:
        last_s, step = last, max(0.0, step - max(computing, work.matchmaking_s)) if work.delayed else step
    return {"computing": computing, "last batch": last_s, "matchmaking": matchmaking, "averaging": averaging_s,
            "step": step, "parameters": parameters}  # fmt: skip


def _per_epoch(
    work: Work, machines: tuple[Machines, ...], rounds: float, there: _Half, back: _Half, epoch_s: float
) -> tuple[list[float], list[float]]:
    """Return the bytes that one machine of each group sends and receives in an epoch."""
    peers = sum(group.online for group in machines if group.trains)
    everybody = sum(group.online for group in machines)
    reachable = sum(group.online for group in machines if group.reduces or not group.trains)
    reducers = sum(group.online for group in machines if group.reduces)
    looks = work.matchmaking_s / max(LOOK_EVERY_S, LOOK_S_PER_PEER * peers)
    asked_of = min(MAX_ASKED, max(1.0, reachable - 1))
    times = epoch_s / min(PROGRESS_EVERY_S, work.matchmaking_s) + rounds * looks
    read = asked_of * RECORD_BYTES * peers * times if peers > 1 else 0.0
    part = work.up_bytes / work.messages
    checked = rounds * work.audits * part if peers >= 3 and reducers >= 2 else 0.0
    uploads = 1 + (rounds - 1) * work.answer_bytes / work.up_bytes
    sent, received = [], []
    for group, *halves in zip(machines, there.sent, back.sent, there.received, back.received, strict=True):
        records = read if group.trains else 0.0
        # Whoever can be reached holds a share of the hash table, and answers everybody's looks at it.
        answered = read * everybody / reachable if group.reduces or not group.trains else 0.0
        audited = checked * group.trains * (peers - 1) / peers
        asked = checked * (peers - 1) / reducers if group.reduces and reducers else 0.0
        data = 0.0
        if group.trains and work.codes:
            data = READ_AHEAD * ROW_BYTES_PER_CODE * work.codes * group.samples_per_second * epoch_s
        sent.append(uploads * halves[0] + rounds * halves[1] + answered + audited)
        received.append(uploads * halves[2] + rounds * halves[3] + records + asked + data)
    return sent, received


def _traffic(
    work: Work, machines: tuple[Machines, ...], sent: list[float], received: list[float], epoch_s: float
) -> tuple[Traffic, ...]:
    starts = sum(group.count * group.starts_a_day for group in machines if group.trains)
    donors = sum(group.count for group in machines if group.reduces)
    result = []
    for group, up, down in zip(machines, sent, received, strict=True):
        epochs = group.hours_a_day * 3600 / epoch_s
        given = starts / donors * work.state_bytes if group.reduces else 0.0
        taken = group.starts_a_day * work.state_bytes * group.trains
        up_day, days = up * epochs + given, epoch_s * work.epochs / DAY_S
        price = days * group.count * (group.hours_a_day * group.hour_price + up_day / 1e9 * group.gb_price)
        result.append(
            Traffic(name=group.name, sent_per_epoch=up, received_per_epoch=down, sent_per_day=up_day,
                    received_per_day=down * epochs + taken, price=price)
        )  # fmt: skip
    return tuple(result)
