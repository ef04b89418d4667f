"""Captions and codes as an endless stream, and text as blocks of text tokens.

Names are imported when first used: a run's card needs the format of codes, and no torch.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.streaming.codes import CodesFormat, code_files, read_codes
    from dalle_lib.streaming.filters import Filters
    from dalle_lib.streaming.layouts import CodeRow
    from dalle_lib.streaming.manifest import MANIFEST, Manifest
    from dalle_lib.streaming.prepare import prepare_dataset
    from dalle_lib.streaming.stream import CodeStream, Receipt, stream_codes
    from dalle_lib.streaming.text import TEXT, TEXT_MODEL, TextStream, stream_text
    from dalle_lib.streaming.tokenizer import CaptionTokenizer
    from dalle_lib.streaming.writing import write_codes

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "codes": ("CodesFormat", "code_files", "read_codes"),
        "filters": ("Filters",),
        "layouts": ("CodeRow",),
        "manifest": ("MANIFEST", "Manifest"),
        "prepare": ("prepare_dataset",),
        "stream": ("CodeStream", "Receipt", "stream_codes"),
        "text": ("TEXT", "TEXT_MODEL", "TextStream", "stream_text"),
        "tokenizer": ("CaptionTokenizer",),
        "writing": ("write_codes",),
    },
)
