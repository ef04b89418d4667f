"""From pictures with captions to a published data set of codes. Names are imported when first used."""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.streaming.prepare.looking import example_pictures, first_pictures
    from dalle_lib.streaming.prepare.preparing import Prepared, prepare_dataset
    from dalle_lib.streaming.prepare.settings import PrepareSettings

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "looking": ("example_pictures", "first_pictures"),
        "preparing": ("Prepared", "prepare_dataset"),
        "settings": ("PrepareSettings",),
    },
)
