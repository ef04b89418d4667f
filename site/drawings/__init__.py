"""Drawings of the site, made by code: functions that return a `Drawing` each, by the names by which pages ask."""

from collections.abc import Callable

from drawings import charts, flows, model, rounds
from drawings.canvas import Drawing

DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "round": rounds.round_of_averaging,
    "uneven": rounds.uneven_epoch,
    "killed": rounds.killed_peer,
    "layers": model.shared_layers,
    "masks": model.masks,
    "traffic": flows.traffic,
    "offloading": flows.offloading,
    "streaming": flows.streaming,
    "members": flows.members,
    "first-batch": charts.first_batch,
    "failed-rounds": charts.failed_rounds,
    "reversible": charts.reversible_memory,
    "epochs": charts.epochs_as_planned,
    "bytes": charts.communication_loss,
}
