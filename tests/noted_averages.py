"""What each peer puts into each average of parameters and gets out of it, noted by its averager itself.

A peer's script calls `note_averages`; the test reads what all of them have noted by `averages`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dalle_lib.swarm.averaging.rounds import Counted
from dalle_lib.swarm.averaging.state_averager import RunStateAverager

NOTES = "averages.jsonl"


@dataclass
class Average:
    """One average of parameters, by the notes of the peers of its group; values are those of one place, by tensor."""

    sent: dict[str, Tensor] = field(default_factory=dict)
    """What each peer put in."""
    held: dict[str, Tensor] = field(default_factory=dict)
    """What each peer has afterwards."""
    counted: dict[str, Counted] = field(default_factory=dict)
    """The weights in it, as each peer that had the whole average was told."""

    def due(self, counted: Counted) -> Tensor:
        """Return the average of what the peers put in, by these weights."""
        return sum(weight * self.sent[peer] for peer, weight in counted.items() if weight) / sum(counted.values())


def note_averages(folder: Path, place: int) -> None:
    """Make this peer note the values at one place of its parameters in a file of its folder, in all averages."""
    average = RunStateAverager._run_allreduce_inplace_

    async def average_and_note(self, tensors, group_info, *args, **kwargs):
        def note(**what) -> None:
            with open(folder / NOTES, "a") as notes:
                notes.write(json.dumps({"group": group_info.group_id.hex(), "peer": str(self.peer_id), **what}) + "\n")

        def values() -> list[float]:
            return [float(tensor[place]) for tensor in tensors]

        note(sent=values())
        try:
            await average(self, tensors, group_info, *args, **kwargs)
        finally:
            note(held=values())  # parts of it, if it failed
        runner = self._running_groups[group_info.group_id].result()
        if runner.is_whole:
            note(counted=runner.counted())

    RunStateAverager._run_allreduce_inplace_ = average_and_note


def averages(folders: Iterable[Path]) -> list[Average]:
    """Return all averages that the peers of these folders have noted."""
    found = defaultdict(Average)
    for file in (folder / NOTES for folder in folders):
        for line in file.read_text().splitlines(keepends=True) if file.exists() else ():
            if not line.endswith("\n"):
                continue  # it is being written
            note = json.loads(line)
            average, peer = found[note["group"]], note["peer"]
            if "counted" in note:
                average.counted[peer] = note["counted"]
            elif "held" in note:
                average.held[peer] = torch.tensor(note["held"])
            else:
                average.sent[peer] = torch.tensor(note["sent"])
    return list(found.values())
