"""A peer's progress on disk. A peer that starts again in the same folder goes on from there."""

import json
from pathlib import Path

import torch

from dalle_lib.checkpoint import load_tensors, save_model, save_tensors
from dalle_lib.model import DALLE
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.snapshot import Snapshot, take_snapshot
from dalle_lib.swarm.process.folder import MODEL, OPTIMIZER


def save_state(folder: Path, card: RunCard, model: DALLE, optimizer: CollaborativeOptimizer) -> None:
    """Write the model, and in a second file what the optimizer needs to go on with it."""
    snapshot = take_snapshot(optimizer)
    tensors = {f"parameter.{i}": parameter for i, parameter in enumerate(snapshot.parameters)}
    for i, statistics in snapshot.statistics["state"].items():
        tensors.update({f"{name}.{i}": value for name, value in statistics.items()})
    save_model(folder / MODEL, model, snapshot.epoch)
    groups = json.dumps(snapshot.statistics["param_groups"])
    metadata = {"fingerprint": card.fingerprint, "epoch": str(snapshot.epoch), "param_groups": groups}
    save_tensors(folder / OPTIMIZER, tensors, metadata)


def load_state(folder: Path) -> Snapshot | None:
    """Return what `save_state` wrote, or None if the folder holds nothing."""
    if not (folder / OPTIMIZER).exists():
        return None
    tensors, metadata = load_tensors(folder / OPTIMIZER)
    statistics: dict[int, dict[str, torch.Tensor]] = {}
    parameters = {}
    for key, value in tensors.items():
        name, index = key.rsplit(".", 1)
        if name == "parameter":
            parameters[int(index)] = value
        else:
            statistics.setdefault(int(index), {})[name] = value
    state_dict = {"state": statistics, "param_groups": json.loads(metadata["param_groups"])}
    return Snapshot(int(metadata["epoch"]), [parameters[i] for i in range(len(parameters))], state_dict)
