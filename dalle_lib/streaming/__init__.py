"""Captions and codes as an endless stream."""

from dalle_lib.streaming.codes import CodeRow, CodesFormat, CodeStream, read_codes, stream_codes, write_codes
from dalle_lib.streaming.tokenizer import CaptionTokenizer

__all__ = ["CaptionTokenizer", "CodeRow", "CodeStream", "CodesFormat", "read_codes", "stream_codes", "write_codes"]
