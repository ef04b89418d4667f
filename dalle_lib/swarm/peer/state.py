"""A peer's progress on disk. A peer that starts again in the same folder goes on from there."""

import json
import logging
import math
from pathlib import Path

import torch

from dalle_lib.checkpoint import load_tensors, read_header, save_model, save_tensors
from dalle_lib.files import BrokenFile, reading
from dalle_lib.model import DALLE
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.process.folder import START_ANEW, epoch_in, place_of_last

logger = logging.getLogger(__name__)


def save_state(
    folder: Path, card: RunCard, model: DALLE, snapshot: Snapshot, batches: TrainingBatches | None = None
) -> None:
    """Write the model, and in a second file what the optimizer and the data, if any, need to go on with it.

    `snapshot` is that of the model's parameters now. What that second file was is kept as BEFORE, unless it is of
    the same epoch or broken.
    """
    save_model(folder / MODEL, model, snapshot.epoch)
    about = {"epoch": str(snapshot.epoch), "param_groups": _groups_of(snapshot)}
    data = {} if batches is None else {"data": json.dumps(batches.state_dict())}
    about |= {"fingerprint": card.fingerprint, **data}
    save_tensors(folder / OPTIMIZER, _named(snapshot), about, before=place_of_last(folder, snapshot.epoch))


def resume_batches(file: Path, batches: TrainingBatches) -> None:
    """Go on with the data where `save_state` wrote `file`; where that says nothing that can be, they begin anew."""
    try:
        batches.load_state_dict(json.loads(read_header(file)[1]["data"]))
    except (KeyError, ValueError, RecursionError) as error:
        logger.warning("the data begin anew: %s", in_one_line(error))


def read_state(file: Path, own: Snapshot, fingerprint: str | None = None) -> Snapshot:
    """Return the state in a file of `save_state`, for an optimizer whose state is now `own`, which keeps its settings.

    Those come from the run card, whatever the file says: it may be somebody else's, from the Hub. `fingerprint` is that
    card's. Raises BrokenFile if it is cut off, incomplete, of another run or model, or not finite.
    """
    with reading(file, "the state of this run's optimizer", START_ANEW):
        try:
            tensors, metadata = load_tensors(file)
        except BrokenFile as error:  # which says to get it anew, but a peer's own progress is nowhere else
            raise ValueError(in_one_line(error.__cause__ or error)) from error
        if missing := {"epoch", "param_groups"} - metadata.keys():
            raise ValueError(f"its metadata lack {', '.join(sorted(missing))}")
        if fingerprint not in (None, metadata.get("fingerprint")):
            raise ValueError("it is of another run, or of this one with other settings in its card")
        named = _named(own)
        if unknown := tensors.keys() - named.keys():  # the optimizer would take it, and give it to newcomers
            raise ValueError(f"it has an unknown {min(unknown)!r:.80}")
        for name, tensor in named.items():
            if name not in tensors:
                raise ValueError(f"it lacks {name}")
            expected, came = ((each.dtype, tuple(each.shape)) for each in (tensor, tensors[name]))
            if expected != came:
                raise ValueError(f"expected {name} to be {expected}, but got {came}")
        groups, own_groups = (json.loads(text) for text in (metadata["param_groups"], _groups_of(own)))
        if _outline(groups) != _outline(own_groups):
            raise ValueError(f"expected param_groups such as {own_groups!r:.200}, but got {groups!r:.200}")
        saved = _snapshot(tensors, epoch_in(metadata), own.statistics["param_groups"])
        if not saved.is_finite:
            raise ValueError("expected finite numbers, but it holds NaN or infinity")
    return saved


def _named(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    """Return the tensors of a snapshot by their names in a file."""
    tensors = {f"parameter.{i}": parameter for i, parameter in enumerate(snapshot.parameters)}
    for i, statistics in snapshot.statistics["state"].items():
        tensors.update({f"{name}.{i}": value for name, value in statistics.items()})
    return tensors


def _groups_of(snapshot: Snapshot) -> str:
    return json.dumps(snapshot.statistics["param_groups"])


def _outline(groups: object) -> object:
    """Return what saved groups of parameters have in common with an optimizer's own: all but finite numbers."""
    if isinstance(groups, dict):
        return {name: groups[name] if name == "params" else _outline(groups[name]) for name in groups}
    if isinstance(groups, list):
        return [_outline(group) for group in groups]
    is_number = isinstance(groups, int | float) and not isinstance(groups, bool) and math.isfinite(groups)
    return "a number" if is_number else groups


def _snapshot(tensors: dict[str, torch.Tensor], epoch: int, groups: list) -> Snapshot:
    """Return the snapshot of which `_named` made these tensors."""
    statistics: dict[int, dict[str, torch.Tensor]] = {}
    parameters = {}
    for key, value in tensors.items():
        name, index = key.rsplit(".", 1)
        if name == "parameter":
            parameters[int(index)] = value
        else:
            statistics.setdefault(int(index), {})[name] = value
    state_dict = {"state": statistics, "param_groups": groups}
    return Snapshot(epoch, [parameters[i] for i in range(len(parameters))], state_dict)
