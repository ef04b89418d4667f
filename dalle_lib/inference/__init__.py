"""From a prompt to pictures, with the model of a run or the paper's own.

Each name is imported when it is first used: the command line reads `Settings` without loading torch.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.inference.captions import Novelty, TrainingCaptions
    from dalle_lib.inference.choosing import Choice, choose_best
    from dalle_lib.inference.drawing import Drawing, Progress, contact_sheet
    from dalle_lib.inference.fetching import Download
    from dalle_lib.inference.nearest import Nearest
    from dalle_lib.inference.published import PAPER, PaperFiles
    from dalle_lib.inference.settings import PRESETS, Settings
    from dalle_lib.inference.text_to_image import TextToImage, downloads

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "captions": ("Novelty", "TrainingCaptions"),
        "choosing": ("Choice", "choose_best"),
        "drawing": ("Drawing", "Progress", "contact_sheet"),
        "fetching": ("Download",),
        "nearest": ("Nearest",),
        "published": ("PAPER", "PaperFiles"),
        "settings": ("PRESETS", "Settings"),
        "text_to_image": ("TextToImage", "downloads"),
    },
)
