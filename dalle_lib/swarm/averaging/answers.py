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


async def made_ahead(answers: AsyncIterator) -> AsyncIterator:
    """Iterate over answers, which are made no later if their reader is slow; those that wait are kept."""
    made: asyncio.Queue = asyncio.Queue()

    async def make() -> None:
        try:
            async for answer in answers:
                made.put_nowait(answer)
        finally:
            made.put_nowait(None)

    making = asyncio.create_task(make())
    try:
        while (answer := await made.get()) is not None:
            yield answer
        await making  # raises what went wrong
    finally:
        making.cancel()
