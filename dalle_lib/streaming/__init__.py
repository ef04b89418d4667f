"""Captions and codes as an endless stream, and text as blocks of text tokens.

Names are imported when first used: a run's card needs the format of codes, and no torch.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.streaming.codes import (
        CodeRow,
        CodesFormat,
        CodeStream,
        code_files,
        read_codes,
        stream_codes,
        write_codes,
    )
    from dalle_lib.streaming.text import TEXT, TEXT_MODEL, TextStream, stream_text
    from dalle_lib.streaming.tokenizer import CaptionTokenizer

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "codes": ("CodeRow", "CodesFormat", "CodeStream", "code_files", "read_codes", "stream_codes", "write_codes"),
        "text": ("TEXT", "TEXT_MODEL", "TextStream", "stream_text"),
        "tokenizer": ("CaptionTokenizer",),
    },
)
