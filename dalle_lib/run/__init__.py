"""What the peers of one run share: its card, its files, and what training starts from. Loads no hivemind.

Names are imported when first used: where a run is (`dalle_lib.run.files`) can be said without loading torch.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.run.card import PROTOCOL, RunCard
    from dalle_lib.run.files import CARD, EMBEDDED, EMBEDDED_RUNS, hub_token_for
    from dalle_lib.run.new import new_run, vqgan_file
    from dalle_lib.run.parts import (
        AveragingCard,
        DataCard,
        FileCard,
        MembersCard,
        OptimizerCard,
        RecipeCard,
        file_card,
    )
    from dalle_lib.run.start import batches_of, codes_of_run, initial_model, require_fit
    from dalle_lib.run.state import RunClosed

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "card": ("PROTOCOL", "RunCard"),
        "files": ("CARD", "EMBEDDED", "EMBEDDED_RUNS", "hub_token_for"),
        "new": ("new_run", "vqgan_file"),
        "parts": (
            "AveragingCard",
            "DataCard",
            "FileCard",
            "MembersCard",
            "OptimizerCard",
            "RecipeCard",
            "file_card",
        ),
        "state": ("RunClosed",),
        "start": ("batches_of", "codes_of_run", "initial_model", "require_fit"),
    },
)
