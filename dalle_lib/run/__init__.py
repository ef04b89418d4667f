"""What the peers of one run share: its card, its files, and what training starts from. Loads no hivemind."""

from dalle_lib.run.card import PROTOCOL, RunCard
from dalle_lib.run.files import CARD, EMBEDDED, EMBEDDED_RUNS
from dalle_lib.run.parts import (
    AveragingCard,
    DataCard,
    FileCard,
    MembersCard,
    OptimizerCard,
    RecipeCard,
    file_card,
)
from dalle_lib.run.start import batches_of, initial_model

__all__ = [
    "CARD",
    "EMBEDDED",
    "EMBEDDED_RUNS",
    "PROTOCOL",
    "AveragingCard",
    "DataCard",
    "FileCard",
    "MembersCard",
    "OptimizerCard",
    "RecipeCard",
    "RunCard",
    "batches_of",
    "file_card",
    "initial_model",
]
