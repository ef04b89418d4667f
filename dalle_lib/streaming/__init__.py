"""Captions and codes as an endless stream, and text as blocks of text tokens."""

from dalle_lib.streaming.codes import CodeRow, CodesFormat, CodeStream, read_codes, stream_codes, write_codes
from dalle_lib.streaming.text import TEXT, TEXT_MODEL, TextStream, stream_text
from dalle_lib.streaming.tokenizer import CaptionTokenizer

__all__ = [
    "TEXT",
    "TEXT_MODEL",
    "CaptionTokenizer",
    "CodeRow",
    "CodeStream",
    "CodesFormat",
    "TextStream",
    "read_codes",
    "stream_codes",
    "stream_text",
    "write_codes",
]
