"""Answers to the calls of other peers, which stay open until the caller has read them."""

import asyncio
from collections.abc import AsyncIterator

HANG_UP_S = 3.0
"""Seconds that the caller has to close a stream before we do."""


async def until_hung_up(answers: AsyncIterator) -> AsyncIterator:
    """Iterate over the answers to a call, then wait for the caller to close the stream; stock peers never close it.

    The daemon of hivemind 1.1.12 resets a stream that the answering side closes, and the last answer may be lost.
    """
    is_answered = False
    async for answer in answers:
        yield answer
        is_answered = True
    if is_answered:
        await asyncio.sleep(HANG_UP_S)
